"""Seeded sampling: every token is argmax(logits + T·G), with Gumbel noise G that anybody can recompute at any position.

    key     = first 8 bytes of the sample's derived seed, little-endian (protocol/seeds.py)
    word    = Philox4x32-10(key, counter = (vocabulary index ÷ 4, position, 0, 0))[vocabulary index mod 4]
    v       = (word + ½) · 2⁻³²          G = -ln(-ln(1 - v)), defined in float64

Position counts from the first output token. By the Gumbel-max rule the result is distributed as softmax(logits / T), yet
fixed by the key. Where the run spec says so, the distribution is cut first: tokens are ranked by logit, the lower index first
among equals; the best `top_k` are kept, and of these each token before which less than `top_p` of their probability lies.
T = 0 is greedy: the best token, the lowest index among equals, whatever the cut.

A verifier with logits of its own scores each token by its *margin*: the least by which logits must be off for the token to have
been drawn, 0 when it is the very draw. Logits of two honest machines differ in their last bits, so that one of them may
keep what the other cuts off: the cut has a margin too, in the same unit. See `score`.

This is the definition, in NumPy, over whole rows. node/engine/noise.py has the noise in torch, which must agree to 1e-5 and be
finite for all words; node/engine/sampler.py looks only at tokens that can still win. Vectors: tests/vectors/sampling.json.
Source: Philox, Salmon et al. 2011 (Random123).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.constants import RIVALS, RIVALS_WITHIN, TOPLOC_CHUNK
from protocol.turns import Turns

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]

NOISE_MAX = 22.9
"""No noise is larger: the word 0 gives 33·ln 2 = 22.874."""

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_NOISE_AT_ONCE = 1 << 18  # words whose arrays are held at once
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


def gumbel_of_words(words: Words) -> Floats:
    """Noise of 32-bit words; finite for every word."""
    v = (words.astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log1p(-v))


def noise(key: int, positions: NDArray[np.int64], vocabulary: int) -> Floats:
    """Gumbel noise [len(positions), vocabulary] of one sample."""
    blocks = np.arange((vocabulary + 3) // 4, dtype=np.uint64)[None]
    rows = positions.astype(np.uint64)[:, None]
    zero = np.zeros((1, 1), np.uint64)
    words = philox((blocks, rows, zero, zero), (np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)))  # type: ignore[arg-type]
    shape = (len(positions), blocks.shape[1])
    mixed = np.stack([np.broadcast_to(w, shape) for w in words], axis=-1).reshape(len(positions), -1)
    return gumbel_of_words(mixed[:, :vocabulary])


# ---- the cut -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ranking:
    """One row's tokens by rank, and where the cut lies among them."""

    order: NDArray[np.int64]
    """Token of each rank."""
    logits: Floats
    """Logit of each rank, descending."""
    kept: int
    """Ranks that are kept, at least one."""
    slack: Floats
    """Of the ranks that `top_k` keeps, and of the next: by how much the logits before the rank would have to rise together
    for it to be cut off. Negative beyond the cut; -inf beyond `top_k`."""

    @classmethod
    def of(cls, logits_V: Floats, temperature: float, top_k: int, top_p: float) -> _Ranking:
        order = np.argsort(-logits_V, kind="stable")
        logits = logits_V[order]
        most = min(top_k or len(logits), len(logits))
        slack, kept = np.full(most, np.inf), most
        if top_p < 1:
            weights = np.exp((logits[:most] - logits[0]) / temperature)
            before = np.clip((np.cumsum(weights) - weights) / weights.sum(), 0, 1)
            kept = max(1, int((before < top_p).sum()))
            with np.errstate(divide="ignore"):  # the odds of a probability grow by what the logits behind it rise
                odds = np.log(before) - np.log1p(-before)
            slack = temperature * (np.log(top_p) - np.log1p(-top_p) - odds)
        return cls(order, logits, kept, np.append(slack, -np.inf) if most < len(logits) else slack)

    def inside(self) -> Floats:
        """Logits by which each kept rank lies within the cut: it would have to fall to a rank r and the cut to come there,
        the greater of these two, for the best r."""
        logits, reach = self.logits[: len(self.slack)], self.logits[: len(self.slack)] + self.slack
        kept = logits[: self.kept]
        rank = np.searchsorted(-reach, -kept)  # from here on falling is more than the cut's way, before it less
        falling = kept - np.append(logits, -np.inf)[rank]
        return np.minimum(falling, self.slack[rank - 1])

    def outside(self, rank: int) -> float:
        """Logits by which a rank lies beyond the cut, likewise; 0 for what is kept, and for equals of the last that is."""
        if rank < self.kept:
            return 0.0
        logits, logit = self.logits[: len(self.slack)], self.logits[rank]
        last = int((logits + self.slack >= logit).sum()) - 1  # up to here rising is more than the cut's way
        way = -self.slack[last + 1] if last + 1 <= min(rank, len(self.slack) - 1) else np.inf
        return float(max(0.0, min(logits[last] - logit, way)))


