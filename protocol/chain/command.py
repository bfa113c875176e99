"""The sender of one command that a person gives: what a command that was killed had signed is ended first, and done once.

Its journal lies beside the keystore, one for each key and chain, and is apart from that of a service with the same key: both
may send at once, and a nonce that the other took is replaced (sender.py). Two commands with one key may not.

The process that was killed may have sent its transaction or not. `open_sender` sends it all the same, before anything is read
from the chain, and a call of the same content that the command then asks for has been made already: it is not made again. That
holds until a command that asked for it has ended well and has said so, or for a day by this machine's clock and by the chain's:
the journal knows of which deeds nobody was told, and for which home or run they were. An equal one for another is another deed.
Where something else used its nonce, it is signed again only by a command that asks for it; others say so and go on.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from eth_utils import keccak

from protocol.chain.agreement import first_block
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.gaps import NOTHING_GAS, is_filling
from protocol.chain.leaves import is_ours, spender_of, taking_back, to_take_back
from protocol.chain.sender import NotDone, Sender, SendLimits, Sent
from protocol.chain.transaction_log import DISPLACED, VOID, Transaction, TransactionLog
from protocol.errors import InsufficientFunds, LockHeld, PreflightError, RpcUnavailable, TransactionReverted
from protocol.identity import Key

log = logging.getLogger(__name__)

_REMEMBERED_SECONDS = 86_400.0  # for which what landed and was told to nobody is not done again by the same command


class CommandSender(Sender):
    """Opened with `open_sender`. What it has done counts as told once the command has ended well: `tell`.

    What adds to what is there, a payment above all, is told of by a command alone that asks for the same. What sets a state, or takes what is due,
    is done anew by a command that asks for it, for others may have set it back meanwhile; an earlier deed is told of where the contract refuses that.
    """

    def __init__(self, chain: Chain, key: Key, journal: TransactionLog, limits: SendLimits, asker: str = "") -> None:
        """`asker`: for whom the command acts; an equal deed for another is another deed."""
        super().__init__(chain, key, journal, limits)
        self._asker = asker
        self._done: set[int] = set()  # by this command, or found done when it asked; asked for again it is another deed
        self._found: set[int] = set()  # done before for whom this command acts
        self._is_overridden = False

    def send(self, call: Call, *, name: str | None = None) -> Sent:
        sent = super().send(call, name=name)
        return super().send(call, name=name) if self._is_overridden else sent

    def _carry_out(self, transaction: Transaction, call: Call, *, fresh: bool) -> Sent:
        """Where an earlier deed was waited for, which nobody could tell of, another that was asked for after it may have set its state back."""
        sent = super()._carry_out(transaction, call, fresh=fresh)
        is_earlier = not fresh and transaction.name is None and not call.adds
        self._is_overridden = is_earlier and self._journal.sets_after(self._journal.again(transaction))
        return sent

    def resume(self) -> None:
        """Ends what an earlier command began. Raises what Sender.send does."""
        with self._lock:
            self._tell_of_displaced()
            self._withhold_leaves()
            self._recover(lambda _: True)
            given = to_take_back(self.chain, self.key.address, self._signed())
            for transaction in self._untold():
                if transaction.hash is None:
                    continue
                is_old = self._is_old(transaction)
                log.warning(
                    "an earlier command was interrupted while %s; that has landed, in transaction 0x%s%s",
                    transaction.doing,
                    transaction.hash.hex(),
                    ", more than a day ago: the same is done anew from now on" if is_old else "",
                )
                if is_old:
                    self._journal.tell([transaction.id])
                elif transaction.asker == self._asker:
                    self._found.add(transaction.id)
        for leave in given:
            try:
                self.send(taking_back(self.chain, leave))
            except TransactionReverted as error:  # of a token that is none of ours
                log.warning("%s", error)

    def _tell_of_displaced(self) -> None:
        untold = self._untold()
        for each in self._journal.displaced():
            alike = (other for other in untold if (other.content, other.asker) == (each.content, each.asker))
            if self._landing.confirmed(each, anywhere=True) is not None:
                self._journal.reopen(each)  # by a reorg that was deeper than any should be
            elif any(other.id > each.id for other in alike):
                self._journal.finish(each, VOID)  # begun in its place, by a command that was killed before it noted so
            else:
                said = self._not_done(each)
                log.warning("%s; %s", said, said.hint)

    def _signed(self) -> list[bytes]:
        """All signed forms of what nobody was told of."""
        return [each.raw for untold in self._journal.untold() for each in self._journal.attempts(untold)]

    def _withhold_leaves(self) -> None:
        """What an earlier command signed, that somebody may take tokens, is not sent where no contract of ours lies there by what endpoints say now: its
        nonce is used up by nothing, unless it has landed already."""
        for transaction in self._journal.pending():
            spender = spender_of(transaction.data)
            if spender is None or transaction.target is None or is_ours(self.chain, spender):
                continue
            log.warning("an earlier command signed that %s may take tokens, which is no contract of ours", spender)
            if self._landing.confirmed(transaction, anywhere=True) is not None:
                continue
            doing = f"withholding leave from {spender}"
            nothing = replace(transaction, doing=doing, target=self.key.address, data=b"", gas=NOTHING_GAS)
            self._journal.renew(nothing, self._signer.instead(nothing, self._journal.attempts(transaction)[-1]))

    def _is_old(self, transaction: Transaction) -> bool:
        """By this machine's clock, which may have been set, and by the chain's as well."""
        if self._clock.wall() - transaction.created < _REMEMBERED_SECONDS or transaction.block is None:
            return False
        landed = transaction.block
        with suppress(RpcUnavailable):
            ages = sorted(self.chain.answers("reading blocks", lambda one: one.block().time - one.block(landed).time))
            return ages[(len(ages) - 1) // 2] >= _REMEMBERED_SECONDS
        return False

    def let_go(self, doing: str) -> None:
        self._done |= {each.id for each in self._journal.untold() if each.id in self._found and each.doing == doing}

    def is_done(self, call: Call) -> bool:
        known = self._earlier(call, None)
        if known is None:
            return False
        return known.hash is not None or (known in self._late and self._seems_done(known))

    def _seems_done(self, transaction: Transaction) -> bool:
        """By what some endpoint shows, or by its nonce where none shows how it ended; `send` finds out whether it is so."""
        shown, hashes = self._landing.anywhere(transaction), self._journal.hashes(transaction)
        return self._finality.user(transaction.nonce, hashes) in hashes if shown is None else shown.succeeded

    def tell(self) -> None:
        """Notes that the command has said what it did, and what it found done: of what adds, only what it asked for."""
        found = [each.id for each in self._journal.untold() if each.id in self._found and not each.adds]
        self._journal.tell(self._done | set(found))
        for each in self._journal.displaced():  # all were said, by `resume` or when it was found
            if each.asker == self._asker or self._clock.wall() - each.created >= _REMEMBERED_SECONDS:
                self._journal.finish(each, VOID)

    def unfinished(self) -> list[str]:
        """What this command has signed and not told of, as words: "depositing stake"."""
        left = (*self._journal.pending(), *self._journal.untold())
        known = {each.id: each.doing for each in left if not is_filling(each) and each.state != DISPLACED}
        return [doing for number, doing in sorted(known.items()) if number not in self._found]

    def _earlier(self, call: Call, name: str | None) -> Transaction | None:
        known = super()._earlier(call, name)
        is_again = known is not None and known.hash is not None and not call.adds
        return None if is_again and not self._would_be_refused(call) else known

    def _would_be_refused(self, call: Call) -> bool:
        try:
            with self.chain.errors(call.doing):
                self._drafts.gas_of(call.doing, self.encode(call), call.room, of_most=True)
        except (TransactionReverted, InsufficientFunds):  # of tokens
            return True
        return False

    def _tell(self, transaction: Transaction) -> None:
        self._done.add(transaction.id)

    def _displaced(self, transaction: Transaction) -> None:
        """What an earlier command began is signed again for whoever asks for it: who asks for something else, or for nothing more, may mean the opposite.
        What somebody was told is so again, unless that set a state, and other deeds came after it."""
        was_told = self._was_told(transaction)
        if self._is_wanted(transaction) or (
            was_told and (transaction.adds or not self._journal.sets_after(transaction))
        ):
            return
        is_nothing = transaction.content == (self.key.address, b"", 0)  # it was to use its nonce up
        self._journal.finish(transaction, VOID if is_nothing else DISPLACED)
        if is_nothing:
            raise NotDone(f"{transaction.doing}: nothing of it can land any more", hint="that leave was never given")
        raise self._not_done(transaction)

    def _not_done(self, displaced: Transaction) -> NotDone:
        whose = f" for {displaced.asker}" if displaced.asker not in ("", self._asker) else ""
        what = f"{displaced.doing}{whose}, which an earlier command had signed"
        was = "it is in the chain no more" if self._was_told(displaced) else "it was not done"
        return NotDone(
            f"{what}: {was}, for something else used its nonce",
            hint="this command does it only if it asks for the same",
        )

    def _was_told(self, transaction: Transaction) -> bool:
        return transaction.id in self._done or all(each.id != transaction.id for each in self._journal.untold())

    def _begin(self, call: Call, name: str | None) -> Transaction:
        begun = super()._begin(call, name)
        for each in self._journal.displaced():
            if self._is(each, call, name):  # this is done in its place
                self._journal.finish(each, VOID)
        return begun

    def _untold(self) -> list[Transaction]:
        return [each for each in super()._untold() if each.id not in self._done and each.state != DISPLACED]

    def _is(self, transaction: Transaction, call: Call, name: str | None) -> bool:
        return transaction.asker == self._asker and super()._is(transaction, call, name)


def open_sender(chain: Chain, key: Key, keystore: Path, limits: SendLimits, asker: str = "") -> CommandSender:
    """A sender that has ended what an earlier command with this keystore began. `asker`: as of CommandSender.

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
    sender = CommandSender(chain, key, journal, limits, asker)
    try:
        sender.resume()
    except BaseException:
        sender.close()
        raise
    return sender


def journal_path(chain: Chain, key: Key, keystore: Path) -> Path:
    """Where the journal of commands lies. Named by the chain's own first block too: a nonce means nothing on another chain.

    Another name would forget what was done. So it is begun where more than half of the endpoints name that block. Raises as `first_block` does.
    """

    def path(first: bytes) -> Path:
        chain_name = keccak(first + chain.chain_id.to_bytes(32, "big")).hex()[:8]
        return keystore.resolve().with_name(f"transactions-{key.address}-{chain_name}.sqlite")

    return path(first_block(chain, is_known=lambda first: path(first).exists()))
