"""TOPLOC proofs of computation: which large activations a model produced, in 258 bytes per 32 tokens.

Rules: arXiv 2501.16007; bytes as the published package toploc 0.1.6 writes them. A *chunk* is the final hidden states
(the rows that enter `lm_head`) of up to 32 output tokens, as bf16, flattened row-major. Its *proof* is a polynomial over
GF(65497) of degree < k through the points (index mod m, bf16 pattern) of the k = 128 largest magnitudes:

    big-endian u16 modulus m, then k coefficients, ascending, as big-endian u16

A verifier computes its own hidden states, takes its own k largest, evaluates the polynomial there and compares sign,
exponent and mantissa. Signs are compared because a constant polynomial passes everything else by luck.

Covers: the format, building, strict parsing, scoring. Does not cover: where activations come from (node/engine) and which
scores are acceptable (run spec). All arithmetic is exact: float64 holds every intermediate below 2**53.
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
_BATCH = 64  # chunks handled at once: the working set stays in the CPU's cache


@dataclass(frozen=True)
class ChunkScore:
    """How one proof compares with the verifier's own activations, over `k` points.

    `exponents` and `signs` count points that differ there; the mantissa errors (of 128 steps) are taken over the points
    whose exponents agree, and are infinite when there is none.
    """

    k: int
    exponents: int
    signs: int
    mantissa_mean: float
    mantissa_median: float


def chunk_count(tokens: int) -> int:
    """Proofs that `tokens` output tokens need."""
    return -(-tokens // TOPLOC_CHUNK)


def bf16_bits(values: NDArray[np.float32]) -> Bits:
    """Rounds float32 to bf16 (to nearest, ties to even). Raises ValueError for NaN and infinities."""
    if not np.isfinite(values).all():
        raise ValueError("activations hold NaN or infinity; no proof can be made of them")
    word = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)
    if ((bits & 0x7F80) == 0x7F80).any():
        raise ValueError("activations overflow bf16")
    return bits


def prove(sequences: Sequence[Bits]) -> list[list[bytes]]:
    """Proofs of many sequences. Each is [tokens, hidden]; returns `chunk_count(tokens)` proofs for each."""
    chunks = [rows[i : i + TOPLOC_CHUNK].reshape(-1) for rows in sequences for i in range(0, len(rows), TOPLOC_CHUNK)]
    made: list[bytes] = [b""] * len(chunks)
    for members in _by_size(chunks):
        indices, values = largest(np.stack([chunks[i] for i in members]))
        for i, proof in zip(members, _encode(indices, values), strict=True):
            made[i] = proof
    result, start = [], 0
    for rows in sequences:
        count = chunk_count(len(rows))
        result.append(made[start : start + count])
        start += count
    return result


def score(sequences: Sequence[Bits], proofs: Sequence[Sequence[bytes]]) -> list[list[ChunkScore]]:
    """Compares proofs with the verifier's own activations, [tokens, hidden] per sequence.

    Raises Malformed, before any arithmetic, when a proof is missing, too many or breaks the format.
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
        indices, values = largest(np.stack([chunks[i] for i in members]))
        moduli = np.array([parsed[i][0] for i in members])
        claimed = _evaluate(np.stack([parsed[i][1] for i in members]), indices % moduli[:, None])
        for i, found in zip(members, _compare(claimed, values), strict=True):
            scores[i] = found
    flat = iter(scores)
    return [[s for _, s in zip(own, flat, strict=False) if s is not None] for own in proofs]


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


def largest(chunks_BN: Bits) -> tuple[NDArray[np.int64], Bits]:
    """Indices [B, k], ascending, and patterns [B, k] of the k largest magnitudes; ties go to the lowest index."""
    count = chunks_BN.shape[1]
    k = min(TOPLOC_K, count)
    # One sortable number per activation, all different: magnitude first, then the lower index.
    rank = ((chunks_BN & 0x7FFF).astype(np.int64) << 32) | np.arange(count - 1, -1, -1)
    top = (
        np.argpartition(rank, count - k, axis=1)[:, count - k :]
        if k < count
        else np.tile(np.arange(count), (len(rank), 1))
    )
    top = np.sort(top, axis=1)
    return top, np.take_along_axis(chunks_BN, top, 1)


