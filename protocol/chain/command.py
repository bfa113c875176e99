"""The sender of one command that a person gives: what a command that was killed had signed is ended first, and done once.

Its journal lies beside the keystore, one for each key and chain, and is apart from that of a service with the same key: both
may send at once, and a nonce that the other took is replaced (sender.py). Two commands with one key may not.

The process that was killed may have sent its transaction or not. `open_sender` sends it all the same, before anything is read
from the chain, and a call of the same content that the command then asks for has been made already: it is not made again.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from eth_utils import keccak

from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.sender import Sender, SendLimits, Sent
from protocol.chain.transaction_log import TransactionLog
from protocol.errors import LockHeld, PreflightError
from protocol.identity import Key

log = logging.getLogger(__name__)


class CommandSender(Sender):
    """Opened with `open_sender`."""

    def __init__(self, chain: Chain, key: Key, journal: TransactionLog, limits: SendLimits) -> None:
        super().__init__(chain, key, journal, limits)
        self._ended: dict[tuple[str | None, bytes, int], Sent] = {}

    def resume(self) -> None:
        """Ends what an earlier command began."""
        with self._lock:
            begun = {transaction.id for transaction in self._journal.pending()}  # not what only a reorg took back
            dropped = {transaction.id for transaction in self._journal.dropped()}
            for transaction, sent in self._recover():
                if sent is None or transaction.id not in begun | dropped:
                    continue
                self._ended[transaction.target, transaction.data, transaction.value] = sent
                if transaction.id in begun:
                    log.warning(
                        "an earlier command was interrupted while %s; that has landed now, in transaction 0x%s",
                        transaction.doing,
                        sent.hash.hex(),
                    )

    def is_done(self, call: Call) -> bool:
        return self.encode(call) in self._ended

    def send(self, call: Call, *, name: str | None = None) -> Sent:
        """Like Sender.send; what `resume` ended counts as this call when it is the very same."""
        ended = self._ended.pop(self.encode(call), None)
        return ended if ended is not None else super().send(call, name=name)


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
