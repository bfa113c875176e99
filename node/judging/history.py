"""A seat's work up to a submission, as one validator knows it, and what follows from it (protocol/history.py)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from protocol import canonical, history, statistics
from protocol.constants import SUM_UNIT
from protocol.eprocess import Sums
from protocol.errors import Malformed
from protocol.history import OWN, LogEvidence
from protocol.runspec import HistoryBudget
from protocol.statistics import MARGINS_SOFT, SumsByName, proofs_by, tokens_by
from protocol.verdict import HISTORY, Finding, Outcome, Receipt

ENOUGH_TOKENS = 4_000
"""Fewer: a juror clears noisy seats by chance, and an honest accuser loses its bond; more: liars' cases against honest seats stay undecided."""
ENOUGH_TRIALS = 30
"""Tokens and chunks, before a juror calls a finding by an alternative wrong, with no more than half of them on its side. A cheat with four fifths on its side has so few
with probability 1 in 4,000, one with two thirds in 1 of 25. Fewer: as ENOUGH_TOKENS."""
SUSPECT = 0.25
"""Share of the soft bound, of a single alternative. Lower: honest seats are looked at more often; higher: cheats are found later."""
# Of the margins that the soft null expects; honest work of the class's own noise has four ninths of them.
_WITHIN = 0.75
_TIME_MAX = 1 << 37  # block time in seconds: some four thousand years
NOWHERE = 0
"""The samples of a finding that is about no sample by itself."""


@dataclass(frozen=True)
class CountedReceipt:
    """What counts of an earlier submission: one receipt's sums."""

    submission: str
    validator: str
    digest: str
    """SHA-256 of the receipt's details, as its signature covers them."""
    tokens: int
    sums: SumsByName
    own: bool

    def row(self) -> list[Any]:
        return [self.submission, self.validator, self.digest, self.tokens, statistics.encode(self.sums), self.own]

    @classmethod
    def of_row(cls, row: Any) -> CountedReceipt:
        """Raises Malformed."""
        kinds = (str, str, str, int, dict, bool)
        if not isinstance(row, list) or [type(value) for value in row] != list(kinds):
            raise Malformed("the history holds an entry that is none")
        submission, validator, digest, tokens, sums, own = row
        statistics.require_form(sums, False)
        return cls(submission, validator, digest, tokens, statistics.decode(sums), own)


def counted(receipt: Receipt, *, own: bool) -> CountedReceipt:
    """What counts of a submission that this receipt speaks of."""
    d = receipt.details
    digest = canonical.digest(d.table()).hex()
    return CountedReceipt(d.submission, receipt.validator, digest, d.tokens_checked, statistics.decode(d.sums), own)


@dataclass(frozen=True)
class Weighed:
    """What a seat's work is evidence of, with the submission judged."""

    adds: bool
    """Whether the submission raises the evidence of one statistic at least, of what this validator measured itself."""
    after: LogEvidence
    own: LogEvidence
    """Of what this validator measured itself, `after`."""
    bound: LogEvidence
    own_margins: Sums
    own_tokens: int
    is_open: bool = False
    """Whether another finds the seat by a named alternative, and this validator's own measurements do not speak against it."""

    @property
    def outcome(self) -> Outcome:
        """A submission that speaks for its seat is not rejected for what others of it were."""
        if not self.adds:
            return Outcome.ACCEPT
        if _found(self.after.hard, self.own.hard, self.bound.hard):
            return Outcome.HARD
        return Outcome.SOFT if _found(self.after.soft, self.own.soft, self.bound.soft) else Outcome.ACCEPT

    @property
    def clears(self) -> bool:
        """Whether what this validator measured itself is enough to call another's finding wrong: margins within the soft null over ENOUGH_TOKENS, and no alternative that
        it has not looked for. Who has seen less, or knows fewer receipts, only does not find the seat itself."""
        return (
            not self.is_open
            and self.own_tokens >= ENOUGH_TOKENS
            and self.own.soft <= 0
            and self.own_margins.total <= _WITHIN * self.own_margins.count
        )


def suspected(sums: SumsByName, budget: HistoryBudget) -> tuple[str, ...]:
    """The alternatives that these sums speak for, as far as SUSPECT."""
    least = SUSPECT * history.bounds(budget).soft
    return tuple(name for name, value in history.by_alternative(sums).items() if value >= least)


