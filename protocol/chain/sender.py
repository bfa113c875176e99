"""Sends the transactions of one key: each exactly once, whatever dies in between.

A transaction is signed and written into the journal before it is sent. Its nonce is counted from the chain and the journal,
never read back as "pending" from an endpoint, and none that the journal has given out is given out again. What follows from an
answer that is wrong is at most that the same signed bytes are sent again, which the chain takes once. A transaction that is not
mined in time is replaced by itself at a higher fee; one that a reorg took back is sent again.

Two things would have a deed done twice: another nonce for it, and another transaction in place of one that failed. Both wait for
what finality.py believes: that something else used the nonce, that the failure is in the chain for good. A success is told once
a second endpoint confirms it (landing.py), and looked at again by later calls until it is as deep. A caller that names its
transaction can repeat it after a crash: it lands once. What all endpoints refused for want of gas money is told as not done, and
may land all the same: dropped.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol import metrics
from protocol.chain import gas, networks
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.drafts import Drafts
from protocol.chain.dropped import DroppedTransactions
from protocol.chain.ethereum import (
    TransactionReceipt,
    account_count,
    balance_request,
    created_by,
    gas_request,
    newest_block,
    nonce_of,
)
from protocol.chain.finality import LONG_AGO, Finality
from protocol.chain.gaps import NonceGaps, is_filling
from protocol.chain.landing import Landing
from protocol.chain.late import LateTransactions
from protocol.chain.look_back import LookBack, landing_of
from protocol.chain.pushing import Pushed, Refusal, push
from protocol.chain.signer import SendLimits, Signer
from protocol.chain.transaction_log import (
    DROPPED,
    FAILED,
    MINED,
    PENDING,
    SETTLED,
    UNKNOWN,
    VOID,
    Attempt,
    Content,
    Transaction,
    TransactionLog,
)
from protocol.clock import SYSTEM, Clock
from protocol.errors import (
    ChainError,
    DeadlineExceeded,
    FeeTooHigh,
    InsufficientFunds,
    RpcUnavailable,
    TransactionReverted,
)
from protocol.identity import Key

if TYPE_CHECKING:
    from protocol.chain.writing import Writer

log = logging.getLogger(__name__)

_POLL_SECONDS, _POLL_SECONDS_MAX = 0.01, 1.0
_POLL_SECONDS_PUBLIC = 0.25  # the least where there are reorgs: no such chain has a block more often
_USUAL_SECONDS_MAX = 4.0
_FIRST_LOOK = 0.6  # of the usual time to land: one and a half looks a transaction, and half a second too late
_RESEND_SECONDS = 5.0
_MAY_LAND = "it may still land; the journal knows it"
_NEW_SECONDS = 60.0
"""For which a transaction is newer than whatever used its nonce so long ago that endpoints have forgotten the states: 64 blocks, of no less than a second each."""
_ALONE_SECONDS = 10.0
"""After which an earlier transaction is left that one endpoint alone shows in the chain, or that all refuse."""

_TRANSACTIONS = metrics.counter(
    "murmur_transactions_total",
    "Transactions of this process's keys: mined, reverted, replaced at a higher fee, late (not mined within the deadline).",
    "outcome",
)
_TRANSACTIONS.from_zero("mined", "reverted", "replaced", "late")


@dataclass(frozen=True)
class Sent:
    """A transaction that was mined. `events` are those of our contracts, in order."""

    hash: bytes
    block: int
    gas_used: int
    events: tuple[Any, ...]
    contract: str | None = None
    """Address of the contract it deployed."""

    def event(self, kind: type) -> Any:
        """The first event of a kind; ChainError when there is none, for then the contract is not ours."""
        for event in self.events:
            if isinstance(event, kind):
                return event
        raise ChainError(f"transaction 0x{self.hash.hex()} emitted no {kind.__name__}")


class NotDone(RpcUnavailable):
    """Nothing of a transaction can land any more, and it is not signed again unless somebody asks for it."""


class _Moment(NamedTuple):
    """Seconds, by this machine's clocks."""

    monotonic: float
    wall: float


