"""The canonical form of a task reward: one number for all honest machines.

Verifiers compute with floats: a sum of tenths is 0.9999999999999999 here and 1 there. So every score passes through `canonical`
before anybody stores it, compares it or learns from it: worker, validator and trainer alike. The grid is binary: a canonical
reward is exact in float32, as rollout files hold it, and a score of few decimal digits is never half-way between two points.
Two machines whose floats differ in the last places get the same point, or at a half-way value two neighbours; `FORGIVEN` is
what every comparison allows. Vectors: tests/vectors/rewards.json.
"""

from __future__ import annotations

import math
from fractions import Fraction

_POINTS = 1 << 20
STEP = 1 / _POINTS
"""Distance of two canonical rewards (9.5e-7). Changing it breaks: what rollout files hold, and verdicts on rewards."""
FORGIVEN = 2 * STEP
"""Between a reward that is claimed and one's own: a step because machines may round a half-way score to both sides, one for what float32
makes of a reward."""


def canonical(score: float) -> float:
    """The multiple of `STEP` in [0, 1] nearest to `score`, of two the even one; 0 for what is no number."""
    return on_grid(min(max(score, 0.0), 1.0)) if math.isfinite(score) else 0.0


def on_grid(score: float | Fraction) -> float:
    """The same without bounds, for scores on a scale of somebody's own, and for exact ones."""
    return round(score * _POINTS) / _POINTS if math.isfinite(score) else 0.0


def agree(own: float, claimed: float, tolerance: float = FORGIVEN) -> bool:
    """Whether a claim is one's own number, or as good as that. NaN is neither."""
    return abs(own - claimed) <= tolerance * max(1.0, abs(own))
