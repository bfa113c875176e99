"""How far honest margins lie, given how far two honest devices' logits differ: what margins are compared with.

Worker and validator compute the same logits but for rounding. *Noise* is the standard deviation, in logits, of how far the difference of two
tokens' logits differs between the two. A token whose score logit + T·G lies d below the best is drawn where rounding is worth more than
d: with probability Φ(-d / noise), and then its margin is d. So each position has its own expected margin, and near ties alone have much of one:

    e = Σ d·Φ(-d / noise)   over the rivals of the draw.

The sum counts a position twice at which two rivals are both near enough: an upper bound. Entropy moves how many near ties there are,
and with them e, but not the noise: training does not make a calibration stale. What is assumed of noise is its spread: near ties are much denser
than noise is wide, so that a heavier tail of the same spread has the same mean.

Does not cover: noise above NOISE_MAX, for rivals are looked for within RIVALS_WITHIN of the draw.

Shapes: T tokens, K rivals.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from protocol.eprocess import Sums
from protocol.sampling import RIVALS_WITHIN, Floats, TokenScores

NOISE_MAX: Final = RIVALS_WITHIN / 3
"""Largest noise, in logits, that margins can be compared with: Φ(-3) of what lies further away is left out. Changing it breaks: specs that name
a larger one."""

_erfc = np.vectorize(math.erfc, otypes=[np.float64])
_FAR = 8.0  # times the noise: Φ(-8) is 6e-16


def expected_margins(gaps_TK: Floats, noise: float) -> Floats:
    """[T] in logits, of the gaps between each draw and its rivals, in logits, ∞ where there is none."""
    chances = np.zeros_like(gaps_TK)
    near = gaps_TK < _FAR * noise
    chances[near] = _erfc(gaps_TK[near] / (noise * math.sqrt(2))) / 2
    return (np.where(near, gaps_TK, 0.0) * chances).sum(-1)


def excess_margins(scores: TokenScores, noise: float, clip: float) -> Sums:
    """Margins of one completion, clipped at `clip` logits, against what `noise` explains: Sums of blocks, in units of the noise.

    A block is the longest run of tokens of which margins of at most one noise are expected together. Where the next one ends is known before the margin
    of its last token is.
    """
    expected = np.cumsum(expected_margins(scores.gaps, noise) / noise)
    starts, at, reached = [], 0, 0.0
    while at < len(expected):
        starts.append(at)
        at = max(at + 1, int(np.searchsorted(expected, reached + 1, side="right")))
        reached = float(expected[at - 1])
    ends = expected[[start - 1 for start in (*starts[1:], len(expected))]]
    margins = np.minimum(scores.margins, clip) / noise
    return Sums.of_blocks(np.add.reduceat(margins, starts), np.minimum(1.0, np.diff(ends, prepend=0.0)))