# ---- building and comparing --------------------------------------------------------------------------------------------


def _by_size(chunks: Sequence[Bits]) -> list[list[int]]:
    """Positions of equally large chunks, in batches."""
    groups: dict[int, list[int]] = {}
    for i, chunk in enumerate(chunks):
        groups.setdefault(chunk.size, []).append(i)
    return [members[i : i + _BATCH] for members in groups.values() for i in range(0, len(members), _BATCH)]


def _encode(indices: NDArray[np.int64], values: Bits) -> list[bytes]:
    moduli = _injective_modulus(indices)
    coefficients = _interpolate(indices % moduli[:, None], values.astype(np.int64))
    words = np.concatenate([moduli[:, None], coefficients], axis=1).astype(">u2")
    return [row.tobytes() for row in words]


def _compare(claimed: NDArray[np.int64], values: Bits) -> list[ChunkScore]:
    own = values.astype(np.int64)
    differing = ((claimed ^ own) & 0x7F80) != 0
    signs = ((claimed ^ own) & 0x8000) != 0
    error = np.where(differing, np.inf, np.abs((claimed & 0x7F) - (own & 0x7F)).astype(np.float64))
    error.sort(axis=1)
    k = own.shape[1]
    scores = []
    for row, exponents, sign in zip(error, differing.sum(1), signs.sum(1), strict=True):
        agreeing = k - int(exponents)
        mean = float(row[:agreeing].mean()) if agreeing else np.inf
        median = float(row[agreeing // 2]) if agreeing else np.inf
        scores.append(ChunkScore(k, int(exponents), int(sign), mean, median))
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


# ---- the field GF(65497), in float64 -----------------------------------------------------------------------------------


def _reduce(values: NDArray[np.float64]) -> None:
    """Subtracts multiples of the field's order, in place; leaves values in (-p, 2p), which further products tolerate."""
    values -= np.floor(values * (1.0 / TOPLOC_FIELD)) * TOPLOC_FIELD


def _elements(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.mod(values, TOPLOC_FIELD).astype(np.int64)


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


def _evaluate(coefficients: NDArray[np.int64], points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Polynomials [B, k] (ascending) at points [B, n], by Horner."""
    x, c = points.astype(np.float64), coefficients.astype(np.float64)
    value = np.repeat(c[:, -1:], x.shape[1], axis=1)
    for j in range(c.shape[1] - 2, -1, -1):
        value *= x
        value += c[:, j : j + 1]
        _reduce(value)
    return _elements(value)


def _interpolate(x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.int64]:
    """Coefficients [B, k] of the polynomials through (x, y), both [B, k], x distinct in a row.

    With M = Π (X - x_i) and s_i = y_i / M'(x_i), the quotient M / (X - x_i) has coefficients Σ_r M_(j+1+r) x_i^r, so
    c_j = Σ_r M_(j+1+r) T_r with the power sums T_r = Σ_i s_i x_i^r.
    """
    batch, k = x.shape
    points = x.astype(np.float64)
    master = np.zeros((batch, k + 1))
    master[:, 0] = 1
    for i in range(k):  # multiply by (X - x_i): degree i becomes i + 1
        shifted = master[:, : i + 1] * points[:, i : i + 1]
        master[:, 1 : i + 2] = master[:, : i + 1].copy()
        master[:, 0] = 0
        master[:, : i + 1] -= shifted
        _reduce(master[:, : i + 2])
    master = np.mod(master, TOPLOC_FIELD)
    slope = _evaluate(_elements(master[:, 1:] * np.arange(1, k + 1)), x)
    weights = (np.mod(y, TOPLOC_FIELD) * _inverses()[slope] % TOPLOC_FIELD).astype(np.float64)  # s_i, then s_i x_i^r
    sums = np.empty((batch, k))
    for r in range(k):
        sums[:, r] = weights.sum(1)
        weights *= points
        _reduce(weights)
    sums = np.mod(sums, TOPLOC_FIELD)
    padded = np.concatenate([master[:, 1:], np.zeros((batch, k))], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, k, axis=1)[:, :k]
    return _elements(np.einsum("bjr,br->bj", windows, sums))  # below 128 · 65496² < 2**53
