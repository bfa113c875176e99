"""What no event tells and a page shows all the same: the run's budget, and what seats have at stake. A few calls to the chain a turn.

Seats are asked for in turns, those first that were asked for longest ago: with a thousand of them each is some minutes old, and the
operator's endpoint has no more to do for a page than this, however many look at it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from protocol.chain import Chain
from protocol.chain.types import Policy
from protocol.chain.vouchers import Vouchers
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError

log = logging.getLogger("hub")

SEATS_A_TURN = 4
BUDGET_SECONDS = 15.0
"""Between looks at the budget."""


@dataclass(frozen=True)
class BudgetLook:
    """In wei; None where it was not asked for or could not be had."""

    free: int | None = None
    reserved: int | None = None
    pot: int | None = None
    """Of the Vouchers contract."""
    paused_from: int = 0


class StakeLooks:
    """For one thread."""

    def __init__(self, chain: Chain, run: int, vouchers: str | None = None, clock: Clock = SYSTEM) -> None:
        self._chain = chain
        self._run = run
        self._clock = clock
        self._address = vouchers
        self._vouchers: Vouchers | None = None
        self._asked: dict[tuple[str, bool], float] = {}
        self._budget_asked = float("-inf")
        self.policy: Policy | None = None
        self.budget = BudgetLook()
        self.seats: dict[str, int] = {}
        self.validators: dict[str, int] = {}
        """Wei at stake, by seat and by validator."""

    def look(self, seats: Iterable[str], validators: Iterable[str]) -> None:
        """A few calls. Where the chain cannot be asked, what was known stays."""
        try:
            self._look_at_budget()
            wanted = [*((name, False) for name in seats), *((name, True) for name in validators)]
            wanted.sort(key=lambda one: self._asked.get(one, float("-inf")))
            for name, judges in wanted[:SEATS_A_TURN]:
                self._asked[name, judges] = self._clock.monotonic()
                if judges:
                    self.validators[name] = self._chain.validator(self._run, name).locked
                else:
                    self.seats[name] = self._chain.seat(self._run, name).locked
        except MurmurationError as error:
            log.info("the page shows what was known before: %s", error)

    def _look_at_budget(self) -> None:
        now = self._clock.monotonic()
        if now - self._budget_asked < BUDGET_SECONDS:
            return
        self._budget_asked = now
        if self.policy is None:
            self.policy = self._chain.policy(self._run)
            self._vouchers = None if self._address is None else Vouchers(self._chain, self._address)
        funds, status = self._chain.funds(self._run), self._chain.status(self._run)
        pot = None if self._vouchers is None else self._vouchers.pot(self._run)
        self.budget = BudgetLook(funds.free, funds.reserved, pot, status.paused_from)
