"""When the sums over a seat's work decide: what they are evidence of, and how much of it is enough.

A seat's *history* at a submission is what it did up to and including that one since the last multiple of `days` of block time, in the chain's
order. What counts is what validators measured of it (receipts' `sums`). Of one validator's point of view there are two sums: of what it measured itself, and of
everything, with others' receipts where it measured nothing. Others may lie, for the seat or against it. So

    evidence = log(½·E(own) + ½·E(all)),

which nobody can lower by more than log 2 below what one has seen oneself, and a finding takes OWN of the bound from E(own) alone: where another lies, one
honest validator finds one honest seat within one period with probability α^OWN at most.

Two nulls, and two bounds on the evidence against them: *soft* rejects a submission, *hard* slashes. Each mixes three kinds of statistics (protocol/statistics.py): margins;
on which side of the draw mismatched tokens lie; and of named alternatives, how often the work is on their side. A bound is the logarithm of

    seats · periods that a year touches · VIEWS / probability,

so the probability that the run's spec names holds for all its honest seats, validators and beginnings of a year together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from protocol import eprocess
from protocol.eprocess import Sums
from protocol.runspec import HistoryBudget
from protocol.statistics import ALTERNATIVES, MARGINS_HARD, MARGINS_SOFT, TEMPERATURE, SumsByName, proofs_by, tokens_by

SIDE_SOFT: Final = 0.55
"""As SIDE_HARD, of the soft null."""
SIDE_HARD: Final = 0.75
"""Of mismatched tokens, the most that honest rounding puts on one side of the draw, the higher logit's or the lower's. Its mean is one half by symmetry; what
is allowed beyond is for devices on which the symmetry does not quite hold. Lower: found sooner, and honest devices may be wronged."""
ALTERNATIVE_SOFT: Final = 0.52
"""As ALTERNATIVE_HARD, of the soft null."""
ALTERNATIVE_HARD: Final = 0.6
"""Of positions and of chunks of proofs, the share that honest work has on an alternative's side at most. Whatever its noise, one half is the most by symmetry; bfloat16 work
by another way of attention had 0 to 0.35, and the more noise the nearer it is to one half. Lower: as above."""
VIEWS: Final = 32
"""Validators and jurors at most that weigh a seat's work, each with sums of its own. More: wrong verdicts are that much likelier."""
OWN: Final = 0.25
"""Share of a bound that a validator's own measurements must bear out. Lower: liars among validators are believed; higher: a seat of which each validator
sees little is found later."""

_MARGINS_PART = 3 / 8
_ALTERNATIVE_PART = 1 / 36
_SIDES_PART = 1 - _MARGINS_PART - _ALTERNATIVE_PART * len(ALTERNATIVES)
"""Parts of the mixture. An alternative's proofs begin at 1/72 of it, which ten chunks on its side make up for against the soft null: naming many costs little."""
_DAY = 86_400
_YEAR_DAYS = 366


@dataclass(frozen=True)
class LogEvidence:
    """Logarithms of e-values against the soft and the hard null; or, of bounds, what they must reach."""

    soft: float
    hard: float


@dataclass(frozen=True)
class _Null:
    margins: str
    side: float
    alternative: float

    def by_statistic(self, sums: SumsByName) -> list[tuple[float, float]]:
        """Part of the mixture and logarithm of the e-value of each statistic."""
        return [
            (_MARGINS_PART, eprocess.excess(sums.get(self.margins, Sums()))),
            (_SIDES_PART, eprocess.share_either(sums.get(TEMPERATURE, Sums()), self.side)),
            *((_ALTERNATIVE_PART, self.by_alternative(sums, name)) for name in ALTERNATIVES),
        ]

    def by_alternative(self, sums: SumsByName, name: str) -> float:
        """Of its tokens and its proofs, in equal parts: who proves anew with the published weights betrays itself by tokens alone."""
        return _in_equal_parts(sums.get(tokens_by(name), Sums()), sums.get(proofs_by(name), Sums()), self.alternative)


