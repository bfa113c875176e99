"""The draw on a GPU in one kernel: Philox, Gumbel noise, cut, argmax and the normaliser, in one pass over the logits.

The same draw as node/engine/sampler.py, which looks only at what can still win and has to ask the device how much that is; this one
looks at everything and never waits. Noise is computed in float32, within 1e-5 of protocol/sampling.py, and the score that comes
out is the winner's in float64. Written in Triton; its interpreter runs it on a CPU for tests (TRITON_INTERPRET=1 before the import).

Seen in the interpreter alone, never on a GPU: `agrees` compares it with the sampler on the device itself, and nothing else uses it
before that. Does not cover: scores of given tokens, devices other than NVIDIA's.

Shapes: B rows, V vocabulary, S splits of it.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from node.engine import noise

_FOURS = 1024
"""Philox blocks of four tokens that a program computes at once."""
_ROUNDS = 4
"""Times that it does so: 16,384 tokens a program."""
_SORTED = 32
"""Rows that are sorted at once, to find where a cut lies: 28 bytes a logit."""
_TOLERANCE = 1e-4
"""By which scores may differ from the sampler's in `agrees`: between two draws that are as good as each other."""


@triton.jit
def _gumbel(words):  # type: ignore[no-untyped-def]
    """float32 noise of uint32 words. The logarithms of a GPU are coarse near 1, so that -ln(1 - v) for small v is a series."""
    small = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10  # v; the factor is 2^-32
    rest = ((0xFFFFFFFF - words).to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 1 - v
    y = small / (2.0 - small)  # at most 1/3 where it is used: 2·artanh(y) = -ln(1 - v)
    s = y * y
    series = 1.0 / 15 + s * (1.0 / 17)
    series = 1.0 / 11 + s * (1.0 / 13 + s * series)
    series = 1.0 / 7 + s * (1.0 / 9 + s * series)
    series = 1.0 / 3 + s * (1.0 / 5 + s * series)
    near = 2.0 * y * (1.0 + s * series)
    exponential = tl.where(words < 0x80000000, near, -tl.log(tl.maximum(rest, 1e-10)))
    return -tl.log(exponential)


@triton.jit
def _draw(  # type: ignore[no-untyped-def]
    logits, keys, positions, cut_logits, cut_indices, best, token, highest, total, vocabulary, stride, splits, temperature,
    FOURS: tl.constexpr, ROUNDS: tl.constexpr, IS_CUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    key = tl.load(keys + row)
    position = tl.load(positions + row).to(tl.uint32)
    best_score = -float("inf")
    best_token = vocabulary
    top = -float("inf")
    summed = 0.0
    for step in range(ROUNDS):
        first = (split * ROUNDS + step) * FOURS
        block = (first + tl.arange(0, FOURS)).to(tl.uint32)
        none = block * 0
        w0, w1, w2, w3 = tl.philox(key, block, none + position, none, none)
        words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
        tokens = first * 4 + tl.arange(0, 4 * FOURS)
        there = tokens < vocabulary
        x = tl.load(logits + row * stride + tokens, mask=there, other=-float("inf")).to(tl.float32)
        # Sum of exponentials, of what was seen so far and of these.
        new_top = tl.maximum(top, tl.max(x, 0))
        scale = tl.where(new_top == -float("inf"), 0.0, new_top)
        summed = summed * tl.exp(top - scale) + tl.sum(tl.exp(x - scale), 0)
        top = new_top
        score = x + temperature * _gumbel(words)
        if IS_CUT:
            edge = tl.load(cut_logits + row)
            kept = (x > edge) | ((x == edge) & (tokens <= tl.load(cut_indices + row)))
            score = tl.where(kept, score, -float("inf"))
        score = tl.where(x != x, float("inf"), score)  # noqa: PLR0124  NaN: its index is drawn, and whoever proves it says so
        reached = tl.max(score, 0)
        found = tl.min(tl.where((score == reached) & there, tokens, vocabulary), 0)
        best_token = tl.where(reached > best_score, found, best_token)
        best_score = tl.maximum(best_score, reached)
    at = row * splits + split
    tl.store(best + at, best_score)
    tl.store(token + at, best_token)
    tl.store(highest + at, top)
    tl.store(total + at, summed)


def draw(
    logits_BV: Tensor, keys_B: Tensor, positions_B: Tensor, *, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Per row the token drawn, its score logit + T·G in float64, and the normaliser of the row's logits in float32: what the sampler's
    Draws holds. Keys are int64, whatever their sign. Waits for nothing on the device."""
    rows, vocabulary = logits_BV.shape
    logits = logits_BV if logits_BV.stride(1) == 1 else logits_BV.contiguous()
    is_cut = temperature > 0 and (top_k > 0 or top_p < 1)
    edges, indices = logits, keys_B  # not looked at
    if is_cut:
        parts = [_cut(part, temperature, top_k, top_p) for part in logits.split(_SORTED)]
        edges, indices = (torch.cat(part) for part in zip(*parts, strict=True))
    splits = triton.cdiv(vocabulary, 4 * _FOURS * _ROUNDS)
    best, highest, total = torch.empty(3, rows, splits, dtype=torch.float32, device=logits.device)
    token = torch.empty(rows, splits, dtype=torch.int32, device=logits.device)
    with torch.cuda.device_of(logits):  # Triton launches on the current device
        _draw[(rows, splits)](
            logits, keys_B, positions_B, edges, indices, best, token, highest, total, vocabulary, logits.stride(0), splits,
            float(temperature), FOURS=_FOURS, ROUNDS=_ROUNDS, IS_CUT=is_cut,
        )  # fmt: skip
    reached = best.amax(1, keepdim=True)
    tokens = torch.where(best == reached, token, vocabulary).amin(1).clamp(max=vocabulary - 1).long()
    top = highest.amax(1, keepdim=True)
    normalisers = (total * (highest - top).exp()).sum(1).log() + top.squeeze(1)
    scores = logits.gather(1, tokens[:, None]).squeeze(1).double()
    if temperature > 0:
        scores = scores + temperature * noise.exact_at(keys_B, positions_B, tokens)
    return tokens, scores, normalisers


def _cut(logits_BV: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Per row the lowest logit that is kept, in float32, and the last index that is kept among its equals (protocol/sampling.py)."""
    ranked, order = logits_BV.float().sort(dim=1, descending=True, stable=True)
    most = min(top_k or ranked.shape[1], ranked.shape[1])
    kept = torch.full((len(ranked), 1), most, device=ranked.device)
    if top_p < 1:
        weights = ((ranked[:, :most].double() - ranked[:, :1]) / temperature).exp()
        before = weights.cumsum(1) - weights
        kept = (before / weights.sum(1, keepdim=True) < top_p).sum(1, keepdim=True).clamp(min=1)
    last = kept - 1
    return ranked.gather(1, last).squeeze(1), order.gather(1, last).squeeze(1)


@cache
def agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether, on this device, the kernel draws what the sampler does, from made-up logits of this type; looked at once."""
    from node.engine import sampler

    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(4, 20_003, generator=generator)).to(device, dtype)
    keys = torch.randint(-(1 << 63), (1 << 63) - 1, (4,), generator=generator).to(device)
    positions = torch.arange(4, device=device)
    for cut in ({"temperature": 1.0}, {"temperature": 0.7, "top_k": 40, "top_p": 0.9}, {"temperature": 0.0}):
        expected = sampler.draw_anywhere(logits, keys, positions, **cut)  # type: ignore[arg-type]
        _, scores, normalisers = draw(logits, keys, positions, **cut)  # type: ignore[arg-type]
        if not ((scores - expected.scores).abs() < _TOLERANCE).all():
            return False
        if not ((normalisers - expected.normalisers).abs() < _TOLERANCE).all():
            return False
    return True
