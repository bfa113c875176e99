"""The draw on a CPU, compiled when it is first used: every word of a row is made and looked at where it lies, in the processor's cache.

A word is compared with the least that could win before anything is done in float64: the bits of a float32 are nearly its logarithm, and
never more than that.

Does not cover: which tokens `top_k` and `top_p` leave (sampler.py does), temperature 0.

Shapes: R rows, V vocabulary, N scattered blocks of four tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from node.engine.compiled import compiled
from node.engine.noise import M0, M1, W0, W1

_AT_ONCE = 1 << 11  # words: with the logits beside them they stay in the innermost cache
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(M0), np.uint64(M1)
_INCREMENT_0, _INCREMENT_1 = np.uint32(W0), np.uint32(W1)
_HALF = np.uint64(32)
LOG_OF_BITS = math.log(2) / (1 << 23)
"""Bits of a float32, as a whole number, times this are its logarithm plus `LOG_BIAS`, or up to 0.06 less."""
LOG_BIAS = (127 + 32) * math.log(2)  # 32: a word over 2**32 is the uniform number


@njit(inline="always")
def philox(block: int, position: int, key: int) -> tuple[Any, ...]:
    c0, c1, c2, c3 = np.uint32(block), np.uint32(position), np.uint32(0), np.uint32(0)
    k0, k1 = np.uint32(key), np.uint32(key >> _HALF)
    for _ in range(10):
        p0, p1 = np.uint64(c0) * _MULTIPLIER_0, np.uint64(c2) * _MULTIPLIER_1
        c0, c1 = np.uint32(np.uint32(p1 >> _HALF) ^ c1 ^ k0), np.uint32(p1)
        c2, c3 = np.uint32(np.uint32(p0 >> _HALF) ^ c3 ^ k1), np.uint32(p0)
        k0, k1 = np.uint32(k0 + _INCREMENT_0), np.uint32(k1 + _INCREMENT_1)
    return c0, c1, c2, c3


@njit(inline="always")
def noise(word: int) -> float:
    return -math.log(-math.log1p(-(word + 0.5) * 2.0**-32))


@compiled("void(u8[::1], i8[::1], i8[::1], i8[:, ::1])")
def words(
    keys_N: NDArray[np.uint64], positions_N: NDArray[np.int64], blocks_N: NDArray[np.int64], made_N4: NDArray[np.int64]
) -> None:
    """Writes the four words of vocabulary indices 4·block … 4·block + 3, each for its own key and position."""
    for i in range(len(blocks_N)):
        made_N4[i, 0], made_N4[i, 1], made_N4[i, 2], made_N4[i, 3] = philox(blocks_N[i], positions_N[i], keys_N[i])


@njit(inline="always")
def take_place(rivals_K: NDArray[np.float64], score: float) -> None:
    """Puts a score among the best, which lie in descending order, in place of the least."""
    k = len(rivals_K) - 1
    while k > 0 and score > rivals_K[k - 1]:
        rivals_K[k] = rivals_K[k - 1]
        k -= 1
    rivals_K[k] = score


@compiled("void(f4[:, ::1], u8[::1], i8[::1], f8, f4[::1], i8[::1], i8[::1], f8[::1], f8, f8[:, ::1])")
def seek(
    logits_RV: NDArray[np.float32],
    keys_R: NDArray[np.uint64],
    positions_R: NDArray[np.int64],
    temperature: float,
    lowest_R: NDArray[np.float32],
    last_R: NDArray[np.int64],
    tokens_R: NDArray[np.int64],
    scores_R: NDArray[np.float64],
    within: float,
    rivals_RK: NDArray[np.float64],
) -> None:
    """Writes the first token of each row that has the highest score logit + T·G, and that score; begins with those in `tokens_R`, of which
    every other has to prove better. Kept are logits above `lowest_R`, and those equal to it up to index `last_R`.

    Writes the scores of the K next best too, descending, as far as they lie `within` of the best: `rivals_RK` holds -inf before, and K
    may be 0.
    """
    rows, vocabulary = logits_RV.shape
    count_of_rivals = rivals_RK.shape[1]
    made = np.empty(_AT_ONCE, np.uint32)
    numbers = np.empty(_AT_ONCE, np.float32)
    bits = numbers.view(np.int32)
    may_win = np.zeros(_AT_ONCE, np.uint8)
    eights = may_win.view(np.uint64)
    slope = np.float32(temperature * LOG_OF_BITS)
    for row in range(rows):
        logits, key, position, rivals = logits_RV[row], keys_R[row], positions_R[row], rivals_RK[row]
        token = tokens_R[row]
        begun = token
        made[0], made[1], made[2], made[3] = philox(token // 4, position, key)
        best = logits[token] + temperature * noise(made[token % 4])
        for start in range(0, vocabulary, _AT_ONCE):
            count = min(_AT_ONCE, vocabulary - start)
            for i in range((count + 3) // 4):
                made[4 * i], made[4 * i + 1], made[4 * i + 2], made[4 * i + 3] = philox(start // 4 + i, position, key)
            for i in range(count):
                numbers[i] = np.float32(made[i])
            # What is taken off covers the rounding of float32.
            need = np.float32(best - within - temperature * (LOG_BIAS + 1e-3) - 1e-5 * abs(best))
            part = logits[start : start + count]
            for i in range(count):
                may_win[i] = part[i] - need >= slope * np.float32(bits[i])
            may_win[count:] = 0
            for eight in range((count + 7) // 8):
                if eights[eight] == 0:
                    continue
                for i in range(8 * eight, 8 * eight + 8):
                    if may_win[i]:
                        at, logit = start + i, part[i]
                        if at == begun or logit < lowest_R[row] or (logit == lowest_R[row] and at > last_R[row]):
                            continue
                        score = logit + temperature * noise(made[i])
                        beaten = score
                        if score > best or (score == best and at < token):
                            beaten, best, token = best, score, at
                        if count_of_rivals and beaten > rivals[-1]:
                            take_place(rivals, beaten)
        tokens_R[row], scores_R[row] = token, best
