"""TOPLOC proofs of computation: which large activations a model produced, in 258 bytes per 32 tokens.

Rules: arXiv 2501.16007; bytes as the published package toploc 0.1.6 writes them. A *chunk* is the final hidden states
(the rows that enter `lm_head`) of up to 32 output tokens of one turn, as bf16, flattened row-major. Its *proof* is a polynomial over
GF(65497) of degree < k through the points (index mod m, bf16 pattern) of the k = 128 largest magnitudes:

    big-endian u16 modulus m, then k coefficients, ascending, as big-endian u16

A verifier computes its own hidden states, takes its own k largest, evaluates the polynomial there and compares sign,
exponent and mantissa. Signs are compared because a constant polynomial passes everything else by luck.

Covers: the format, building, strict parsing, scoring. Does not cover: where activations come from (node/engine) and which
scores are acceptable (run spec). NaN and infinity have the largest patterns, so any of them is among the k: those who build
and those who compare get a ValueError, for it is their own model that is broken.

Shapes: B chunks, N activations of a chunk, k points of a proof. All arithmetic is exact: see the field, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from protocol.constants import TOPLOC_CHUNK, TOPLOC_FIELD, TOPLOC_K, TOPLOC_MODULUS_FLOOR
from protocol.errors import Malformed

Bits = NDArray[np.uint16]
"""bf16 bit patterns."""

_GENERATOR = 7  # of the multiplicative group of GF(65497)
_BATCH = 32  # chunks handled at once: the working set stays in the CPU's cache
_STEP = 16  # polynomials are taken apart into blocks of so many coefficients
_MAGNITUDE, _SIGN, _EXPONENT, _MANTISSA = 0x7FFF, 0x8000, 0x7F80, 0x7F


@dataclass(frozen=True)
class ChunkScore:
    """How one proof compares with the verifier's own activations, over `k` points.

    `exponents` and `signs` count points that differ there; the mantissa errors (of 128 steps) are taken over the points
    whose exponents agree, and are infinite when there is none. The median is the element in the middle, the upper of two.
    """

    k: int
    exponents: int
    signs: int
    mantissa_mean: float
    mantissa_median: float

    @property
    def measured(self) -> dict[str, float]:
        """What the limits of a run spec are about (protocol/runspec.py, ComputationLimits)."""
        return {
            "exponents": self.exponents / self.k,
            "signs": self.signs / self.k,
            "mantissa_mean": self.mantissa_mean,
            "mantissa_median": self.mantissa_median,
        }


def chunk_count(tokens: int) -> int:
    """Proofs that `tokens` output tokens of one turn need."""
    return -(-tokens // TOPLOC_CHUNK)


def bf16_bits(values: NDArray[np.float32]) -> Bits:
    """Rounds float32 to bf16 (to nearest, ties to even): for engines without torch, and what those with it must agree with. Raises
    ValueError for NaN and infinities."""
    if not np.isfinite(values).all():
        raise ValueError("activations hold NaN or infinity; no proof can be made of them")
    word = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)
    if ((bits & _EXPONENT) == _EXPONENT).any():
        raise ValueError("activations overflow bf16")
    return bits


def prove(sequences: Sequence[Bits]) -> list[list[bytes]]:
    """Proofs of many sequences, each the generated rows [tokens, hidden] of one turn (protocol/turns.py); returns
    `chunk_count(tokens)` proofs for each. Raises ValueError for NaN and infinities."""
    chunks = [rows[i : i + TOPLOC_CHUNK].reshape(-1) for rows in sequences for i in range(0, len(rows), TOPLOC_CHUNK)]
    made: list[bytes] = [b""] * len(chunks)
    for members in _by_size(chunks):
        for i, proof in zip(members, encode(*largest([chunks[i] for i in members])), strict=True):
            made[i] = proof
    result, start = [], 0
    for rows in sequences:
        count = chunk_count(len(rows))
        result.append(made[start : start + count])
        start += count
    return result


def score(sequences: Sequence[Bits], proofs: Sequence[Sequence[bytes]]) -> list[list[ChunkScore]]:
    """Compares proofs with the verifier's own activations, [tokens, hidden] per sequence, which is one turn.

    Raises Malformed, before any arithmetic, when a proof is missing, too many or breaks the format; ValueError for NaN and
    infinities in the activations, which are the verifier's.
    """
    if len(sequences) != len(proofs):
        raise Malformed(f"{len(proofs)} lists of proofs for {len(sequences)} sequences")
    chunks: list[Bits] = []
    parsed: list[tuple[int, NDArray[np.int64]]] = []
    for rows, own in zip(sequences, proofs, strict=True):
        require_count(own, len(rows))
        for i, proof in enumerate(own):
            chunk = rows[i * TOPLOC_CHUNK : (i + 1) * TOPLOC_CHUNK].reshape(-1)
            parsed.append(parse(proof, chunk.size))
            chunks.append(chunk)
    scores: list[ChunkScore | None] = [None] * len(chunks)
    for members in _by_size(chunks):
        indices, values = largest([chunks[i] for i in members])
        _require_finite(values)
        moduli = np.array([parsed[i][0] for i in members])
        claimed = _evaluate(np.stack([parsed[i][1] for i in members]), indices % moduli[:, None])
        for i, found in zip(members, _compare(claimed, values), strict=True):
            scores[i] = found
    flat = iter(scores)
    return [[s for _, s in zip(own, flat, strict=False) if s is not None] for own in proofs]


REACH = 1 / 32
"""Four steps of the mantissa, or two where it is large: more is beyond what limits allow of all points. Lower: noise hides an alternative; higher: few forged points do."""


@dataclass(frozen=True)
class Points:
    """Of one chunk, where a proof and the verifier's own activations can be compared: indices [k], the verifier's patterns there and the claimed ones."""

    indices: NDArray[np.int32]
    own: Bits
    claimed: Bits

    def side(self, alternative: Bits) -> int:
        """1 where what is claimed lies nearer to the activations of an alternative, [N] of the same chunk, than to the verifier's own; -1 where it is the
        other way round, 0 where neither is true.

        Each point counts by the distance between the two times that of the claim from the middle, along it. A claim counts as no further beyond either than
        REACH of the verifier's value: a few points claimed to lie far away outweigh not many, and random noise put on all of them hides nothing. Points that are no numbers, on any
        side, count for nothing.
        """
        own, claimed, other = (_floats(bits) for bits in (self.own, self.claimed, alternative[self.indices]))
        apart = other - own
        counts = np.isfinite(claimed) & np.isfinite(apart) & (apart != 0)
        apart, own = apart[counts], own[counts]
        reach = REACH * np.abs(own)
        away = np.clip(claimed[counts] - own, np.minimum(apart, 0) - reach, np.maximum(apart, 0) + reach)
        return int(np.sign((apart * (2 * away - apart)).sum()))


def points(sequences: Sequence[Bits], proofs: Sequence[Sequence[bytes]]) -> list[list[Points]]:
    """Of each chunk, for proofs that `score` has found to be proofs; arguments as there."""
    found = []
    for rows, own in zip(sequences, proofs, strict=True):
        of_sequence = []
        for i, proof in enumerate(own):
            chunk = rows[i * TOPLOC_CHUNK : (i + 1) * TOPLOC_CHUNK].reshape(-1)
            modulus, coefficients = parse(proof, chunk.size)
            indices, values = largest([chunk])
            claimed = _evaluate(coefficients[None], indices % modulus)
            of_sequence.append(Points(indices[0].astype(np.int32), values[0], claimed[0].astype(np.uint16)))
        found.append(of_sequence)
    return found


def _floats(bits: Bits) -> NDArray[np.float64]:
    """Numbers of bf16 patterns."""
    with np.errstate(invalid="ignore"):  # a claimed pattern may be any NaN
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def require_count(proofs: Sequence[bytes], tokens: int) -> None:
    """Raises Malformed unless there are exactly as many proofs as `tokens` output tokens need."""
    if len(proofs) != chunk_count(tokens):
        raise Malformed(f"{len(proofs)} proofs for {tokens} tokens, which need {chunk_count(tokens)}")


def require_form(proofs: Sequence[bytes], tokens: int, hidden: int) -> None:
    """Raises Malformed unless these are proofs over `tokens` output tokens of a model of that hidden size."""
    require_count(proofs, tokens)
    for i, proof in enumerate(proofs):
        parse(proof, min(TOPLOC_CHUNK, tokens - i * TOPLOC_CHUNK) * hidden)


def parse(proof: bytes, values: int) -> tuple[int, NDArray[np.int64]]:
    """Modulus and coefficients [k] of a proof over a chunk of `values` activations; Malformed if anything is off."""
    k = min(TOPLOC_K, values)
    if not isinstance(proof, bytes) or len(proof) != 2 + 2 * k:
        size = len(proof) if isinstance(proof, bytes) else type(proof).__name__
        raise Malformed(f"a proof over {values} activations has {2 + 2 * k} bytes, this one {size}")
    words = np.frombuffer(proof, ">u2").astype(np.int64)
    modulus, coefficients = int(words[0]), words[1:]
    lowest = TOPLOC_FIELD if values <= TOPLOC_FIELD else TOPLOC_MODULUS_FLOOR
    if not lowest <= modulus <= TOPLOC_FIELD:
        raise Malformed(f"modulus {modulus} is outside [{lowest}, {TOPLOC_FIELD}]")
    if (coefficients >= TOPLOC_FIELD).any():
        raise Malformed("a coefficient is not an element of the field")
    return modulus, coefficients


def largest(chunks: Sequence[Bits] | Bits) -> tuple[NDArray[np.int64], Bits]:
    """Indices [B, k], ascending, and patterns [B, k] of the k largest magnitudes of B equally large chunks [N]; ties go to
    the lowest index."""
    size = len(chunks[0])
    k = min(TOPLOC_K, size)
    indices, values = np.empty((len(chunks), k), np.int64), np.empty((len(chunks), k), np.uint16)
    # Of N values cut into sets, the k-th largest of the sets' maxima is at most the k-th largest of all, and hardly less.
    # A set is a column of a table; its number of rows is odd lest a hidden dimension that is always large fill one column.
    height = size // 1024 | 1
    for row, chunk in enumerate(chunks):
        magnitudes = chunk & np.uint16(_MAGNITUDE)
        maxima = magnitudes[: size - size % height].reshape(height, -1).max(axis=0)
        candidates = np.flatnonzero(magnitudes >= np.partition(maxima, -k)[-k])
        if len(candidates) > k:
            descending = np.argsort(~magnitudes[candidates], kind="stable")  # stable: equal ones stay in order of index
            candidates = np.sort(candidates[descending[:k]])
        indices[row], values[row] = candidates, chunk[candidates]
    return indices, values


def encode(indices: NDArray[np.int64], values: Bits) -> list[bytes]:
    """Proofs through these points [B, k], as `largest` finds them. Raises ValueError for NaN and infinities."""
    _require_finite(values)
    moduli = _injective_modulus(indices)
    coefficients = _interpolate(indices % moduli[:, None], values.astype(np.int64))
    words = np.concatenate([moduli[:, None], coefficients], axis=1).astype(">u2")
    return [row.tobytes() for row in words]


# ---- building and comparing --------------------------------------------------------------------------------------------


def _by_size(chunks: Sequence[Bits]) -> list[list[int]]:
    """Positions of equally large chunks, in batches."""
    groups: dict[int, list[int]] = {}
    for i, chunk in enumerate(chunks):
        groups.setdefault(chunk.size, []).append(i)
    return [members[i : i + _BATCH] for members in groups.values() for i in range(0, len(members), _BATCH)]


def _require_finite(values: Bits) -> None:
    if ((values & np.uint16(_EXPONENT)) == _EXPONENT).any():
        raise ValueError("activations hold NaN or infinity; no proof can be made of them or compared with them")


def _compare(claimed: NDArray[np.int64], values: Bits) -> list[ChunkScore]:
    own = values.astype(np.int64)
    differing = ((claimed ^ own) & _EXPONENT) != 0
    signs = (((claimed ^ own) & _SIGN) != 0).sum(1)
    error = np.abs((claimed & _MANTISSA) - (own & _MANTISSA)).astype(np.float64)
    total = np.where(differing, 0.0, error).sum(1)
    error = np.sort(np.where(differing, np.inf, error), axis=1)  # those whose exponents agree come first
    k = own.shape[1]
    scores = []
    for row, (exponents, sign) in enumerate(zip(differing.sum(1).tolist(), signs.tolist(), strict=True)):
        agreeing = k - exponents
        mean = float(total[row]) / agreeing if agreeing else np.inf
        median = float(error[row, agreeing // 2]) if agreeing else np.inf
        scores.append(ChunkScore(k, exponents, sign, mean, median))
    return scores


def _injective_modulus(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Largest m ≤ 65497 per row for which all indices differ mod m."""
    moduli = np.full(len(indices), TOPLOC_FIELD, np.int64)
    open_rows = np.flatnonzero(indices.max(1) >= TOPLOC_FIELD)  # smaller indices are their own residues
    while open_rows.size:
        residues = np.sort(indices[open_rows] % moduli[open_rows, None], axis=1)
        open_rows = open_rows[(residues[:, 1:] == residues[:, :-1]).any(axis=1)]
        moduli[open_rows] -= 1
    return moduli


