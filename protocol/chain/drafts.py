"""What a call takes before it becomes a transaction: gas, a price, and the means to pay for both."""

from __future__ import annotations

from protocol.chain import gas
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.signer import Signer
from protocol.chain.transaction_log import PENDING, Attempt, Content, Transaction, TransactionLog
from protocol.clock import Clock
from protocol.errors import InsufficientFunds

_FAILED = 16  # of the newest failures, among which the same call is looked for
_DOUBTED_SECONDS = 3600.0  # after a failure, in which the median of estimates is taken


class Drafts:
    """Of the transactions of one account."""

    def __init__(self, chain: Chain, account: str, signer: Signer, journal: TransactionLog, clock: Clock) -> None:
        self._chain = chain
        self._account = account
        self._signer = signer
        self._journal = journal
        self._clock = clock

    def gas(self, call: Call, content: Content) -> int:
        """What a first attempt may use. Raises as Signer.gas_of."""
        return self.gas_of(call.doing, content, call.room)

    def gas_of(self, doing: str, content: Content, room: int, *, of_most: bool = False) -> int:
        """What a call may use; by most endpoints' estimates where the best one's was too low lately, or with `of_most`. Raises as Signer.gas_of."""
        since = self._clock.wall() - _DOUBTED_SECONDS  # who estimates too little does so whatever it is asked
        has_failed = any(each.content == content or each.created > since for each in self._journal.failed(_FAILED))
        return self._signer.gas_of(doing, *content, room, of_most=of_most or has_failed)

    def make(
        self, call: Call, content: Content, name: str | None, nonce: int, asker: str
    ) -> tuple[Transaction, Attempt]:
        """A transaction that is in no journal yet, and signed. Raises InsufficientFunds, FeeTooHigh, TransactionReverted or RpcUnavailable."""
        with self._chain.errors(call.doing):
            needed, fee = self._afforded(call, content)
        target, data, value = content
        draft = Transaction(
            0, name, call.doing, nonce, target, data, needed, PENDING, None, None, value, call.room, asker, call.adds
        )  # fmt: skip
        return draft, self._signer.sign(draft, fee)

    def cannot_pay(self, doing: str) -> InsufficientFunds:
        return InsufficientFunds(
            f"{doing}: {self._account} cannot pay the gas", hint=f"send some ETH to {self._account}"
        )

    def _afforded(self, call: Call, content: Content) -> tuple[int, int]:
        """Gas, and wei for each."""
        needed = self.gas(call, content)
        fee = self._signer.fee(of_most=bool(self._journal.dropped()))
        if not self._can_pay(needed * fee + content[2]):  # the endpoint that named both may be alone with that
            needed = self.gas_of(call.doing, content, call.room, of_most=True)
            fee = self._signer.fee(of_most=True)
            if not self._can_pay(needed * fee + content[2]):
                raise self.cannot_pay(call.doing)
        return needed, fee

    def _can_pay(self, wei: int) -> bool:
        return gas.can_pay(self._chain, self._account, wei)
