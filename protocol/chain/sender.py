"""Sends the transactions of one key: each exactly once, whatever dies in between.

A transaction is signed and written into the journal before it is sent. The nonce is counted from the chain and the journal,
never read back as "pending" from an endpoint. A transaction that is not mined in time is replaced by itself at a higher fee;
one whose nonce something else took gets a new nonce, and of several endpoints no single one decides that it was
(docs/decisions/0013); one that a reorg took back is sent again. A caller that names its transaction can repeat it after a crash:
it lands once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eth_utils import keccak

from protocol import metrics
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.endpoints import SETTLED_BLOCKS, OneEndpoint
from protocol.chain.ethereum import RpcRefusal, TransactionReceipt
from protocol.chain.transaction_log import DROPPED, FAILED, MINED, PENDING, Attempt, Transaction, TransactionLog
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

_GAS_HEADROOM = 1.25
_BUMP = 1.25  # nodes want at least 10 % more before they replace a transaction
_TIP = 1_000_000  # 0.001 gwei: enough on Base, whose sequencer orders by arrival
_POLL_SECONDS, _POLL_SECONDS_MAX = 0.01, 1.0
_RESEND_SECONDS = 5.0

_TRANSACTIONS = metrics.counter(
    "murmur_transactions_total",
    "Transactions of this process's keys: mined, reverted, replaced at a higher fee, late (not mined within the deadline).",
    "outcome",
)


@dataclass(frozen=True)
class SendLimits:
    deadline: float = 120.0
    """Seconds from sending to being mined; afterwards the transaction stays in the journal and may still land."""
    stuck: float = 30.0
    """Seconds without being mined after which it is sent again at a higher fee."""
    gas: int = 16_000_000
    """A call that needs more gas is refused."""
    fee: int = 50_000_000_000
    """Most wei per gas that a transaction may offer, the first attempt as well as a replacement."""
    settled: int = SETTLED_BLOCKS
    """Blocks for which a used nonce must have been used, and no receipt of ours be known, before it counts as somebody else's."""


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


