"""Seeded sampling: every token is argmax(logits + T·G), with Gumbel noise G that anybody can recompute at any position.

    key     = first 8 bytes of the sample's derived seed, little-endian (protocol/seeds.py)
    word    = Philox4x32-10(key, counter = (vocabulary index ÷ 4, position, 0, 0))[vocabulary index mod 4]
    v       = (word + ½) · 2⁻³²          G = -ln(-ln(1 - v)), defined in float64

Position counts from the first output token. By the Gumbel-max rule the result is distributed as softmax(logits / T), yet
fixed by the key. Source: Philox, Salmon et al. 2011 (Random123). This is the definition, in NumPy; node/engine/noise.py
has the torch form, which must agree to 1e-5 and be finite for all words. Vectors: tests/vectors/sampling.json.

A verifier with logits of its own scores each token by its *margin*: how far it lies below the best score, 0 when it is
the very argmax. Noise lies in (-3.2, 22.9) per unit of temperature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10: four 32-bit words per counter, all held in uint64 arrays that broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


def gumbel_of_words(words: Words) -> NDArray[np.float64]:
    """Noise of 32-bit words; finite for every word."""
    v = (words.astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log1p(-v))


def noise(key: int, positions: NDArray[np.int64], vocabulary: int) -> NDArray[np.float64]:
    """Gumbel noise [len(positions), vocabulary] of one sample."""
    blocks = np.arange((vocabulary + 3) // 4, dtype=np.uint64)[None]
    rows = positions.astype(np.uint64)[:, None]
    zero = np.zeros((1, 1), np.uint64)
    words = philox((blocks, rows, zero, zero), (np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)))  # type: ignore[arg-type]
    shape = (len(positions), blocks.shape[1])
    mixed = np.stack([np.broadcast_to(w, shape) for w in words], axis=-1).reshape(len(positions), -1)
    return gumbel_of_words(mixed[:, :vocabulary])


@dataclass(frozen=True)
class TokenScores:
    """Per output token: `margins` [T] ≥ 0 below the best noised score, and `logprobs` [T] at temperature 1."""

    margins: NDArray[np.float64]
    logprobs: NDArray[np.float64]


def score(
    logits_TV: NDArray[np.float32], tokens: NDArray[np.integer[Any]], *, key: int, temperature: float, start: int = 0
) -> TokenScores:
    """Scores tokens of one sequence against a verifier's own logits [T, V]; the first of them stands at position `start`."""
    length = len(tokens)
    logits = logits_TV.astype(np.float64)
    noised = logits + temperature * noise(key, np.arange(start, start + length), logits.shape[1])
    chosen = noised[np.arange(length), tokens]
    shifted = logits - logits.max(1, keepdims=True)
    normaliser = np.log(np.exp(shifted).sum(1))
    return TokenScores(noised.max(1) - chosen, shifted[np.arange(length), tokens] - normaliser)