# ---- the field GF(65497) -----------------------------------------------------------------------------------------------
#
# Elements are float64 integers, so that BLAS multiplies them. `_reduce` leaves any |v| < 2**53 in (-p, 2p); everything below
# adds at most 128 products of two such numbers before the next reduction: at most 128 · (2p)² < 2**42, hence exact in
# whatever order it is added.

Field = NDArray[np.float64]


def _reduce(values: Field) -> Field:
    """Subtracts multiples of the field's order, in place."""
    values -= np.floor(values * (1.0 / TOPLOC_FIELD)) * TOPLOC_FIELD
    return values


def _elements(values: Field) -> NDArray[np.int64]:
    return values.astype(np.int64) % TOPLOC_FIELD


@cache
def _inverses() -> NDArray[np.int64]:
    """inverse[a] with a · inverse[a] = 1, for a in 1 … p - 1, from the powers of a generator."""
    powers = np.empty(TOPLOC_FIELD - 1, np.int64)
    powers[0], known = 1, 1
    while known < powers.size:
        take = min(known, powers.size - known)
        powers[known : known + take] = powers[:take] * pow(_GENERATOR, known, TOPLOC_FIELD) % TOPLOC_FIELD
        known += take
    inverse = np.zeros(TOPLOC_FIELD, np.int64)
    inverse[powers] = powers[-np.arange(powers.size) % powers.size]
    return inverse