# ---- drawing and scoring -----------------------------------------------------------------------------------------------


def draw(
    logits_TV: NDArray[np.floating[Any]],
    *,
    key: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    first: int = 0,
) -> NDArray[np.int64]:
    """The tokens [T] of logits at positions first, first + 1, …; `top_k` 0 and `top_p` 1 cut nothing."""
    tokens = np.empty(len(logits_TV), np.int64)
    for t, logits, noised in _noised(logits_TV, key, temperature, first):
        if temperature > 0 and (top_k or top_p < 1):
            ranking = _Ranking.of(logits, temperature, top_k, top_p)
            noised[ranking.order[ranking.kept :]] = -np.inf
        tokens[t] = noised.argmax()
    return tokens


def _noised(
    logits_TV: NDArray[np.floating[Any]], key: int, temperature: float, first: int
) -> Iterator[tuple[int, Floats, Floats]]:
    """Per row: its number, its logits, and logits + T·G."""
    rows = max(1, _NOISE_AT_ONCE // logits_TV.shape[1])
    for start in range(0, len(logits_TV), rows):
        logits = logits_TV[start : start + rows].astype(np.float64)
        positions = np.arange(first + start, first + start + len(logits))
        noised = logits + temperature * noise(key, positions, logits.shape[1])
        for row in range(len(logits)):
            yield start + row, logits[row], noised[row]


@dataclass(frozen=True)
class TokenScores:
    """Per output token, against a verifier's own logits.

    `margins` [T] ≥ 0 in logits; `logprobs` [T] at temperature 1, of the whole vocabulary; `drawn` [T], the tokens that the verifier would
    have drawn; `leads` [T], by how much the logit of the token lies above that of the drawn one; `gaps` [T, RIVALS], how far the next best
    scores lie below the best, ascending, ∞ beyond RIVALS_WITHIN, and everywhere where the distribution is cut: a margin at the edge of a cut is
    of another kind; `ranges` [T], how far the lowest of all logits lies below the highest, which is what rounding grows with.
    """

    margins: Floats
    logprobs: Floats
    drawn: NDArray[np.int64]
    leads: Floats
    gaps: Floats
    ranges: Floats

    @classmethod
    def joined(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """One after the other."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def packed(self) -> bytes:
        """Everything as little-endian float64 [5 + RIVALS, T], which holds every index of a vocabulary."""
        rows = [self.margins, self.logprobs, self.drawn, self.leads, self.ranges, self.gaps.T]
        return np.vstack(rows).astype("<f8").tobytes()

    @classmethod
    def unpacked(cls, data: bytes) -> TokenScores:
        margins, logprobs, drawn, leads, ranges, *gaps = np.frombuffer(data, "<f8").reshape(5 + RIVALS, -1)
        return cls(margins, logprobs, drawn.astype(np.int64), leads, np.stack(gaps, 1), ranges)


def score(
    logits_TV: NDArray[np.floating[Any]], tokens: NDArray[np.integer[Any]], *,
    key: int, temperature: float, top_k: int = 0, top_p: float = 1.0, first: int = 0,
) -> TokenScores:  # fmt: skip
    """Scores tokens against a verifier's own logits [T, V], the first of which has position `first`.

    Without a cut a token's margin is how far logit + T·G lies below the best. With one, a kept token with a better score counts no
    more than it lies within the cut, for an honest machine may have cut it off; and a token beyond the cut has at least the margin by which
    it lies there. Where all logits of a drawing machine are within d of the verifier's, no margin is above 2·d (4·d where `top_k` and
    `top_p` cut both).
    """
    count = len(tokens)
    margins, logprobs, leads, ranges = (np.empty(count) for _ in range(4))
    drawn, gaps = np.empty(count, np.int64), np.full((count, RIVALS), np.inf)
    for t, logits, noised in _noised(logits_TV, key, temperature, first):
        token = int(tokens[t])
        ranking = _Ranking.of(logits, temperature, top_k, top_p) if temperature > 0 and (top_k or top_p < 1) else None
        drawn[t], margins[t] = _best(noised, ranking), _margin(noised, token, ranking)
        leads[t] = logits[token] - logits[drawn[t]]
        if ranking is None:
            found = _gaps(noised)
            gaps[t, : len(found)] = found
        shifted = logits - logits.max()
        logprobs[t], ranges[t] = shifted[token] - np.log(np.exp(shifted).sum()), -shifted.min()
    return TokenScores(margins, logprobs, drawn, leads, gaps, ranges)


def _best(noised: Floats, ranking: _Ranking | None) -> int:
    """The draw: of equals the lowest index."""
    if ranking is None:
        return int(noised.argmax())
    kept = np.sort(ranking.order[: ranking.kept])
    return int(kept[noised[kept].argmax()])


def _margin(noised: Floats, token: int, ranking: _Ranking | None) -> float:
    if ranking is None:
        return float(noised.max() - noised[token])
    ahead = noised[ranking.order[: ranking.kept]] - noised[token]
    rivals = np.minimum(ahead, ranking.inside())
    return max(0.0, ranking.outside(int(np.flatnonzero(ranking.order == token)[0])), float(rivals.max()))


def _gaps(noised: Floats) -> Floats:
    """How far the next best scores, RIVALS at most, lie below the best, ascending, up to RIVALS_WITHIN."""
    best = np.sort(np.partition(noised, -min(RIVALS + 1, len(noised)))[-(RIVALS + 1) :])[::-1]
    gaps = best[0] - best[1:]
    return np.asarray(gaps[gaps <= RIVALS_WITHIN], np.float64)


# ---- what is measured of a sequence --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """The worst value of one quantity, and where it is."""

    value: float
    place: str


def measure(
    scores: TokenScores,
    claimed: NDArray[np.floating[Any]] | None,
    *,
    mismatch_above: float,
    margin_clip: float,
    turns: Turns | None = None,
) -> dict[str, Measured]:
    """What the limits of a run spec are about (protocol/runspec.py, SamplingLimits), of one sequence of at least one token, in
    one turn or in `turns`. Without claimed logprobs there is no `logprob_error` and no `mean_logprob_error`.

    Margins of single tokens are not clipped, so that one token among ten thousand is seen; means are of clipped ones. Chunks
    are those of TOPLOC, the short last one included; of fewer tokens than a chunk has, the mean is taken as if the rest were
    exact: else one honest rounding in an answer of two tokens would look like a habit.
    """
    turns = turns or Turns((len(scores.margins),))
    starts = np.array([chunk.start for chunk in turns.chunks])
    mismatched = scores.margins > mismatch_above
    clipped = np.minimum(scores.margins, margin_clip)
    sizes = np.maximum(np.diff(np.append(starts, len(clipped))), TOPLOC_CHUNK)
    found = {
        "token_margin": _worst(scores.margins, "token"),
        "chunk_mismatches": _worst(np.add.reduceat(mismatched.astype(np.float64), starts), "chunk"),
        "sequence_mismatches": Measured(float(mismatched.sum()), "the sequence"),
        "chunk_mean_margin": _worst(np.add.reduceat(clipped, starts) / sizes, "chunk"),
        "mean_margin": Measured(float(clipped.sum()) / max(len(clipped), TOPLOC_CHUNK), "the sequence"),
    }
    if claimed is not None:
        errors = np.abs(scores.logprobs - claimed)
        found["logprob_error"] = _worst(errors, "token")
        found["mean_logprob_error"] = Measured(float(errors.sum()) / max(len(errors), TOPLOC_CHUNK), "the sequence")
    return found


def _worst(values: Floats, what: str) -> Measured:
    """NaN is the worst there is: a claim that is no number must never look small."""
    place = int(values.argmax())
    return Measured(float(values[place]), f"{what} {place}")
