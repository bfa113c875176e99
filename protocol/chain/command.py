"""The sender of one command that a person gives: what a command that was killed had signed is ended first, and done once.

Its journal lies beside the keystore, one for each key and chain, and is apart from that of a service with the same key: both
may send at once, and a nonce that the other took is replaced (sender.py). Two commands with one key may not.

The process that was killed may have sent its transaction or not. `open_sender` sends it all the same, before anything is read
from the chain, and a call of the same content that the command then asks for has been made already: it is not made again. That
holds until a command has ended in order and has said so: the journal knows of which deeds nobody was told.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from eth_utils import keccak

from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.sender import Sender, SendLimits
from protocol.chain.transaction_log import Transaction, TransactionLog
from protocol.errors import LockHeld, PreflightError
from protocol.identity import Key

log = logging.getLogger(__name__)


class CommandSender(Sender):
    """Opened with `open_sender`. What it has done counts as told once the command has ended: `tell`."""

    def __init__(self, chain: Chain, key: Key, journal: TransactionLog, limits: SendLimits) -> None:
        super().__init__(chain, key, journal, limits)
        self._done: set[int] = set()  # by this command; asked for again it is another deed
        self._found: set[int] = set()  # done by earlier ones

    def resume(self) -> None:
        """Ends what an earlier command began. Raises what Sender.send does."""
        with self._lock:
            self._recover(lambda _: True)
            for transaction in self._untold():
                if transaction.hash is not None:
                    self._found.add(transaction.id)
                    log.warning(
                        "an earlier command was interrupted while %s; that has landed now, in transaction 0x%s",
                        transaction.doing,
                        transaction.hash.hex(),
                    )

    def is_done(self, call: Call) -> bool:
        known = self._earlier(call, None)
        return known is not None and known.hash is not None

    def tell(self) -> None:
        """Notes that the command has said what it did, and what it found done."""
        self._journal.tell(self._done | self._found)

    def _tell(self, transaction: Transaction) -> None:
        self._done.add(transaction.id)

    def _untold(self) -> list[Transaction]:
        return [each for each in super()._untold() if each.id not in self._done]


def open_sender(chain: Chain, key: Key, keystore: Path, limits: SendLimits) -> CommandSender:
    """A sender that has ended what an earlier command with this keystore began.

    Raises LockHeld while another command with this key is under way, PreflightError where the journal cannot be written, and
    what Sender.send raises.
    """
    path = journal_path(chain, key, keystore)
    try:
        journal = TransactionLog(path)
    except LockHeld:
        raise LockHeld(
            f"another command sends with the key {key.address}", hint="let it end, or stop it, and try again"
        ) from None
    except (OSError, sqlite3.Error) as error:
        raise PreflightError(
            f"cannot write {path}, where transactions are noted before they are sent: {error}",
            hint="copy the keystore to a folder that can be written, and name it there",
        ) from error
    sender = CommandSender(chain, key, journal, limits)
    try:
        sender.resume()
    except BaseException:
        sender.close()
        raise
    return sender


def journal_path(chain: Chain, key: Key, keystore: Path) -> Path:
    """Where the journal of commands lies. Named by the chain's own first block too: a nonce means nothing on another chain."""
    chain_name = keccak((chain.block_hash(0) or b"") + chain.chain_id.to_bytes(32, "big")).hex()[:8]
    return keystore.with_name(f"transactions-{key.address}-{chain_name}.sqlite")
