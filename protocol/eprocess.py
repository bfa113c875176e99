"""E-processes: evidence that adds up over a seat's work, and that holds whenever one looks.

A *statistic* of a submission is three whole numbers (`Sums`): they add up over submissions and validators in any order, and whoever has
them has the evidence. There are two kinds.

*Excess*: blocks of work, each with a score x in [0, C], C = SCORE_MAX, and an expected score m in [0, 1]. Null: given everything before it,
the mean of x - m is at most 0 in every block. For any 0 < λ < 1 the product of (1 + λx)(1 - λm) is then a non-negative supermartingale, because
(1 + λx)(1 - λm) ≤ 1 + λ(x - m). It is never below

    exp(max(λ·Σx - ½λ²·Σx², Σx·log(1 + λC) / C) + Σm·log(1 - λ)),

which needs nothing but three sums: log(1 + λx) lies above its parabola at 0 and above its chord to C, and log(1 - λm) above its chord to 1.
The parabola is close where scores are small, the chord where they are nearly all 0 or C.

Where next to nothing was expected of all blocks together, as in float32, larger bets may be made: as long as λ·Σm < 1 every 1 - λm is positive, and their product
is at least 1 - λ·Σm. Such a bet ends, worth nothing, before the block by which λ·Σm would reach 1. As m is known
with the block's tokens, and the end picks blocks of which little is expected, these bets need the mean of x to be at most m given m as well, token by token.

*Share*: trials that succeed or not. Null: given everything before it, a trial succeeds with probability at most q. For any q < p < 1 the
likelihood ratio (p/q)^successes · ((1-p)/(1-q))^failures is a supermartingale.

λ, below 1 and above, and p are those of a fixed grid in equal parts, and a mean of supermartingales is one. By Ville's inequality such an *e-value*
ever exceeds 1/α with probability at most α: however long the seat works, whoever stops when. Blocks need not be independent, nor alike; what
is assumed is the conditional mean alone, and by bets of more than 1 what is said there.
Sources: Ville 1939; Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.constants import SCORE_MAX, SUM_UNIT

_BETS: Final = (7 / 8, *(2.0**-k for k in range(1, 13)))
_LARGE_BETS: Final = tuple(4.0**k for k in range(1, 7))  # while less than 1 of a bet was expected
_SHARES: Final = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 15 / 16)  # of the way from the null's probability to 1


@dataclass(frozen=True)
class Sums:
    """Of one statistic, in parts of SUM_UNIT: Σx and Σx² of its scores, and how much was expected, Σm. Of trials: successes twice, and trials."""

    total: int = 0
    squares: int = 0
    count: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.total + other.total, self.squares + other.squares, self.count + other.count)

    @classmethod
    def of_blocks(cls, scores: Iterable[float], expected: Iterable[float]) -> Sums:
        """Of scores ≥ 0, of which none counts for more than SCORE_MAX, and what was expected of each, in [0, 1]; rounded in the seat's favour."""
        scores = [min(score, SCORE_MAX) for score in scores]
        total, squares = math.fsum(scores), math.fsum(score * score for score in scores)
        return cls(
            math.floor(total * SUM_UNIT), math.ceil(squares * SUM_UNIT), math.ceil(math.fsum(expected) * SUM_UNIT)
        )

    @classmethod
    def of_trials(cls, successes: int, trials: int) -> Sums:
        return cls(successes * SUM_UNIT, successes * SUM_UNIT, trials * SUM_UNIT)


def excess(sums: Sums) -> float:
    """log of the e-value against "scores are, on average, at most what was expected of them"."""
    total, squares, count = (part / SUM_UNIT for part in (sums.total, sums.squares, sums.count))
    found = [_won(bet, total, squares) + math.log1p(-bet) * count for bet in _BETS]
    for bet in _LARGE_BETS:
        found.append(_won(bet, total, squares) + math.log1p(-bet * count) if bet * count < 1 else -math.inf)
    return _log_mean(found)


def _won(bet: float, total: float, squares: float) -> float:
    """At least the log of the product of 1 + bet·score."""
    return max(bet * total - bet * bet * squares / 2, total * math.log1p(bet * SCORE_MAX) / SCORE_MAX)


def share(sums: Sums, most: float) -> float:
    """log of the e-value against "a trial succeeds with probability at most `most`", 0 < most < 1."""
    successes, failures = sums.total / SUM_UNIT, (sums.count - sums.total) / SUM_UNIT
    found = []
    for part in _SHARES:
        p = most + part * (1 - most)
        found.append(successes * math.log(p / most) + failures * math.log((1 - p) / (1 - most)))
    return _log_mean(found)


def share_either(sums: Sums, most: float) -> float:
    """log of the e-value against "trials succeed and fail with probability at most `most` each", ½ ≤ most < 1."""
    failed = Sums(sums.count - sums.total, sums.count - sums.total, sums.count)
    return combined([(0.5, share(sums, most)), (0.5, share(failed, most))])


def combined(evidence: Sequence[tuple[float, float]]) -> float:
    """log of the weighted mean of e-values, of (weight, log of one). Weights are at least 0 and add up to at most 1.

    The mean of e-values is one, whatever they share; their maximum is not.
    """
    if any(weight < 0 for weight, _ in evidence) or math.fsum(weight for weight, _ in evidence) > 1 + 1e-9:
        raise ValueError("weights of e-values are at least 0 and add up to at most 1")
    return _log_sum([math.log(weight) + value for weight, value in evidence if weight > 0])


def _log_mean(values: Sequence[float]) -> float:
    return _log_sum(values) - math.log(len(values))


def _log_sum(values: Sequence[float]) -> float:
    highest = max(values, default=-math.inf)
    if math.isinf(highest):
        return highest
    return highest + math.log(math.fsum(math.exp(value - highest) for value in values))