class Sender:
    """May be shared by threads; transactions go out one after the other."""

    def __init__(
        self, chain: Chain, key: Key, journal: TransactionLog | None = None, limits: SendLimits | None = None,
        *, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        self.chain = chain
        self.key = key
        self._journal = journal or TransactionLog()
        self._limits = limits or SendLimits()
        self._clock = clock
        self._lock = threading.Lock()

    def close(self) -> None:
        self._journal.close()

    @cached_property
    def _writer(self) -> Writer:
        from protocol.chain.writing import Writer

        return Writer(self.chain.provider, self.key.address)

    @cached_property
    def _writers(self) -> list[tuple[Chain, Writer]]:
        """Every endpoint by itself."""
        from protocol.chain.writing import Writer

        return [
            (one, Writer(OneEndpoint(self.chain.provider, one.place), self.key.address)) for one in self.chain.singles
        ]

    def send(self, call: Call, *, name: str | None = None) -> Sent:
        """Sends and waits until mined. The same `name` again returns what it did the first time, and does nothing.

        Raises TransactionReverted, InsufficientFunds, FeeTooHigh, RpcUnavailable or DeadlineExceeded.
        """
        with self._lock:
            self._recover()
            known = self._journal.named(name) if name is not None else None
            if known is not None and known.state == MINED and known.hash is not None:
                return self._result(known, self._known_receipt(known))
            return self._finish(self._begin(call, name), fresh=True)

    def is_done(self, call: Call) -> bool:
        """Whether `send` would only tell what this very call has done, for whoever asks first if it can be made."""
        return False

    def recover(self) -> int:
        """Brings to an end what an earlier life of this process began, or a reorg took back; returns how many."""
        with self._lock:
            return len(self._recover())

    def encode(self, call: Call) -> tuple[str | None, bytes, int]:
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
            gas = int(self._writer.estimate_gas(call.function) * _GAS_HEADROOM)
            return gas, gas * self._fee()

    # ---- a transaction's life ------------------------------------------------------------------------------------------

    def _begin(self, call: Call, name: str | None) -> Transaction:
        """Estimates, signs and writes down; nothing is sent yet. A call that would revert never gets a nonce."""
        with self.chain.errors(call.doing):
            gas = int(self._writer.estimate_gas(call.function) * _GAS_HEADROOM)
            if gas > self._limits.gas:
                raise TransactionReverted(
                    f"{call.doing} needs {gas} gas, more than the cap of {self._limits.gas}",
                    hint="raise chain.gas_max if this is right",
                )
            (target, data, value), nonce, fee = self.encode(call), self._nonce(), self._fee()
        draft = Transaction(0, name, call.doing, nonce, target, data, gas, PENDING, None, value)
        return self._journal.begin(name, call.doing, nonce, target, data, gas, self._sign(draft, fee), value)

    def _finish(self, transaction: Transaction, *, fresh: bool = False) -> Sent:
        """Sends, watches, replaces, until the transaction has landed. `fresh`: no endpoint has seen it yet."""
        until, pause, resend_at = self._clock.monotonic() + self._limits.deadline, _POLL_SECONDS, 0.0
        while True:
            landed = None if fresh else self._landed(transaction)
            if landed is not None:
                return self._close(transaction, landed)
            if self._clock.monotonic() >= resend_at:
                if not fresh and (landed := self._landed_anywhere(transaction)) is not None:
                    return self._close(transaction, landed)
                transaction = self._push(transaction, fresh)
                fresh = False
                resend_at = self._clock.monotonic() + _RESEND_SECONDS
            if self._clock.monotonic() > until:
                _TRANSACTIONS.add(outcome="late")
                raise DeadlineExceeded(
                    f"{transaction.doing}: not mined within {self._limits.deadline:g} s",
                    hint="it may still land; the journal knows it",
                )
            self._clock.sleep(pause)
            pause = min(_POLL_SECONDS_MAX, pause * 1.6)

    def _push(self, transaction: Transaction, fresh: bool) -> Transaction:
        """Sends the newest attempt, or a dearer one when that has waited too long. Returns it with its nonce of now."""
        newest = self._journal.attempts(transaction)[-1]
        try:
            if self._clock.wall() - newest.signed > self._limits.stuck:
                newest = self._replace(transaction, newest)
            with self.chain.errors(transaction.doing):
                try:
                    self._writer.send_raw(newest.raw)
                except RpcRefusal as error:
                    return self._refused(transaction, newest, error, fresh)
        except RpcUnavailable as error:
            log.warning("%s; trying again", error)
        return transaction

    def _refused(self, transaction: Transaction, attempt: Attempt, error: RpcRefusal, fresh: bool) -> Transaction:
        """An endpoint said no to a raw transaction."""
        text = str(error).lower()
        if "already known" in text or "already imported" in text:
            return transaction  # the very same one is there: what we wanted
        if "insufficient funds" in text:
            if fresh:  # else an endpoint may still hold it, and transactions with later nonces may wait behind it
                self._journal.finish(transaction, DROPPED)
            raise InsufficientFunds(
                f"{transaction.doing}: {self.key.address} cannot pay the gas",
                hint=f"send some ETH to {self.key.address}",
            ) from error
        if "nonce too low" in text or "nonce is too low" in text:
            if self._was_taken(transaction):
                return self._renew(transaction)
            return transaction
        if "underpriced" in text or "fee too low" in text or "max fee per gas less than block base fee" in text:
            self._replace(transaction, attempt)
            return transaction
        raise RpcUnavailable(
            f"{transaction.doing}: the endpoint refuses the transaction: {str(error)[:200]}"
        ) from error

    def _was_taken(self, transaction: Transaction) -> bool:
        """Whether the nonce went to a transaction that is none of ours, for good. All endpoints that answer must say so, and of
        several at least two: one that lies would have the deed done twice."""
        attempts, voices = self._journal.attempts(transaction), 0
        for one, writer in self._writers:
            try:
                with one.errors("reading the nonce"):
                    if not self._says_taken(one, writer, transaction.nonce, attempts):
                        return False
            except RpcUnavailable as error:
                log.warning("%s; whether nonce %d is used stays open", error, transaction.nonce)
            else:
                voices += 1
        return voices >= min(2, len(self._writers))

    def _says_taken(self, one: Chain, writer: Writer, nonce: int, attempts: Sequence[Attempt]) -> bool:
        """What one endpoint says. It may know that a nonce is used before it knows the receipt."""
        settled = one.block_number() - self._limits.settled
        if settled < 0 or writer.transaction_count(settled) <= nonce:
            return False
        return all(writer.receipt(attempt.hash) is None for attempt in attempts)

    def _replace(self, transaction: Transaction, attempt: Attempt) -> Attempt:
        fee = max(int(attempt.fee * _BUMP), _offer(self._base_fee()))
        if fee > self._limits.fee:
            log.warning("%s is stuck and its fee is at the cap of %d wei", transaction.doing, self._limits.fee)
            fee = max(attempt.fee, self._limits.fee)
        dearer = self._sign(transaction, fee, int(attempt.tip * _BUMP) + 1)
        self._journal.add_attempt(transaction, dearer)
        _TRANSACTIONS.add(outcome="replaced")
        log.info(
            "%s waits for %.0f s; offering %d wei per gas", transaction.doing, self._clock.wall() - attempt.signed, fee
        )
        return dearer

    def _renew(self, transaction: Transaction) -> Transaction:
        """Something else used the nonce: nothing signed before can land any more. The journal keeps it all the same."""
        nonce = self._nonce()
        log.warning("%s: nonce %d was used by something else; trying %d", transaction.doing, transaction.nonce, nonce)
        self._journal.renew(transaction, nonce, self._sign(_with_nonce(transaction, nonce), self._fee()))
        return _with_nonce(transaction, nonce)

    def _close(self, transaction: Transaction, receipt: TransactionReceipt) -> Sent:
        landed, block = receipt.hash, receipt.block
        if receipt.succeeded:
            self._journal.finish(transaction, MINED, landed, block)
            _TRANSACTIONS.add(outcome="mined")
            return self._result(transaction, receipt)
        self._journal.finish(transaction, FAILED, landed, block)
        _TRANSACTIONS.add(outcome="reverted")
        with self.chain.errors(transaction.doing):
            self._writer.call(
                transaction.target, transaction.data, transaction.gas, block, transaction.value
            )  # raises the reason
        raise TransactionReverted(f"{transaction.doing}: transaction 0x{landed.hex()} failed")

    def _recover(self) -> list[tuple[Transaction, Sent | None]]:
        """What was ended, and how; None where a contract refused it after all."""
        count = self._count()
        reopened = self._journal.reopen_from(count)
        if reopened:
            log.warning("a reorg took back %d transactions of %s; sending them again", reopened, self.key.address)
        ended: list[tuple[Transaction, Sent | None]] = []
        for transaction in self._journal.pending():
            try:
                ended.append((transaction, self._finish(transaction)))
            except TransactionReverted as error:
                log.warning("recovered transaction failed: %s", error)
                ended.append((transaction, None))
        return ended

    # ---- reading -------------------------------------------------------------------------------------------------------

    def _landed(self, transaction: Transaction) -> TransactionReceipt | None:
        """The receipt of whichever attempt was mined, None while none was."""
        for attempt in self._journal.attempts(transaction):
            with suppress(RpcUnavailable):
                if (receipt := self._receipt(attempt.hash)) is not None:
                    return receipt
        return None

    def _landed_anywhere(self, transaction: Transaction) -> TransactionReceipt | None:
        """As `_landed`, of the other endpoints too: the preferred one may lag, or hide what it knows."""
        attempts = self._journal.attempts(transaction)
        for one, writer in self._writers if len(self._writers) > 1 else ():
            if self.chain.provider.rests(one.place):
                continue
            with suppress(RpcUnavailable), one.errors("reading a receipt"):
                for attempt in attempts:
                    if (receipt := writer.receipt(attempt.hash)) is not None:
                        return receipt
        return None

    def _known_receipt(self, transaction: Transaction) -> TransactionReceipt:
        """The receipt of what is noted as mined. Raises RpcUnavailable where the endpoint does not know it (any more)."""
        assert transaction.hash is not None
        receipt = self._receipt(transaction.hash)
        if receipt is None:
            name = f"0x{transaction.hash.hex()}"
            raise RpcUnavailable(f"{transaction.doing}: the endpoint does not know {name}, which was mined")
        return receipt

    def _receipt(self, transaction_hash: bytes) -> TransactionReceipt | None:
        with self.chain.errors("reading a receipt"):
            return self._writer.receipt(transaction_hash)

    def _result(self, transaction: Transaction, receipt: TransactionReceipt) -> Sent:
        with self.chain.errors(transaction.doing):
            events = tuple(event for entry in receipt.logs if (event := self.chain.decode(entry)) is not None)
        return Sent(receipt.hash, receipt.block, receipt.gas_used, events, receipt.contract)

    def _count(self, block: int | None = None) -> int:
        """Transactions of this key that are in the chain (up to a block): the next nonce, but for what is pending."""
        with self.chain.errors("reading the nonce"):
            return self._writer.transaction_count(block)

    def _nonce(self) -> int:
        return max([self._count(), *(pending.nonce + 1 for pending in self._journal.pending())])

    def _fee(self) -> int:
        """What a first attempt offers. Raises FeeTooHigh where less than the cap would not be mined."""
        base, cap = self._base_fee(), self._limits.fee
        if base + _TIP > cap:
            raise FeeTooHigh(
                f"a transaction costs {_gwei(base + _TIP)} gwei per gas now, and {_gwei(cap)} is the most that may be offered"
            )
        return min(_offer(base), cap)

    def _base_fee(self) -> int:
        with self.chain.errors("reading the gas price"):
            return self._writer.base_fee()

    def _sign(self, transaction: Transaction, fee: int, tip: int = _TIP) -> Attempt:
        from eth_account import Account

        fields: dict[str, Any] = {
            "type": 2, "chainId": self.chain.chain_id, "nonce": transaction.nonce, "gas": transaction.gas,
            "value": transaction.value,
            "maxFeePerGas": fee, "maxPriorityFeePerGas": min(tip, fee), "data": transaction.data,
        }  # fmt: skip
        if transaction.target is not None:
            fields["to"] = transaction.target
        raw = bytes(Account.sign_transaction(fields, self.key.secret).raw_transaction)
        return Attempt(keccak(raw), raw, fee, tip, self._clock.wall())


def _offer(base: int) -> int:
    """Twice the base fee, so that a few full blocks do not matter."""
    return 2 * base + _TIP


def _gwei(wei: int) -> str:
    return f"{wei / 10**9:.9f}".rstrip("0").rstrip(".")


def _with_nonce(transaction: Transaction, nonce: int) -> Transaction:
    return replace(transaction, nonce=nonce)
