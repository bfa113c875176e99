"""Activations made of integers, for vectors and for comparing with other implementations: any language makes the same.

Of `ranked` ones all magnitudes of a chunk of up to `prime` values differ but zeros, so that there is one right choice of the largest.
Of `tying` ones many are equal, and in most chunks several compete for the last place among the largest.
"""

from __future__ import annotations

import numpy as np

from protocol.toploc import Bits

PATTERN = (
    "rank = (multiplier · i) mod prime, i counted row-major over all tokens; magnitude = max(16896 - rank, 0); "
    "sign = bit 4 of i²; pattern = 32768 · sign + magnitude. `shifted`: 5 · (i mod 3) is added to magnitudes above 0, "
    "and the sign turned where i mod 7 = 0"
)
TYING = "(40503 i + 9973 floor(i / 128)) mod 65536, with bit 14 cleared; row-major"


def ranked(tokens: int, hidden: int, prime: int, multiplier: int, *, shifted: bool = False) -> Bits:
    """bf16 patterns [tokens, hidden]; `shifted` is what another device might have computed."""
    i = np.arange(tokens * hidden, dtype=np.int64)
    magnitude = np.maximum(0x4200 - multiplier * i % prime, 0)
    sign = i * i >> 4 & 1
    if shifted:
        magnitude = np.where(magnitude > 0, magnitude + 5 * (i % 3), 0)
        sign ^= i % 7 == 0
    return (sign << 15 | magnitude).astype(np.uint16).reshape(tokens, hidden)


def tying(tokens: int, hidden: int) -> Bits:
    """bf16 patterns [tokens, hidden]; the bit that is cleared keeps exponents finite."""
    i = np.arange(tokens * hidden, dtype=np.uint64)
    return ((i * 40503 + (i >> 7) * 9973) % 65536 & 0xBFFF).astype(np.uint16).reshape(tokens, hidden)