@lru_cache(4096)  # of most alternatives nothing was measured, and of the others the same sums are weighed several times
def _in_equal_parts(tokens: Sums, proofs: Sums, most: float) -> float:
    return eprocess.combined([(0.5, eprocess.share(one, most)) for one in (tokens, proofs)])


_SOFT = _Null(MARGINS_SOFT, SIDE_SOFT, ALTERNATIVE_SOFT)
_HARD = _Null(MARGINS_HARD, SIDE_HARD, ALTERNATIVE_HARD)


def by_alternative(sums: SumsByName) -> dict[str, float]:
    """Logarithms of the e-values against the soft null, of each alternative that anything was measured of."""
    measured = [name for name in ALTERNATIVES if tokens_by(name) in sums or proofs_by(name) in sums]
    return {name: _SOFT.by_alternative(sums, name) for name in measured}


def by_statistic(sums: SumsByName) -> dict[str, float]:
    """What each adds to the evidence against the soft null, as a logarithm: "margins", "temperature" (on which side of the draw mismatched tokens lie), and the alternatives
    that anything was measured of."""
    parts = [math.log(part) + value for part, value in _SOFT.by_statistic(sums)]
    of_alternatives = dict(zip(ALTERNATIVES, parts[2:], strict=True))
    return {
        "margins": parts[0],
        "temperature": parts[1],
        **{name: of_alternatives[name] for name in by_alternative(sums)},
    }


def adds(before: SumsByName, after: SumsByName, budget: HistoryBudget) -> bool:
    """Whether one of the statistics that carry the evidence has more of it against the soft null `after` than `before`. Of the mixture it would be asked in vain: what
    dominates it may fall while another rises. Those that carry it have as much as a finding takes of one's own, but for their number."""
    was, is_now, least = _SOFT.by_statistic(before), _SOFT.by_statistic(after), carrying(budget)
    return any(new > old and math.log(part) + new >= least for (_, old), (part, new) in zip(was, is_now, strict=True))


def carrying(budget: HistoryBudget) -> float:
    """Least log evidence, with its part of the mixture, of a statistic that carries a finding: one has as much where all have OWN of the soft bound together."""
    return OWN * bounds(budget).soft - math.log(2 + len(ALTERNATIVES))


def evidence(sums: SumsByName) -> LogEvidence:
    """Of one set of sums."""
    return LogEvidence(*(eprocess.combined(null.by_statistic(sums)) for null in (_SOFT, _HARD)))


def combined(own: SumsByName, everything: SumsByName) -> LogEvidence:
    """Of what one validator measured itself, and of all that anybody did."""
    mine, all_of_it = evidence(own), evidence(everything)
    return LogEvidence(
        eprocess.combined([(0.5, mine.soft), (0.5, all_of_it.soft)]),
        eprocess.combined([(0.5, mine.hard), (0.5, all_of_it.hard)]),
    )


def bounds(budget: HistoryBudget) -> LogEvidence:
    """What the evidence must reach."""
    beginnings = math.ceil(_YEAR_DAYS / budget.days) + 1  # a year touches one more period than begin in it
    tries = math.log(budget.seats * beginnings * VIEWS)
    return LogEvidence(tries - math.log(float(budget.soft)), tries - math.log(float(budget.hard)))


def kept_seconds(span: int, budget: HistoryBudget | None) -> int:
    """How long receipts and what was judged of a seat are kept beyond `span`, the seconds from a submission to the end of its last case: for as long as
    again, while stake answers for them; and where sums decide, until they have begun anew since."""
    return max(span, budget.days * _DAY if budget else 0)


def begins(time: int, budget: HistoryBudget) -> int:
    """Block time from which on work counts that is summed up to a submission of this time, in seconds."""
    return time - time % (budget.days * _DAY)
