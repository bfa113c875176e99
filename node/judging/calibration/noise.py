"""How far two honest devices' logits differ: the noise that a run's sums are judged with (protocol/logit_noise.py), and how sure it is.

The unit is a distinct completion. What several variants of one kind say of one and the same completion is averaged, for it is one
observation. Kinds are an engine and its attention; each pair of kinds, one that made and one that checked, is measured apart, and on each model apart, for a
seat works on one policy at a time; the worst counts. The larger of two upper bounds is taken:

- of the spread: the noise of which so large margins, by their mean over completions, are expected; a normal bound, with the deviation
  between completions. It holds where there are many margins.
- of the number: the noise of which so many mismatched tokens are expected; the exact bound of a Poisson count, widened by how much counts
  of completions scatter beyond it. It holds where there are few, or none.

Where hardly any token is mismatched, as in float32, the number bounds noise by how little was looked at: none of some thousands leaves 0.01
logits possible, where rounding is of 1e-6. There a third bound takes the place of both, if it is lower:

- of claimed logprobs, of which every token has one. With δ a logit's error, maker's less checker's, r the range of logits, and p probabilities, a claim
  strays by e = Σ p_j·(δ_drawn - δ_j) over the other tokens j. So e / (1 - p_drawn) is a mean, over the rivals by their chances to be next best, of the
  very differences whose spread is noise·r. Differences are wider than their mean: where a rival's error is as wide as the drawn token's, at most
  twice in the square. Hence noise² ≤ 2·Σe² / Σ(r·(1 - p_drawn))², with a normal bound as that of the spread. It assumes that claims are made of the logits
  that were drawn from, and that no token's error is wide which is never drawn. What is common to all logits cancels on both sides.

On tiny policies, against logits written down while they were decoded, 2·Σe² / Σ(1 - p_drawn)² lay between 1.06 and 2.7 times the square of what rivals within
a logit showed (float32 and bfloat16, each of eager and fused attention against each).

Does not cover: policies whose noise grows by more than their logits do. Of tiny ones, from one that had just begun to learn to one that solves two thirds of its
tasks, each with logits up to 3.5 times as large, the noise in logits differed 9 times, and in shares of the range 2.5 times.

Shapes: U units, G grid points.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol import logit_noise
from protocol.constants import NOISE_MAX, SPREAD_MAX
from protocol.sampling import Floats, TokenScores

CONFIDENCE = 0.999
"""Of the upper bound on the noise of one pair of kinds."""
SOFT, HARD = 1.5, 3.2
"""The soft null is this many times the class's noise, the hard one this many times the worst noise ever measured. Margins grow with the square:
a seat with thrice the noise has nine times the margins, and is within the hard null however long it works."""

FLOOR = 5e-6
"""The smallest soft null, for a run meets devices and policies that this machine is not. In float32 tiny policies had 6e-8 to 1.6e-7 of the range of logits between two
ways of attention: this is 30 times the largest. Lower: honest work of a later policy may exceed the null; higher: cheats with margins below
eight times as much count for less."""
_FEW = 10
"""Mismatched tokens of a pair below which their number says less than the claimed logprobs do."""

_GRID_G: Floats = np.geomspace(1e-8, NOISE_MAX, 96)
Pair = tuple[str, ...]
"""The kinds of what made a completion and of what checked it, and the model where several are measured."""


@dataclass(frozen=True)
class NoiseBound:
    """Of one pair: noise in shares of the range of logits."""

    estimate: float
    upper: float
    """With CONFIDENCE."""
    units: int
    tokens: int
    mismatches: float
    """Tokens of them that were not the draw; of a completion that several variants checked, their mean."""
    source: str
    """What the upper bound is of: "spread", "number" or "logprobs"."""
    range: float
    """Logits: the range of a position's, on average over tokens."""


