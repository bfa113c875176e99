"""Transactions of a used nonce of which too few endpoints can tell what became of them: nothing waits behind them, so they are looked at now and then."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.chain.transaction_log import Transaction
from protocol.clock import Clock

_REST_SECONDS = 600.0  # until one is waited for again that was waited for in vain
_AT_ONCE = 8


class LateTransactions:
    """Of one key, for as long as its sender lives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[int, float] = {}  # monotonic seconds when each is due again, by number

    def __contains__(self, transaction: Transaction) -> bool:
        return transaction.id in self._until

    def note(self, transaction: Transaction, *, was_waited_for: bool) -> None:
        """That too few could tell. `was_waited_for`: for the whole deadline."""
        self._until[transaction.id] = self._clock.monotonic() + _REST_SECONDS * was_waited_for

    def passed_over(self, begun: Iterable[Transaction], used: int) -> set[int]:
        """The numbers of those that are not looked at now: they rest, or others have been due for longer. `used`: transactions in the chain."""
        late = {each.id: self._until[each.id] for each in begun if each in self and each.nonce < used}
        due = sorted(
            (number for number, until in late.items() if until <= self._clock.monotonic()), key=late.__getitem__
        )
        return late.keys() - set(due[:_AT_ONCE])