class Sender:
    """May be shared by threads; transactions go out one after the other."""

    def __init__(
        self, chain: Chain, key: Key, journal: TransactionLog | None = None, limits: SendLimits | None = None,
        *, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        self.chain = chain
        self.key = key
        self._journal = journal or TransactionLog()
        self._landing = Landing(chain, self._journal)
        self._limits = limits or SendLimits()
        self._clock = clock
        self._signer = Signer(chain, key, self._limits, clock)
        self._lock = threading.Lock()
        self._asker = ""
        self._is_wanted: Callable[[Transaction], bool] = lambda _: False  # by whoever asks for something now
        self._refusal = ""  # the last words of most endpoints for not taking what is being sent
        self._used = 0  # transactions of the key in the chain, as of the last look
        self._late = LateTransactions(clock)
        self._usual = 0.0  # seconds that the last ones took to land, the slow ones rather than the quick

    def close(self) -> None:
        self._journal.close()

    @cached_property
    def _writer(self) -> Writer:
        from protocol.chain.writing import Writer

        return Writer(self.chain.provider, self.key.address)

    @cached_property
    def _look_back(self) -> LookBack:
        return LookBack(self.chain, self._journal, self._landing, self._finality)

    @cached_property
    def _dropped(self) -> DroppedTransactions:
        return DroppedTransactions(self._journal, self._finality)

    @cached_property
    def _drafts(self) -> Drafts:
        return Drafts(self.chain, self.key.address, self._signer, self._journal, self._clock)

    @cached_property
    def _gaps(self) -> NonceGaps:
        return NonceGaps(self._journal, self._signer, self.key.address)

    @cached_property
    def _finality(self) -> Finality:
        depth = self._limits.depth
        return Finality(self.chain, self.key.address, networks.depth(self.chain.chain_id) if depth is None else depth)

    def send(self, call: Call, *, name: str | None = None) -> Sent:
        """Sends and waits until mined. The same `name` again returns what it did the first time, and does nothing. Without a name the same
        content does, once, where nobody was told that it was done: this call raised, or the process died in it.

        Raises TransactionReverted, InsufficientFunds, FeeTooHigh, RpcUnavailable or DeadlineExceeded.
        """
        with self._lock, self.ahead(call):
            self._is_wanted = lambda transaction: self._is(transaction, call, name)
            self._recover(self._is_wanted)
            known = self._earlier(call, name)
            transaction = known or self._begin(call, name)
            try:
                sent = self._carry_out(transaction, call, fresh=known is None)
            except _UnknownOutcome:
                # the last before whoever asked is told so: from now on the same is another deed
                self._journal.finish(transaction, VOID)
                raise
            self._tell(transaction)
            return sent

    def _carry_out(self, transaction: Transaction, call: Call, *, fresh: bool) -> Sent:
        if transaction.state == UNKNOWN:
            raise self._unknown(transaction)
        if transaction.state in (MINED, SETTLED):
            return self._result(transaction, self._landing.known(transaction))
        # one that is pending still is in the chain, and its receipt was nowhere
        again = self._take_up(transaction, call) if transaction.state == DROPPED else transaction
        return self._finish(again, fresh=fresh)

    def _tell(self, transaction: Transaction) -> None:
        """Its sender is told that it is done: from now on the same is another deed, where it has no name."""
        self._journal.tell([transaction.id])

    def ahead(self, call: Call) -> AbstractContextManager[None]:
        """Asks together what `send` is going to ask before it sends, the newest block among it."""
        asked = [newest_block(), account_count(self.key.address)]
        for transaction in self._look_back.unsettled(1):
            asked += self._finality.requests(*landing_of(transaction))
        if not self._journal.pending():  # else those come first, and may change what this one does
            asked += [gas_request(self._signer.fields(*self.encode(call))), balance_request(self.key.address)]
        return self.chain.ahead(*asked)

    def let_go(self, doing: str) -> None:
        """What an earlier command sent of this kind has served its purpose, as the chain shows: an equal call is another deed from now on."""

    def is_done(self, call: Call) -> bool:
        """Whether `send` would only tell what this very call has done, for whoever asks first if it can be made."""
        return False

    def recover(self) -> int:
        """Brings to an end what an earlier life of this process began, or a reorg took back; returns how many."""
        with self._lock:
            return len(self._recover())

    def encode(self, call: Call) -> Content:
        """(address called, None to deploy; calldata; wei that goes along)"""
        return call.function.address, call.function.data, call.function.value

    def next_nonce(self) -> int:
        """Nonce of the next transaction, when nothing else uses the key."""
        with self._lock:
            self._recover()
            return self._nonce()

    def estimate(self, call: Call) -> tuple[int, int]:
        """(gas, most it can cost in wei) of a call, without sending it."""
        with self.chain.errors(call.doing):
            needed = self._drafts.gas(call, self.encode(call))
            return needed, needed * self._signer.fee()

    # ---- a transaction's life ------------------------------------------------------------------------------------------

    def _earlier(self, call: Call, name: str | None) -> Transaction | None:
        """The transaction that did this, or may still do it."""
        if name is None:
            return next((each for each in self._untold() if self._is(each, call, name)), None)
        named = self._journal.named(name)
        return None if named is None or named.state in (FAILED, VOID) else named

    def _untold(self) -> list[Transaction]:
        return self._journal.untold()

    def _is(self, transaction: Transaction, call: Call, name: str | None) -> bool:
        """Whether a transaction was signed for this call."""
        return transaction.name == name and (name is not None or transaction.content == self.encode(call))

    def _begin(self, call: Call, name: str | None) -> Transaction:
        """Estimates, signs and writes down; nothing is sent yet. A call that would revert, or cannot be paid for, never gets a nonce."""
        draft, first = self._draft(call, name, self._nonce())
        return self._journal.begin(draft, first)

    def _take_up(self, dropped: Transaction, call: Call) -> Transaction:
        """Signs once more, with the same nonce, what was refused for want of gas money; unless it has landed all the same."""
        if self._landing.confirmed(dropped, anywhere=True) is not None:
            return self._dropped.landed(dropped)
        if dropped.nonce < self._nonce():
            raise RpcUnavailable(
                f"{call.doing}: an earlier transaction for it was refused, and may still land",
                hint="try again in a minute",
            )
        draft, attempt = self._draft(call, dropped.name, dropped.nonce)
        self._fill_gaps(dropped.nonce)
        self._journal.renew(taken := replace(draft, id=dropped.id), attempt)
        return taken

    def _fill_gaps(self, nonce: int) -> list[Transaction]:
        """Sends something with each nonce below this one that nothing uses, as most endpoints have it; returns it."""
        used = self._finality.count()
        filling = self._gaps.fill(used, nonce) if used is not None else []
        for transaction in filling:
            self._push(transaction, everywhere=True)
        return filling

    def _keep_filling_below(self, nonce: int) -> None:
        refusal = self._refusal
        for each in self._journal.pending():
            if is_filling(each) and each.nonce < nonce:
                with suppress(RpcUnavailable, FeeTooHigh, InsufficientFunds):
                    self._keep_filling(each)
        self._refusal = refusal

    def _keep_filling(self, filling: Transaction) -> None:
        if self._gaps.is_needed(filling, self._finality.count() or 0):
            self._push(filling, everywhere=True)

    def _draft(self, call: Call, name: str | None, nonce: int) -> tuple[Transaction, Attempt]:
        return self._drafts.make(call, self.encode(call), name, nonce, self._asker)

    def _finish(self, transaction: Transaction, *, fresh: bool = False, patience: float | None = None) -> Sent:
        """Sends, watches, replaces, until the transaction has landed. `fresh`: no endpoint has seen it yet. `patience`: seconds after which one that
        too few endpoints show, or that all refuse, is left; and one that failed as far as is known raises _NoReceipt at once, for its nonce is
        used. None: waits for all of this, too."""
        begun, resend_at, self._refusal = self._clock.monotonic(), 0.0, ""
        since = self._now() if fresh else None
        least = _POLL_SECONDS_PUBLIC if self._finality.depth else _POLL_SECONDS
        pause = max(least, _FIRST_LOOK * self._usual)  # not all of it, or a slow one would slow down all later ones
        while True:
            is_due = self._clock.monotonic() >= resend_at
            landed = None if fresh else self._landing.confirmed(transaction, anywhere=is_due)
            if is_due:
                resend_at = self._clock.monotonic() + _RESEND_SECONDS
                if landed is None:
                    self._keep_filling_below(transaction.nonce)
                    is_first = fresh or (since is not None and self._is_new(since))
                    pushed = self._push(transaction, everywhere=not fresh, is_first=is_first)
                    if pushed != transaction:  # it was not sent yet with this nonce, or gas
                        resend_at = self._clock.monotonic()
                    fresh = pushed.nonce != transaction.nonce
                    transaction = pushed
                    if fresh:  # nothing is known of this nonce yet
                        since = self._now()
                        patience = None if patience is None else since.monotonic - begun + _ALONE_SECONDS
            if landed is not None and (landed.succeeded or self._has_failed(landed)):
                self._usual = min(_USUAL_SECONDS_MAX, max(self._clock.monotonic() - begun, 0.8 * self._usual))
                return self._close(transaction, landed)
            waited = self._clock.monotonic() - begun
            if (problem := self._problem(transaction, landed, waited, patience)) is not None:
                raise problem
            self._clock.sleep(pause)
            pause = min(_POLL_SECONDS_MAX, max(1.6 * pause, _FIRST_LOOK * self._usual))

    def _now(self) -> _Moment:
        return _Moment(self._clock.monotonic(), self._clock.wall())

    def _is_new(self, since: _Moment) -> bool:
        """By both clocks: one stands still while a machine sleeps, and the other may have been set."""
        now = self._now()
        return now.monotonic - since.monotonic < _NEW_SECONDS and abs(now.wall - since.wall) < _NEW_SECONDS

    def _has_failed(self, receipt: TransactionReceipt) -> bool:
        """Whether a transaction has, for good."""
        outcome = self._finality.outcome(receipt.hash, receipt.block)
        return outcome is not None and not outcome.succeeded

    def _problem(
        self, transaction: Transaction, failed: TransactionReceipt | None, waited: float, patience: float | None
    ) -> RpcUnavailable | DeadlineExceeded | None:
        """Why a transaction that has not succeeded is not waited for any longer, `waited` seconds being enough. `failed`: its receipt."""
        is_late = waited > self._limits.deadline
        if is_late:
            _TRANSACTIONS.add(outcome="late")
        if failed is not None:
            said = "it seems to have failed, in a block that is not sure yet"
            return self._no_receipt(transaction, said) if is_late or patience is not None or self._too_few else None
        if not is_late and (patience is None or waited < patience):
            return None
        if self._landing.anywhere(transaction) is not None:
            return self._no_receipt(transaction, "by some endpoints it is in the chain, and too few others show it")
        if not is_late and not self._refusal and not self._is_used(transaction):
            return None
        hashes = self._journal.hashes(transaction)
        if is_late and self._finality.user(transaction.nonce, hashes) in hashes:
            return self._no_receipt(transaction, "it is in the chain, and no endpoint shows whether it succeeded")
        said = f"; an endpoint says: {self._refusal[:200]}" if self._refusal else ""
        if is_late:
            with suppress(RpcUnavailable, FeeTooHigh, InsufficientFunds):
                if filling := self._fill_gaps(transaction.nonce):
                    said += f"; nothing used nonce {filling[0].nonce} before it, which is being filled"
        return DeadlineExceeded(
            f"{transaction.doing}: not mined within {min(waited, self._limits.deadline):.0f} s{said}",
            hint=_MAY_LAND,
        )

    @property
    def _too_few(self) -> bool:
        """Whether so many endpoints have been silent for a minute that no majority can tell what became of a transaction."""
        return not self.chain.is_majority(len(self.chain.singles) - len(self.chain.provider.gone()))

    def _unknown(self, transaction: Transaction) -> _UnknownOutcome:
        """Of what nobody can tell any more. Whoever asks for it is told so before the same is another deed."""
        self._journal.finish(transaction, UNKNOWN)
        return _UnknownOutcome(
            f"{transaction.doing}: nonce {transaction.nonce} was used long ago, and no endpoint shows what used it: it may have been done",
            hint="look whether it was done before you do it again",
        )

    def _displaced(self, transaction: Transaction) -> None:
        """Something else used its nonce, for good. Raises NotDone where it is not to be signed with another."""

    def _no_receipt(self, transaction: Transaction, said: str) -> _NoReceipt:
        instead = self._instead(self.chain.provider.gone())
        return _NoReceipt(
            f"{transaction.doing}: {said}",
            hint=f"more than half of the endpoints must show it: {instead}" if instead else _MAY_LAND,
        )

    def _instead(self, away: list[str]) -> str:
        """What to do about endpoints that do not answer; empty where there are none."""
        return f"name another endpoint in chain.rpc in place of {', '.join(away)}, if it stays away" if away else ""

    def _push(self, transaction: Transaction, *, everywhere: bool, is_first: bool = False) -> Transaction:
        """Sends the newest attempt, or a dearer one when that has waited too long. Returns it with its nonce and gas of now. `is_first`: as of
        _refused."""
        newest = self._journal.attempts(transaction)[-1]
        try:
            if abs(self._clock.wall() - newest.signed) > self._limits.stuck:  # the clock may have been set
                newest = self._replace(transaction, newest)
            said = push(self.chain, newest.raw, transaction.doing, everywhere=everywhere)
            self._refusal = "" if said.taken else self._refusal
            return self._refused(transaction, newest, said, is_first=is_first) if said.is_refused else transaction
        except (_Refused, NotDone, _UnknownOutcome, _NoReceipt):
            raise
        except RpcUnavailable as error:
            log.warning("%s; trying again", error)
        return transaction

    def _refused(self, transaction: Transaction, attempt: Attempt, said: Pushed, *, is_first: bool) -> Transaction:
        """What follows where most endpoints that answer do not take a raw transaction. `is_first`: it has its nonce since a moment ago, so what used
        that long ago is something else."""
        doing, unpaid = transaction.doing, said.of(Refusal.UNPAID)
        is_dead = said.mostly(Refusal.UNPAID) and self._is_used(transaction)  # some look at the money before the nonce
        gone = len(self.chain.provider.gone())
        if (
            said.mostly(Refusal.UNPAID)
            and not is_dead
            and unpaid + said.taken + gone >= len(self.chain.singles)
            and not (said.taken and self._is_paid(attempt, transaction))
        ):
            self._drop(transaction)
        # of a filling it does not matter by what
        if (said.of(Refusal.USED) or is_dead) and not is_filling(transaction):
            nonce = transaction.nonce
            user = self._finality.user(nonce, self._journal.hashes(transaction), self._journal.signed_with(nonce))
            if user == LONG_AGO and not is_first:
                raise self._unknown(transaction)
            if user is not None and user not in self._journal.hashes(transaction):
                self._displaced(transaction)
                return self._renew(transaction, user)
            if user is None and self._too_few and self._landing.confirmed(transaction, anywhere=True) is None:
                raise self._no_receipt(
                    transaction, "its nonce seems to be used, and too few endpoints are there to tell by what"
                )
        if said.mostly(Refusal.CHEAP) and self._replace(transaction, attempt) is not attempt:
            return transaction
        if said.mostly(Refusal.SMALL) and (enlarged := self._enlarge(transaction, attempt)) is not None:
            return enlarged
        if self.chain.is_majority(said.of(Refusal.SMALL)):
            error = said.refusals[Refusal.SMALL][0]
            raise _Refused(
                f"{doing}: the endpoints refuse the transaction: {str(error)[:200]}", hint=_MAY_LAND
            ) from error
        # for a moment, or for good, and one that says so may have taken it
        words = (said.refusals[kind][0] for kind in Refusal if said.mostly(kind))
        self._refusal = next(map(str, words), self._refusal)
        return transaction

    def _is_paid(self, attempt: Attempt, transaction: Transaction) -> bool:
        """Whether most endpoints show the means for it."""
        most = attempt.fee * (attempt.gas or transaction.gas) + transaction.value
        return gas.most_show(self.chain, self.key.address, most)

    def _drop(self, transaction: Transaction) -> None:
        """Gives up what no endpoint takes, so that nothing waits behind it, unless something does already. Raises InsufficientFunds."""
        if self._journal.next_nonce() == transaction.nonce + 1:
            self._journal.finish(transaction, DROPPED)
        refused = self._drafts.cannot_pay(transaction.doing)
        raise InsufficientFunds(str(refused), hint=f"{refused.hint}; what is signed may still land, and is then found")

    def _enlarge(self, transaction: Transaction, attempt: Attempt) -> Transaction | None:
        """Signs anew, with the same nonce, what has less gas than any node takes; None where it has as much as it needs. What would
        revert by now gets enough to land as a failure, for its nonce has to be used."""
        doing, target, data, room = transaction.doing, transaction.target, transaction.data, transaction.room
        try:
            with self.chain.errors(doing):
                needed = self._drafts.gas_of(doing, transaction.content, room)
        except TransactionReverted:
            needed = min(gas.intrinsic(target, data) + room, self._limits.gas)
        enlarged = replace(transaction, gas=needed)
        if enlarged.gas <= transaction.gas:
            return None
        log.warning("%s: %d gas were too few; trying %d", transaction.doing, transaction.gas, enlarged.gas)
        self._journal.renew(enlarged, self._signer.sign(enlarged, attempt.fee, attempt.tip))
        return enlarged

    def _replace(self, transaction: Transaction, attempt: Attempt) -> Attempt:
        dearer = self._signer.dearer(transaction, attempt)
        if dearer is not attempt:
            self._journal.add_attempt(transaction, dearer)
            _TRANSACTIONS.add(outcome="replaced")
            waited = self._clock.wall() - attempt.signed
            log.info("%s waits for %.0f s; offering %d wei per gas", transaction.doing, waited, dearer.fee)
        return dearer

    def _renew(self, transaction: Transaction, user: bytes) -> Transaction:
        """Something else used the nonce: nothing signed before can land any more. The journal keeps it all the same."""
        if (landed := self._dropped.using(user)) is not None:
            self._look_back.look_at(landed)
        self._used = max(self._count(), self._finality.count() or 0)  # the best endpoint named one too low
        nonce = self._nonce()
        log.warning("%s: nonce %d was used by something else; trying %d", transaction.doing, transaction.nonce, nonce)
        renewed = replace(transaction, nonce=nonce)
        self._journal.renew(renewed, self._signer.sign(renewed, self._signer.fee()))
        return renewed

    def _close(self, transaction: Transaction, receipt: TransactionReceipt) -> Sent:
        landed, block = receipt.hash, receipt.block
        if receipt.succeeded:
            self._journal.finish(transaction, MINED, landed, block)
            _TRANSACTIONS.add(outcome="mined")
            return self._result(transaction, receipt)
        self._journal.finish(transaction, FAILED, landed, block)
        _TRANSACTIONS.add(outcome="reverted")
        given = (
            next((each.gas for each in self._journal.attempts(transaction) if each.hash == landed), 0)
            or transaction.gas
        )
        if receipt.gas_used * 64 >= given * 63:  # what a contract calls may use no more
            raise RpcUnavailable(
                f"{transaction.doing}: it ran out of gas: others' transactions came first, or an endpoint estimated too little",
                hint="try again",
            )
        with self.chain.errors(transaction.doing):
            self._writer.call(
                transaction.target, transaction.data, given, block, transaction.value
            )  # raises the reason
        raise TransactionReverted(f"{transaction.doing}: transaction 0x{landed.hex()} failed")

    def _recover(self, is_asked: Callable[[Transaction], bool] = lambda _: False) -> list[Transaction]:
        """Ends what was begun, and returns it. What has its nonce used, by itself or by something else, is left after a while."""
        self._used = self._count()
        self._look_back.look(self._used)
        self._dropped.look(self._nonce())
        begun, patience = self._journal.pending(), _ALONE_SECONDS
        passed_over = self._late.passed_over((each for each in begun if not is_asked(each)), self._used)
        for transaction in begun:
            if transaction.id in passed_over:
                continue
            if is_filling(transaction):
                self._keep_filling(transaction)
                continue
            asked, begun_at = is_asked(transaction), self._clock.monotonic()
            try:
                left = _ALONE_SECONDS
                if transaction.nonce < self._used:
                    left = 0.0 if transaction in self._late and not asked else patience
                self._finish(transaction, patience=left)
            except (TransactionReverted, InsufficientFunds) as error:
                now = self._journal.again(transaction)
                if now.state == PENDING and not self._is_used(now):
                    raise  # it cannot be paid for, and nothing after it can be sent
                log.warning("recovered transaction failed: %s", error)
            except (NotDone, _UnknownOutcome) as error:
                log.warning("%s; %s", error, error.hint)
            except _NoReceipt as error:
                self._late.note(transaction, was_waited_for=False)
                patience = 0.0  # the next is not waited for as well
                log.warning("%s", error)
            except DeadlineExceeded as error:
                if not self._is_used(self._journal.again(transaction)):  # it may have another nonce by now
                    raise
                waited = self._clock.monotonic() - begun_at
                self._late.note(transaction, was_waited_for=waited >= self._limits.deadline)
                patience = 0.0
                log.warning("%s; its nonce is used, so nothing waits behind it", error)
            except RpcUnavailable as error:
                if asked or self._journal.again(transaction).state != FAILED:
                    raise
                log.warning("recovered transaction failed: %s", error)
        return begun

    def _is_used(self, transaction: Transaction) -> bool:
        """Whether more than half of the endpoints have a transaction with its nonce in the chain."""
        return transaction.nonce < (self._finality.count() or 0)

    # ---- reading -------------------------------------------------------------------------------------------------------

    def _result(self, transaction: Transaction, receipt: TransactionReceipt) -> Sent:
        with self.chain.errors(transaction.doing):
            events = tuple(event for entry in receipt.logs if (event := self.chain.decode(entry)) is not None)
        return Sent(receipt.hash, receipt.block, receipt.gas_used, events, self._made(transaction, receipt.hash))

    def _made(self, transaction: Transaction, landed: bytes) -> str | None:
        """Address of the contract that a transaction deployed: it follows from the sender and the nonce, whatever a receipt says."""
        if transaction.target is not None:
            return None
        (raw,) = (attempt.raw for attempt in self._journal.attempts(transaction) if attempt.hash == landed)
        return created_by(self.key.address, nonce_of(raw))

    def _count(self) -> int:
        """Transactions of this key that are in the chain: the next nonce, but for what is pending. What is signed with one too low gets another;
        with one too high it never lands, nor does anything after it."""
        expected = max(self._used, self._journal.next_nonce())
        is_known = expected > 0  # a new journal can tell of no count that it is too low
        account = self.key.address
        count = next(self.chain.answers("reading the nonce", lambda one: one.ethereum.transaction_count(account)))
        is_alone = len(self.chain.singles) == 1
        if count <= expected and (is_known or is_alone):
            return count
        by_most = self._finality.count()  # of a single one: what it says a second time
        if by_most is None and (is_alone or not is_known or not self._too_few):
            who = self.chain.rpc if is_alone else "more than half of the endpoints"
            raise RpcUnavailable(
                f"{who} must say how many transactions {account} has sent",
                hint=self._instead(self.chain.provider.silent()),
            )
        return expected if by_most is None else by_most

    def _nonce(self) -> int:
        return max(self._used, self._journal.next_nonce())


class _NoReceipt(RpcUnavailable):
    """What became of a transaction that has landed is not known yet. It stays pending, and nothing waits behind it."""


class _UnknownOutcome(RpcUnavailable):
    """Whether a transaction has landed can not be known any more. It is given up, and nothing of it can land now. It is noted as UNKNOWN."""


class _Refused(RpcUnavailable):
    """No endpoint takes a transaction, whatever is changed about it."""
