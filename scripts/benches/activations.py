"""Activations made of integers, for vectors and for comparing with other implementations: any language makes the same.

Within a chunk of up to `prime` values all magnitudes differ but zeros, so that there is one right choice of the largest.
"""

from __future__ import annotations

import numpy as np

from protocol.toploc import Bits

PATTERN = (
    "rank = (multiplier · i) mod prime, i counted row-major over all tokens; magnitude = max(16896 - rank, 0); "
    "sign = bit 4 of i²; pattern = 32768 · sign + magnitude. `shifted`: 5 · (i mod 3) is added to magnitudes above 0, "
    "and the sign turned where i mod 7 = 0"
)


def ranked(tokens: int, hidden: int, prime: int, multiplier: int, *, shifted: bool = False) -> Bits:
    """bf16 patterns [tokens, hidden]; `shifted` is what another device might have computed."""
    i = np.arange(tokens * hidden, dtype=np.int64)
    magnitude = np.maximum(0x4200 - multiplier * i % prime, 0)
    sign = i * i >> 4 & 1
    if shifted:
        magnitude = np.where(magnitude > 0, magnitude + 5 * (i % 3), 0)
        sign ^= i % 7 == 0
    return (sign << 15 | magnitude).astype(np.uint16).reshape(tokens, hidden)
