"""The sender of a command, which has told what it did once the command has ended in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from protocol.shell.cli import once_told, until_end

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.chain.command import CommandSender
    from protocol.chain.sender import SendLimits
    from protocol.identity import Key


def command_sender(chain: Chain, key: Key, keystore: Path, limits: SendLimits) -> CommandSender:
    """Open until the command ends. Raises what protocol.chain.command.open_sender does."""
    from protocol.chain.command import open_sender

    sender = until_end(open_sender(chain, key, keystore, limits))
    once_told(sender.tell)
    return sender
