"""Scoring on a CPU, compiled when it is first used: logits are gone through once, a part of the vocabulary at a time, as soon as they are made.

Of each row so much is carried from part to part as decides: the best score and its token, the next best, the highest and the lowest logit,
and the sum of exponentials. Words are compared with the least that could still count, as in compiled_draw.py.

Does not cover: a cut by `top_k` or `top_p`, which takes the whole row; temperature 0.

Shapes: R rows, N logits of a part, K rivals.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from node.engine.compiled import compiled
from node.engine.compiled_draw import LOG_BIAS, LOG_OF_BITS, noise, philox, take_place

_AT_ONCE = 1 << 11  # logits: what is made of them stays in the innermost cache
_LANES = 64  # sums that are kept side by side, for a processor adds many numbers at once
_NOISE_LEAST = -3.2
"""No noise is smaller: the largest word gives -ln(33·ln 2) = -3.13."""
_LOG2_E = np.float32(1 / math.log(2))
_SHIFT = np.float32(1.5 * (1 << 23))
"""Added to a float32 that is small against it, it leaves the nearest whole number in the lowest bits."""
_LEAST_POWER = np.float32(-126)  # of two that a float32 holds to full precision
# 2^f for f in [-1/2, 1/2], within 1e-7 of it: the coefficients of its Taylor series, ln(2)^k ÷ k!.
_C1, _C2, _C3, _C4, _C5, _C6 = (np.float32(math.log(2) ** k / math.factorial(k)) for k in range(1, 7))
_ONE = np.float32(1)


@njit(inline="always")
def ordered(bits: int) -> Any:
    """Bits of a float32 as a whole number that is ordered as floats are; NaN lies beyond the infinities. Its own inverse."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit
def _sum_of_exponentials(
    logits_N: NDArray[np.float32],
    top: float,
    numbers: NDArray[np.float32],
    powers: NDArray[np.float32],
    lanes: NDArray[np.float32],
) -> float:
    """Of logits less `top`, at most _AT_ONCE of them: 2 to the nearest whole number is put into the exponent, what is left through a polynomial.
    The last three are room to compute in."""
    count = len(logits_N)
    bits, power_bits = numbers.view(np.int32), powers.view(np.int32)
    for i in range(count):
        power = max((logits_N[i] - top) * _LOG2_E, _LEAST_POWER)
        whole = power + _SHIFT
        numbers[i] = whole
        f = power - (whole - _SHIFT)
        powers[i] = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    for i in range(count):
        power_bits[i] += bits[i] << np.int32(23)
    lanes[:] = 0
    for i in range(count // _LANES):
        for lane in range(_LANES):
            lanes[lane] += powers[i * _LANES + lane]
    total = 0.0
    for lane in range(_LANES):
        total += lanes[lane]
    for i in range(count - count % _LANES, count):
        total += powers[i]
    return total


@njit
def _mark(
    logits_N: NDArray[np.float32], words: NDArray[np.uint32], numbers: NDArray[np.float32], need: float, slope: float,
    may_count: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Which of these, at most _AT_ONCE, may reach what is needed with the noise of their words."""
    count = len(logits_N)
    bits = numbers.view(np.int32)
    for i in range(count):
        numbers[i] = np.float32(words[i])
    for i in range(count):
        may_count[i] = logits_N[i] - need >= slope * np.float32(bits[i])
    may_count[count:] = 0


@compiled(
    "void(f4[:, ::1], i4[:, ::1], i8, u8[::1], i8[::1], f8, f8, i4[:, ::1], f8[::1], f8[::1], i8[::1], f4[::1], f8[:, ::1])"
)
def scan(
    logits_RN: NDArray[np.float32],
    bits_RN: NDArray[np.int32],
    start: int,
    keys_R: NDArray[np.uint64],
    positions_R: NDArray[np.int64],
    temperature: float,
    within: float,
    extremes_2R: NDArray[np.int32],
    sums_R: NDArray[np.float64],
    scores_R: NDArray[np.float64],
    tokens_R: NDArray[np.int64],
    drawn_R: NDArray[np.float32],
    rivals_RK: NDArray[np.float64],
) -> None:
    """Takes in the logits of tokens start, start + 1, …; `start` is a multiple of 4, and parts come in order. `bits_RN` are the same numbers' bits.

    Writes what is known of each row so far: of all logits the lowest and the highest (`extremes_2R`, as `ordered` has their bits) and the
    sum of their exponentials over that of the highest; the best score logit + T·G, its first token, the logit of that, and the K next best
    scores, descending, as far as they lie `within` of the best.
    """
    rows, count_of_part = logits_RN.shape
    count_of_rivals = rivals_RK.shape[1]
    made = np.empty(_AT_ONCE, np.uint32)
    numbers = np.empty(_AT_ONCE, np.float32)
    powers = np.empty(_AT_ONCE, np.float32)
    lanes = np.empty(_LANES, np.float32)
    top_of = np.empty(1, np.int32)
    top_as_float = top_of.view(np.float32)
    may_count = np.zeros(_AT_ONCE, np.uint8)
    eights = may_count.view(np.uint64)
    slope = np.float32(temperature * LOG_OF_BITS)
    for row in range(rows):
        logits, key, position, rivals = logits_RN[row], keys_R[row], positions_R[row], rivals_RK[row]
        lowest, highest = extremes_2R[0, row], extremes_2R[1, row]
        top_of[0] = ordered(highest)
        before = np.float64(top_as_float[0])
        of_row = bits_RN[row]
        for i in range(count_of_part):
            number = ordered(of_row[i])
            lowest, highest = min(lowest, number), max(highest, number)
        extremes_2R[0, row], extremes_2R[1, row] = lowest, highest
        top_of[0] = ordered(highest)
        top = top_as_float[0]
        if math.isinf(top):
            continue  # nothing is drawn from it
        best, token = scores_R[row], tokens_R[row]
        total = sums_R[row] * math.exp(before - np.float64(top)) if before < top else sums_R[row]
        for first in range(0, count_of_part, _AT_ONCE):
            count = min(_AT_ONCE, count_of_part - first)
            part = logits[first : first + count]
            total += _sum_of_exponentials(part, top, numbers, powers, lanes)
            block = (start + first) // 4
            for i in range((count + 3) // 4):
                made[4 * i], made[4 * i + 1], made[4 * i + 2], made[4 * i + 3] = philox(block + i, position, key)
            least = max(best, top + temperature * _NOISE_LEAST)
            # What is taken off covers the rounding of float32.
            need = np.float32(least - within - temperature * (LOG_BIAS + 1e-3) - 1e-5 * abs(least))
            _mark(part, made, numbers, need, slope, may_count)
            for eight in range((count + 7) // 8):
                if eights[eight] == 0:
                    continue
                for i in range(8 * eight, 8 * eight + 8):
                    if may_count[i]:
                        score = part[i] + temperature * noise(made[i])
                        beaten = score
                        if score > best:
                            beaten, best, token, drawn_R[row] = best, score, start + first + i, part[i]
                        if count_of_rivals and beaten > rivals[-1]:
                            take_place(rivals, beaten)
        sums_R[row], scores_R[row], tokens_R[row] = total, best, token