class _Powers:
    """Powers of the points x [B, n]: `low` [B, 16, n] holds those below 16, `high` [B, n] is the 16th. Any power is a low one
    times a power of the high one, which turns most of the work on polynomials into matrix products."""

    def __init__(self, x: Field) -> None:
        self.low = np.empty((len(x), _STEP, x.shape[1]))
        self.low[:, 0] = 1
        known, self.high = 1, x
        while known < _STEP:
            added = np.multiply(self.low[:, :known], self.high[:, None], out=self.low[:, known : 2 * known])
            _reduce(added)
            known, self.high = 2 * known, _reduce(self.high * self.high)

    def evaluate(self, coefficients: Field) -> Field:
        """Polynomials [B, k] (ascending) at the points, by Horner over blocks of coefficients."""
        batch, k = coefficients.shape
        blocks = np.zeros((batch, -(-k // _STEP), _STEP))
        blocks.reshape(batch, -1)[:, :k] = coefficients
        terms = blocks @ self.low
        value = _reduce(terms[:, -1])
        for j in range(terms.shape[1] - 2, -1, -1):
            value = _reduce(value * self.high + terms[:, j])
        return value

    def sums(self, weights: Field, k: int) -> Field:
        """Σ_i w_i x_i^r for r < k, as [B, k]."""
        batch, n = weights.shape
        raised = np.empty((batch, -(-k // _STEP), n))  # w x^(16 j)
        raised[:, 0] = weights
        for j in range(1, raised.shape[1]):
            raised[:, j] = _reduce(raised[:, j - 1] * self.high)
        return _reduce((raised @ self.low.transpose(0, 2, 1)).reshape(batch, -1)[:, :k])


def _evaluate(coefficients: NDArray[np.int64], points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Polynomials [B, k] (ascending) at points [B, n]."""
    return _elements(_Powers(points.astype(np.float64)).evaluate(coefficients.astype(np.float64)))


def _with_roots(x: Field) -> Field:
    """Coefficients [B, k + 1] of Π (X - x_i), from a tree of products of pairs."""
    batch, k = x.shape
    factors = np.zeros((batch, 1 << (k - 1).bit_length(), 2))
    factors[..., 0] = 1  # the polynomial 1 fills up to a power of two
    factors[:, :k, 0], factors[:, :k, 1] = -x, 1
    while factors.shape[1] > 1:
        pairs, size = factors.shape[1] // 2, factors.shape[2]
        # All products a_i b_j, in rows one longer than the result: read without the last `size` numbers as rows of the
        # result's length, row i has moved right by i, so that a column holds the products of one degree i + j.
        products = np.zeros((batch, pairs, size, 2 * size))
        np.multiply(factors[:, ::2, :, None], factors[:, 1::2, None], out=products[..., :size])
        skewed = products.reshape(batch, pairs, -1)[..., :-size].reshape(batch, pairs, size, 2 * size - 1)
        factors = _reduce(skewed.sum(axis=2))
    return factors[:, 0, : k + 1]


def _interpolate(x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.int64]:
    """Coefficients [B, k] of the polynomials through (x, y), both [B, k], x distinct in a row.

    With M = Π (X - x_i) and s_i = y_i / M'(x_i), the quotient M / (X - x_i) has coefficients Σ_r M_(j+1+r) x_i^r, so
    c_j = Σ_r M_(j+1+r) T_r with the power sums T_r = Σ_i s_i x_i^r.
    """
    batch, k = x.shape
    points = x.astype(np.float64)
    powers, master = _Powers(points), _with_roots(points)
    slope = _elements(powers.evaluate(_reduce(master[:, 1:] * np.arange(1, k + 1))))
    sums = powers.sums((y * _inverses()[slope] % TOPLOC_FIELD).astype(np.float64), k)
    padded = np.concatenate([master[:, 1:], np.zeros((batch, k))], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, k, axis=1)[:, :k]
    return _elements(np.einsum("bjr,br->bj", windows, sums))
