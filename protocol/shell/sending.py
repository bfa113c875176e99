"""The sender of a command, which has told what it did once the command has ended well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from protocol.shell.cli import if_interrupted, once_told, until_end

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.chain.command import CommandSender
    from protocol.chain.sender import SendLimits
    from protocol.identity import Key


def command_sender(
    chain: Chain, key: Key, keystore: Path, limits: SendLimits, *, scope: Path | None = None
) -> CommandSender:
    """Open until the command ends. `scope`: the home or run.toml it is for; what was done for another one was another deed.

    Raises what protocol.chain.command.open_sender does.
    """
    from protocol.chain.command import open_sender

    sender = until_end(open_sender(chain, key, keystore, limits, "" if scope is None else str(scope.resolve())))
    once_told(sender.tell)
    if_interrupted(lambda: _left_behind(sender))
    return sender


def _left_behind(sender: CommandSender) -> str:
    doing = sender.unfinished()
    if not doing:
        return ""
    return f"signed, and it may land or have landed: {', '.join(doing)}; the same command given again looks for it, and does nothing twice"
