"""Scores of completions that nobody generated: near ties as a policy has them, and rounding of a known noise."""

from __future__ import annotations

import numpy as np

from protocol.constants import RIVALS
from protocol.sampling import TokenScores

RANGES = (2.0, 18.0)
"""Logits: the range of a position's, which differs from one to the next; 10 on average."""


def completion(rng: np.random.Generator, noise: float, tokens: int, *, heavy: bool = False) -> TokenScores:
    """Near ties as dense as a policy's are; the rival wins where rounding is worth more than the gap."""
    ranges = rng.uniform(*RANGES, tokens)
    gaps = np.full((tokens, RIVALS), np.inf)
    gaps[:, 0] = rng.exponential(2.0, tokens)
    gaps[gaps > 1] = np.inf
    deviates = rng.standard_t(4, tokens) / np.sqrt(2) if heavy else rng.normal(size=tokens)
    is_beaten = noise * ranges * deviates > gaps[:, 0]
    margins = np.where(is_beaten, gaps[:, 0], 0.0)
    none = np.zeros(tokens)
    return TokenScores(margins, none, none.astype(np.int64), none, gaps, ranges)