def _speaks_against(own: SumsByName, name: str) -> bool:
    """Whether enough was looked at with an alternative, and is not on its side."""
    of = [own.get(tokens_by(name), Sums()), own.get(proofs_by(name), Sums())]
    return all(2 * one.total <= one.count for one in of) and sum(one.count for one in of) >= ENOUGH_TRIALS * SUM_UNIT


def _found(after: float, own: float, bound: float) -> bool:
    return after >= bound and own >= OWN * bound


@dataclass(frozen=True)
class History:
    """Of a seat, before the submission judged, in the chain's order. `since` in block time."""

    budget: HistoryBudget
    since: int
    counted: Sequence[CountedReceipt]

    @cached_property
    def _totals(self) -> tuple[SumsByName, SumsByName]:
        """Of what this validator measured, and of everything."""
        return statistics.total(one.sums for one in self.counted if one.own), statistics.total(
            one.sums for one in self.counted
        )

    @cached_property
    def digest(self) -> bytes:
        """Stands for it in a receipt."""
        return canonical.digest(self.table())

    def table(self) -> list[Any]:
        return [self.since, [one.row() for one in self.counted]]

    @classmethod
    def of_table(cls, table: Any, budget: HistoryBudget) -> History:
        """Raises Malformed."""
        if (
            not isinstance(table, list)
            or len(table) != 2
            or type(table[0]) is not int
            or not isinstance(table[1], list)
        ):
            raise Malformed("the history is no list of entries")
        if not 0 <= table[0] < _TIME_MAX:
            raise Malformed("the history begins at no possible time")
        return cls(budget, table[0], [CountedReceipt.of_row(row) for row in table[1]])

    @property
    def leading(self) -> str | None:
        """The named alternative that there is most evidence for, where that is SUSPECT of the soft bound: one to look at again."""
        own, everything = (history.by_alternative(sums) for sums in self._totals)
        found = {name: max(own.get(name, 0.0), value) for name, value in everything.items()}
        name = max(found, key=lambda name: found[name], default=None)
        return name if name is not None and found[name] >= SUSPECT * history.bounds(self.budget).soft else None

    def recounted(self, again: Mapping[str, CountedReceipt]) -> History:
        """With what was measured again of these submissions in place of what counted of them."""
        return replace(self, counted=[again.get(one.submission, one) for one in self.counted])

    def weigh(self, this: SumsByName, tokens: int = 0, suspected: Collection[str] = ()) -> Weighed:
        """With what the submission judged adds, with so many tokens; `suspected` are alternatives that another validator finds the seat by."""
        own, everything = self._totals
        own_after, everything_after = statistics.total([own, this]), statistics.total([everything, this])
        return Weighed(
            history.adds(own, own_after, self.budget),
            history.combined(own_after, everything_after),
            history.evidence(own_after),
            history.bounds(self.budget),
            own_after.get(MARGINS_SOFT, Sums()),
            sum(one.tokens for one in self.counted if one.own) + tokens,
            any(not _speaks_against(own_after, name) for name in suspected),
        )

    def finding(self, this: SumsByName, tokens: int) -> Finding | None:
        """What there is against the seat, given what the submission judged adds with so many tokens."""
        weighed = self.weigh(this)
        if weighed.outcome is Outcome.ACCEPT:
            return None
        hard = weighed.outcome is Outcome.HARD
        after, own, bound = (of.hard if hard else of.soft for of in (weighed.after, weighed.own, weighed.bound))
        since = datetime.fromtimestamp(self.since, UTC)
        return Finding(
            HISTORY,
            weighed.outcome,
            _power(after),
            _power(bound),
            f"{len(self.counted) + 1} submissions with {sum(one.tokens for one in self.counted) + tokens} checked tokens since"
            f" {since:%Y-%m-%d %H:%M} UTC, as e-values against the run's {'hard' if hard else 'soft'} noise; what this validator measured itself:"
            f" {_power(own)}",
            NOWHERE,
        )  # fmt: skip


def _power(log: float) -> str:
    """An e-value, of its natural logarithm."""
    return f"10^{log / math.log(10):.1f}"
