"""Simulated seats: whole completions of a recording, drawn with replacement, and weighed after each submission as `History.weigh` does.

A seat keeps to one policy and one length: the mean over all work is no excuse for a seat that has all of the worst. It is seen by one validator that
prefills everything, and nothing again as a named alternative. Weighed many at a time; tests/node/test_honest_seats.py holds that to node/judging/history.py.

What is found of so many seats is of *these* completions: seats share them, and are not independent of each other. `at_most` bounds the error of
drawing seats; what completions there are that were never recorded, the number of units alone says (`unseen`).

Shapes: S seats, W submissions of each, L statistics (recorded.STATISTICS), 3 sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol import eprocess, history
from protocol.constants import SCORE_MAX, SUM_UNIT
from protocol.history import SIDE_HARD, SIDE_SOFT
from protocol.runspec import HistoryBudget
from protocol.statistics import MARGINS_HARD, MARGINS_SOFT, TEMPERATURE
from seats.recorded import STATISTICS, Integers, PairWork

COMPLETIONS = {8: 64, 100: 16, 1_000: 2}
"""Of a submission, by their length."""
SUBMISSIONS = 8
CONFIDENCE = 0.95
LEVELS = (2, 4)
"""Powers of ten that an e-value passes with a chance of one in as many at most, whatever the budget."""
_AT_ONCE = 2_000  # seats

Logs = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class WeighedSeats:
    """Of each look: log evidence against both nulls, and whether the submission adds to it [S, W]."""

    soft: Logs
    hard: Logs
    adds: NDArray[np.bool_]


@dataclass(frozen=True)
class Tally:
    """Of one pair's seats, what was found in any of their submissions."""

    seats: int
    soft: int
    """Seats with a finding of the run's budget, soft or hard."""
    hard: int
    passed: dict[int, int]
    """Seats whose e-value against the soft null ever passed this power of ten."""
    highest: tuple[float, float]
    """Powers of ten that e-values reached, against the soft and the hard null."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.seats + other.seats,
            self.soft + other.soft,
            self.hard + other.hard,
            {level: self.passed[level] + other.passed[level] for level in self.passed},
            (max(self.highest[0], other.highest[0]), max(self.highest[1], other.highest[1])),
        )


def drawn(pair: PairWork, seats: int, draws: np.random.Generator) -> Iterator[Integers]:
    """What seats have added up after each of their submissions [S, W, L, 3], some seats at a time; each policy and length has as many."""
    strata = pair.strata
    for number, units in enumerate(strata):
        wanted = seats * (number + 1) // len(strata) - seats * number // len(strata)
        each = COMPLETIONS[int(pair.lengths[units[0]])]
        work = pair.sums[units].reshape(len(units), -1)
        for start in range(0, wanted, _AT_ONCE):
            count = min(_AT_ONCE, wanted - start)
            added = np.zeros((count * SUBMISSIONS, work.shape[1]), np.int64)
            for picks in draws.integers(len(units), size=(each, count * SUBMISSIONS)):
                added += work[picks]
            yield added.reshape(count, SUBMISSIONS, len(STATISTICS), 3).cumsum(1)


def weighed(sums: Integers, budget: HistoryBudget, margins: str = MARGINS_SOFT) -> WeighedSeats:
    """Of [S, W, L, 3]; `margins` names those of the soft null."""
    soft = _by_statistic(sums, margins, SIDE_SOFT)
    hard = _by_statistic(sums, MARGINS_HARD, SIDE_HARD)
    before = [np.concatenate([np.zeros_like(logs[:, :1]), logs[:, :-1]], 1) for logs in soft]
    parts = (history._MARGINS_PART, history._SIDES_PART)
    least = history.carrying(budget)
    adds = np.logical_or(
        *((new > old) & (math.log(part) + new >= least) for part, old, new in zip(parts, before, soft, strict=True))
    )
    return WeighedSeats(_mixed(soft), _mixed(hard), adds)


def tally(of: WeighedSeats, budget: HistoryBudget) -> Tally:
    bounds = history.bounds(budget)
    soft, hard = of.adds & (of.soft >= bounds.soft), of.adds & (of.hard >= bounds.hard)
    best = of.soft.max(1)
    return Tally(
        len(best),
        int((soft | hard).any(1).sum()),
        int(hard.any(1).sum()),
        {level: int((best >= level * math.log(10)).sum()) for level in LEVELS},
        (float(best.max()) / math.log(10), float(of.hard.max()) / math.log(10)),
    )


def simulate(
    pair: PairWork, seats: int, budget: HistoryBudget, draws: np.random.Generator, margins: str = MARGINS_SOFT
) -> Tally:
    """So many seats of a pair."""
    found = [tally(weighed(sums, budget, margins), budget) for sums in drawn(pair, seats, draws)]
    return sum(found[1:], found[0])


# ---- evidence, many at a time -----------------------------------------------------------------------------------------


def _by_statistic(sums: Integers, margins: str, side: float) -> list[Logs]:
    """As protocol/history.py has it."""
    of = {name: sums[..., number, :] / SUM_UNIT for number, name in enumerate(STATISTICS)}
    return [_excess(of[margins]), _share_either(of[TEMPERATURE], side)]


def _mixed(by_statistic: list[Logs]) -> Logs:
    """The mixture of protocol/history.py; of alternatives nothing was measured, and their e-values are 1."""
    parts = (history._MARGINS_PART, history._SIDES_PART)
    logs = [math.log(part) + log for part, log in zip(parts, by_statistic, strict=True)]
    return np.logaddexp(np.logaddexp(*logs), math.log(1 - sum(parts)))


def _excess(sums: Logs) -> Logs:
    total, squares, count = np.moveaxis(sums, -1, 0)
    found = [_won(bet, total, squares) + math.log1p(-bet) * count for bet in eprocess._BETS]
    for bet in eprocess._LARGE_BETS:
        with np.errstate(divide="ignore"):  # the log of nothing is -∞
            left = np.log(np.maximum(0.0, 1 - bet * count))
        found.append(_won(bet, total, squares) + left)
    return _log_mean(found)


def _won(bet: float, total: Logs, squares: Logs) -> Logs:
    return np.maximum(bet * total - bet * bet * squares / 2, total * math.log1p(bet * SCORE_MAX) / SCORE_MAX)


def _share_either(sums: Logs, most: float) -> Logs:
    total, _, count = np.moveaxis(sums, -1, 0)
    return _log_mean([_share(total, count - total, most), _share(count - total, total, most)])


def _share(successes: Logs, failures: Logs, most: float) -> Logs:
    ways = [most + part * (1 - most) for part in eprocess._SHARES]
    return _log_mean([successes * math.log(p / most) + failures * math.log((1 - p) / (1 - most)) for p in ways])


def _log_mean(logs: list[Logs]) -> Logs:
    stacked = np.stack(logs)
    highest = stacked.max(0)
    return highest + np.log(np.exp(stacked - highest).mean(0))


# ---- confidence --------------------------------------------------------------------------------------------------------


def at_most(found: int, of: int, confidence: float = CONFIDENCE) -> float:
    """Clopper and Pearson's upper bound on a probability, one-sided: where it were larger, so few would be found with 1 - `confidence`."""
    if found >= of:
        return 1.0
    low, high = found / of, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if _no_more(found, of, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _no_more(found: int, of: int, probability: float) -> float:
    """Of so many trials, the probability of at most `found`."""
    if probability >= 1:
        return 0.0
    success, failure = math.log(probability), math.log1p(-probability)
    ways = (math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) for k in range(found + 1))
    return math.fsum(math.exp(of_k + k * success + (of - k) * failure) for k, of_k in enumerate(ways))


def unseen(units: int, confidence: float = CONFIDENCE) -> float:
    """The share that completions of a kind may have of which none is among so many."""
    return at_most(0, units, confidence)
