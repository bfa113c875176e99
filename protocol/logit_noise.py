"""How far honest margins lie, given how far two honest devices' logits differ: what margins are compared with.

Worker and validator compute the same logits but for rounding. *Noise* is the standard deviation of how far the difference of two tokens' logits
differs between the two, as a share of the range of the position's logits, the highest less the lowest: rounding grows with what is rounded, and
a policy that becomes sure of its answers has larger logits. A token whose score logit + T·G lies d below the best is drawn where rounding is
worth more than d: with probability Φ(-d / σ), σ = noise · range, and then its margin is d. So each position has its own expected margin, and near
ties alone have much of one:

    e = Σ d·Φ(-d / σ)   over the rivals of the draw.

The sum counts a position twice at which two rivals are both near enough: an upper bound. Entropy moves how many near ties there are,
and with them e, but hardly the noise: a calibration of policies that have learned something holds while they learn more (docs/decisions/0020). What is assumed of noise is its spread: near ties are much denser
than noise is wide, so that a heavier tail of the same spread has the same mean.

Does not cover: positions where σ is above SPREAD_MAX, for rivals are looked for within RIVALS_WITHIN of the draw. They are left out. Which these
are is known before the token is looked at, so that what is left is still a bet on expectations.

Shapes: T tokens, K rivals.
"""

from __future__ import annotations

import math

import numpy as np

from protocol.constants import BLOCK_TOKENS, SPREAD_MAX
from protocol.eprocess import Sums
from protocol.sampling import Floats, TokenScores

_FAR = 8.0  # times σ: Φ(-8) is 6e-16
# erfc(x) = t·exp(-x² + polynomial of t), t = 1 / (1 + x/2), within 1.2e-7 of its value for x ≥ 0 (Press et al., Numerical Recipes, 6.2).
_ERFC = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)


def chances_of_rivals(gaps: Floats, spread: Floats) -> Floats:
    """Φ(-gap / spread) of each: the probability that rounding lets the rival win, taken alone. Both in logits; they broadcast."""
    deviations = np.minimum(gaps / spread, _FAR)
    x = deviations / math.sqrt(2)
    t = 1 / (1 + x / 2)
    polynomial = np.zeros_like(t)
    for coefficient in reversed(_ERFC):
        polynomial = polynomial * t + coefficient
    return np.where(deviations < _FAR, t * np.exp(polynomial - x * x) / 2, 0.0)


def expected_margins(gaps_TK: Floats, spread_T: Floats) -> Floats:
    """[T] in logits, of the gaps between each draw and its rivals, in logits, ∞ where there is none; `spread_T` is σ, in logits."""
    chances = chances_of_rivals(gaps_TK, spread_T[:, None])
    return (np.where(chances > 0, gaps_TK, 0.0) * chances).sum(-1)


def spread(scores: TokenScores, noise: float) -> Floats:
    """σ [T] of each position, in logits."""
    return noise * scores.ranges


def excess_margins(scores: TokenScores, noise: float) -> Sums:
    """Margins of one completion against what `noise` explains: Sums of blocks, in units of each position's σ.

    A block is the longest run of tokens, BLOCK_TOKENS at most, of which margins of at most one σ are expected together. So its end is known
    before the margin of the token that would be one too many. Where hardly any margin is expected at all, as in float32, a longer block would
    count several mismatches as one.
    """
    spread_T = spread(scores, noise)
    counts = (spread_T > 0) & (spread_T <= SPREAD_MAX)  # all logits equal: nothing is rounded
    spread_T, margins_T = spread_T[counts], scores.margins[counts]
    if not len(spread_T):
        return Sums()
    expected = np.cumsum(expected_margins(scores.gaps[counts], spread_T) / spread_T)
    starts, at, reached = [], 0, 0.0
    while at < len(expected):
        starts.append(at)
        at = max(at + 1, min(at + BLOCK_TOKENS, int(np.searchsorted(expected, reached + 1, side="right"))))
        reached = float(expected[at - 1])
    ends = expected[[start - 1 for start in (*starts[1:], len(expected))]]
    margins = np.add.reduceat(margins_T / spread_T, starts)
    return Sums.of_blocks(margins, np.minimum(1.0, np.diff(ends, prepend=0.0)))