@dataclass
class NoiseMeasurements:
    """Of honest completions, by pair and unit."""

    _seen: dict[Pair, dict[int, list[Floats]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def add(self, pair: Pair, unit: int, scores: TokenScores, claimed: Floats) -> None:
        """`unit` is the number of the completion; `claimed` [T] the logprobs that came with it."""
        self._seen[pair][unit].append(_observed(scores, claimed))

    def bounds(self) -> dict[Pair, NoiseBound]:
        return {
            pair: bound(np.array([np.mean(checks, 0) for checks in units.values()]))
            for pair, units in sorted(self._seen.items())
        }


def _observed(scores: TokenScores, claimed: Floats) -> Floats:
    """[6 + 2·G]: tokens, ranges, sum of margins, mismatches; claims' squared errors, and the square of what they are shares of; expected margins and mismatches
    by the grid's noise. Margins are not clipped: what is expected is not either, and a clipped sum would stand for too little noise."""
    near = np.isfinite(scores.gaps) & (scores.ranges > 0)[:, None]  # where all logits are equal nothing is rounded
    gaps, ranges = scores.gaps[near], np.broadcast_to(scores.ranges[:, None], near.shape)[near]
    chances_GN = logit_noise.chances_of_rivals(gaps, _GRID_G[:, None] * ranges)
    expected, mismatches = (chances_GN * gaps).sum(1), chances_GN.sum(1)
    margins, errors = scores.margins, claimed - scores.logprobs
    others = -np.expm1(np.minimum(scores.logprobs, 0.0)) * scores.ranges
    counts = [len(margins), scores.ranges.sum(), margins.sum(), (margins > 0).sum()]
    return np.array([*counts, (errors**2).sum(), (others**2).sum(), *expected, *mismatches])


def bound(observed: NDArray[np.floating[Any]]) -> NoiseBound:
    """Of rows [U, 6 + 2·G]."""
    tokens_U, ranges_U, margins_U, mismatches_U, errors_U, others_U = observed[:, :6].T
    expected_UG, counts_UG = np.split(observed[:, 6:], 2, axis=1)
    tokens, mismatches = tokens_U.sum(), float(mismatches_U.sum())
    errors_UG = others_U[:, None] * _GRID_G**2 / 2
    upper, source = max((_of_mean(margins_U, expected_UG), "spread"), (_of_number(mismatches_U, counts_UG), "number"))
    if mismatches < _FEW and (by_logprobs := _of_mean(errors_U, errors_UG)) < upper:
        upper, source = by_logprobs, "logprobs"
    by = (errors_U, errors_UG) if source == "logprobs" else (margins_U, expected_UG)
    estimate = _first_above(by[1].sum(0), by[0].sum()) if by[0].any() else 0.0
    return NoiseBound(estimate, upper, len(observed), int(tokens), mismatches, source, float(ranges_U.sum() / tokens))


def _of_mean(seen_U: Floats, expected_UG: Floats) -> float:
    """The upper bound of what is seen by its mean over units."""
    spread_G = np.sqrt(((seen_U[:, None] - expected_UG) ** 2).sum(0))
    return _first_above(expected_UG.sum(0) - NormalDist().inv_cdf(CONFIDENCE) * spread_G, seen_U.sum())


def _of_number(mismatches_U: Floats, counts_UG: Floats) -> float:
    """The upper bound of the number of mismatched tokens."""
    mismatches, counts_G = mismatches_U.sum(), counts_UG.sum(0)
    at = min(int(np.searchsorted(counts_G, max(mismatches, 1.0))), len(_GRID_G) - 1)
    scatter = ((mismatches_U - counts_UG[:, at]) ** 2).sum() / max(counts_G[at], 1e-12)
    widened = max(1.0, float(scatter))
    return _first_above(counts_G, widened * _most_expected(mismatches / widened))


def _first_above(values_G: Floats, value: float) -> float:
    """The noise at which a quantity that grows with it reaches a value, between the points of the grid; its last where it never does."""
    above = np.flatnonzero(values_G > value)
    if not len(above):
        return float(_GRID_G[-1])
    at = int(above[0])
    if at == 0:
        return float(_GRID_G[0])
    low, high = values_G[at - 1], values_G[at]
    part = float(np.clip((value - low) / (high - low), 0, 1)) if np.isfinite(low) else 1.0
    return float(_GRID_G[at - 1] * (_GRID_G[at] / _GRID_G[at - 1]) ** part)


def _most_expected(seen: float) -> float:
    """The mean of a Poisson count at which so few, or fewer, are seen with probability 1 - CONFIDENCE."""
    low, high = seen, 20 + 3 * seen
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(math.floor(seen), middle) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _at_most(count: int, mean: float) -> float:
    """Probability that a Poisson count is at most `count`."""
    logs = [
        k * math.log(mean) - mean - math.lgamma(k + 1)
        for k in range(max(0, count - 40 * math.isqrt(count + 1)), count + 1)
    ]
    return math.fsum(map(math.exp, logs))


def limit(bounds: Iterable[NoiseBound]) -> tuple[float, float] | None:
    """Soft and hard noise for a run spec; None where the hard one, at the work's own range of logits, is more than margins can be compared with."""
    found = list(bounds)
    worst = max(max((bound.upper for bound in found), default=math.inf), FLOOR / SOFT)
    widest = max((bound.range for bound in found), default=0.0)
    most = min(NOISE_MAX, SPREAD_MAX / widest if widest else NOISE_MAX)
    return (SOFT * worst, HARD * worst) if HARD * worst <= most else None
