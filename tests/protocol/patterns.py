"""Activations of which many are equal in magnitude, and which of them compete for the last places of a proof."""

from __future__ import annotations

import numpy as np

from protocol.constants import TOPLOC_K
from protocol.toploc import Bits


def drawn(tokens: int, hidden: int, levels: int, seed: int) -> Bits:
    """Rows [tokens, hidden] of so many different magnitudes, all of them numbers, with either sign."""
    random = np.random.default_rng(seed)
    magnitudes = random.choice(0x7F80, levels, replace=False)[random.integers(0, levels, (tokens, hidden))]
    return (magnitudes | random.choice([0, 0x8000], (tokens, hidden))).astype(np.uint16)


def competing(chunk: Bits) -> int:
    """Places among the k largest that go to one of several equals, of which not all find room; 0 where nothing ties there."""
    magnitudes = np.sort(chunk.reshape(-1) & 0x7FFF)[::-1]
    if magnitudes.size <= TOPLOC_K or magnitudes[TOPLOC_K] < magnitudes[TOPLOC_K - 1]:
        return 0
    return int((magnitudes[:TOPLOC_K] == magnitudes[TOPLOC_K - 1]).sum())
