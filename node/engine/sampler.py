"""Drawing and scoring tokens by looking only at what can still win: the very tokens of protocol/sampling.py, for less.

The noise of a token is at most NOISE_MAX, so one whose logit lies further than T·NOISE_MAX below any score already reached
cannot be the draw; Philox counts, so the noise of the others costs nothing but their own. Of their words most are too
large to win, which the bound G ≤ -ln(v) tells without a logarithm of theirs. What is left, a handful, is computed in float64.
A CPU makes all words and looks at them in compiled code (compiled_draw.py), an NVIDIA GPU in one kernel (fused_draw.py).

Rows of logits are visited few at a time on the CPU, so that they fit its cache and no float32 copy of all of them is made. Does not
cover: top_p over a nearly flat distribution in less than a sort of the vocabulary.

Shapes: B rows, V vocabulary, N blocks of four tokens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from node.engine import noise
from protocol import sampling
from protocol.sampling import NOISE_MAX, TokenScores

log = logging.getLogger(__name__)

_BLOCKS = 1 << 14
"""Blocks whose words are made at once: their arrays stay in a CPU's cache."""
_CACHED = 1 << 17
"""Logits that stay in a CPU's cache while they are gone through several times; one row of a large vocabulary all the same."""
_PIECE = 128
"""Logits of which the highest is sought at once: torch finds a highest number faster than its place."""
_HEAD = 256
"""Ranks that are sorted at first where `top_p` has to find its cut."""


@dataclass(frozen=True)
class Cut:
    """Per row the lowest logit that is kept [B], and the last index that is kept among its equals [B]."""

    logit: Tensor
    index: Tensor


@dataclass(frozen=True)
class Draws:
    """Per row: the token drawn, its score logit + T·G in float64, and the normaliser of the row's logits; where rivals are asked for, the
    scores [B, RIVALS] of the next best, descending, -inf where none lies within RIVALS_WITHIN."""

    tokens: Tensor
    scores: Tensor
    normalisers: Tensor
    rivals: Tensor | None = None


def draw(
    logits_BV: Tensor, keys_B: Tensor, positions_B: Tensor, *, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> Draws:
    """argmax(logits + T·G) per row, as protocol/sampling.py defines it. Rows that hold NaN draw the index of one.

    The kernel for NVIDIA GPUs is used where it was seen there to draw the same.
    """
    of = (logits_BV, keys_B, positions_B)
    if not len(logits_BV):
        return Draws(torch.empty_like(keys_B), *torch.empty(2, 0, dtype=torch.float64, device=keys_B.device))
    if logits_BV.device.type == "cpu":
        return _draw_on_cpu(*of, temperature, top_k, top_p)
    fused = _kernel(logits_BV.device, logits_BV.dtype) if logits_BV.device.type == "cuda" else None
    if fused is None:
        return draw_anywhere(*of, temperature=temperature, top_k=top_k, top_p=top_p)
    return Draws(*fused(*of, temperature=temperature, top_k=top_k, top_p=top_p))


@cache
def _kernel(device: torch.device, dtype: torch.dtype) -> Callable[..., tuple[Tensor, Tensor, Tensor]] | None:
    """The fused draw; None where there is no Triton, or its kernel does not draw the same on this device."""
    try:
        from node.engine import fused_draw

        if fused_draw.agrees(device, dtype):
            return fused_draw.draw
        reason = "it draws other tokens"
    except (ImportError, RuntimeError) as error:  # Triton's errors are RuntimeErrors
        reason = str(error).partition("\n")[0][:200]
    log.warning("the fused draw is not used on %s: %s", device, reason)
    return None


def draw_anywhere(
    logits_BV: Tensor, keys_B: Tensor, positions_B: Tensor, *, temperature: float, top_k: int = 0, top_p: float = 1.0, rivals: int = 0
) -> Draws:  # fmt: skip
    """The same in torch, on any device; `rivals`: how many of the next best scores are told as well."""
    highest, tokens, normalisers = _survey(logits_BV)
    if temperature == 0:
        best = _next_best(logits_BV.float(), tokens, rivals) if rivals else None
        return Draws(tokens, highest.double(), normalisers, best)
    cut = _cut(logits_BV, highest, temperature, top_k, top_p) if top_k or top_p < 1 else None
    reached = highest.double() + temperature * noise.exact_at(keys_B, positions_B, tokens)
    needed = reached - (sampling.RIVALS_WITHIN if rivals else 0.0)
    floor = needed - temperature * NOISE_MAX - 1e-6 * reached.abs()  # the last term: what float32 may round
    if cut is not None:
        floor = floor.maximum(cut.logit.double())
    scores = reached
    found = list(_contenders(logits_BV, keys_B, positions_B, temperature, needed, floor.float(), cut))
    rows, candidates, noised = (torch.cat(parts) for parts in zip(*found, strict=True)) if found else (tokens[:0],) * 3
    if len(rows):
        scores = reached.scatter_reduce(0, rows, noised, "amax")
        winners = noised == scores[rows]
        first = torch.full_like(tokens, logits_BV.shape[1]).scatter_reduce(
            0, rows[winners], candidates[winners], "amin"
        )
        tokens = torch.where(first < logits_BV.shape[1], first, tokens)
    best = _ranked(rows, noised, candidates != tokens[rows], len(tokens), rivals) if rivals else None
    return Draws(tokens, scores, normalisers, best)


def _ranked(rows: Tensor, scores: Tensor, among: Tensor, count: int, most: int) -> Tensor:
    """The `most` highest scores [count, most] of each row, descending, -inf where there are fewer; only those that are `among`."""
    scores, order = scores[among].sort(descending=True)
    rows, by_row = rows[among][order].sort(stable=True)
    begins = torch.searchsorted(rows, torch.arange(count, device=rows.device))
    rank = torch.arange(len(rows), device=rows.device) - begins[rows]
    found = torch.full((count, most), -torch.inf, dtype=torch.float64, device=rows.device)
    kept = rank < most
    found[rows[kept], rank[kept]] = scores[by_row][kept].double()
    return found


def _next_best(scores_BV: Tensor, tokens_B: Tensor, most: int) -> Tensor:
    """The `most` highest scores [B, most] beside those of `tokens_B`, descending, -inf where there are fewer."""
    others = scores_BV.scatter(1, tokens_B[:, None], -torch.inf)
    best = others.topk(min(most, others.shape[1] - 1)).values.double()
    return functional.pad(best, (0, most - best.shape[1]), value=-torch.inf)


def _draw_on_cpu(
    logits_BV: Tensor,
    keys_B: Tensor,
    positions_B: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    rivals: int = 0,
) -> Draws:
    from node.engine import compiled_draw

    found = []
    for start, slab in _slabs(logits_BV):
        rows = slice(start, start + len(slab))
        highest, tokens = _highest(slab)
        scores = highest.double()
        best = torch.full((len(slab), rivals), -torch.inf, dtype=torch.float64)
        if temperature > 0:
            cut = (
                _cut(logits_BV[rows], highest, temperature, top_k, top_p)
                if top_k or top_p < 1
                else Cut(torch.full_like(highest, -torch.inf), tokens)
            )
            keys, of = (part[rows].contiguous().numpy() for part in (keys_B, positions_B))
            compiled_draw.seek(
                slab.numpy(), keys.view(np.uint64), of, temperature, cut.logit.numpy(), cut.index.numpy(), tokens.numpy(),
                scores.numpy(), sampling.RIVALS_WITHIN if rivals else 0.0, best.numpy(),
            )  # fmt: skip
        elif rivals:
            best[:] = _next_best(slab, tokens, rivals)
        found.append((tokens, scores, slab.sub_(highest[:, None]).exp_().sum(-1).log_() + highest, best))
    return Draws(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def score(
    logits_TV: Tensor, tokens_T: Tensor, key: int, first: int, *, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> TokenScores:
    """The scores of protocol/sampling.py, of logits at positions first, first + 1, … of one sample."""
    keys = torch.full_like(tokens_T, noise.as_signed(key))
    positions = torch.arange(first, first + len(tokens_T), device=tokens_T.device)
    is_cut = temperature > 0 and (top_k > 0 or top_p < 1)
    if is_cut:
        drawn = draw(logits_TV, keys, positions, temperature=temperature, top_k=top_k, top_p=top_p)
    else:
        drawn = _draw_with_rivals(logits_TV, keys, positions, temperature)
    logits = logits_TV.gather(1, tokens_T[:, None]).squeeze(1).double()
    leads = logits - logits_TV.gather(1, drawn.tokens[:, None]).squeeze(1).double()
    noised = logits + temperature * noise.exact_at(keys, positions, tokens_T)
    margins = torch.where(drawn.tokens == tokens_T, 0.0, (drawn.scores - noised).clamp(min=0)).cpu().numpy()
    gaps = np.full((len(tokens_T), sampling.RIVALS), np.inf)
    if drawn.rivals is not None:
        found = (drawn.scores[:, None] - drawn.rivals).cpu().numpy()
        gaps[found <= sampling.RIVALS_WITHIN] = found[found <= sampling.RIVALS_WITHIN]
    if is_cut:
        # What was not drawn may lie on either side of the cut: rare, where work is honest.
        margins = np.zeros(len(tokens_T))
        for row in (drawn.tokens != tokens_T).nonzero().flatten().tolist():
            margins[row] = sampling.score(
                logits_TV[row : row + 1].float().cpu().numpy(), tokens_T[row : row + 1].cpu().numpy(), key=key,
                temperature=temperature, top_k=top_k, top_p=top_p, first=first + row,
            ).margins[0]  # fmt: skip
    ranges = logits_TV.amax(1).double() - logits_TV.amin(1).double() if len(tokens_T) else logits
    parts = (logits - drawn.normalisers, drawn.tokens, leads, ranges)
    logprobs, tokens, leads, ranges = (part.cpu().numpy() for part in parts)
    return TokenScores(margins, logprobs, tokens, leads, gaps, ranges)


def _draw_with_rivals(logits_BV: Tensor, keys_B: Tensor, positions_B: Tensor, temperature: float) -> Draws:
    if not len(logits_BV):
        return draw(logits_BV, keys_B, positions_B, temperature=temperature)
    if logits_BV.device.type == "cpu":
        return _draw_on_cpu(logits_BV, keys_B, positions_B, temperature, 0, 1.0, sampling.RIVALS)
    return draw_anywhere(logits_BV, keys_B, positions_B, temperature=temperature, rivals=sampling.RIVALS)


def kept(logits_BV: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Which tokens [B, V] the cut leaves."""
    cut = _cut(logits_BV, logits_BV.amax(-1).float(), temperature, top_k, top_p)
    indices = torch.arange(logits_BV.shape[1], device=logits_BV.device)
    lowest = cut.logit[:, None]
    return (logits_BV > lowest) | (logits_BV == lowest) & (indices <= cut.index[:, None])


def _slabs(logits_BV: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Rows in float32, as many at a time as are good for the device, each time with the number of the first.

    They stand in the same memory each time, and are free to be overwritten.
    """
    step = max(1, _CACHED // logits_BV.shape[1]) if logits_BV.device.type == "cpu" else len(logits_BV)
    slab = torch.empty_like(logits_BV[:step], dtype=torch.float32)
    for start in range(0, len(logits_BV), step):
        rows = logits_BV[start : start + step]
        yield start, slab[: len(rows)].copy_(rows)


def _survey(logits_BV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Highest logit, the first token that has it, and log-sum-exp, per row."""
    found = []
    for _, slab in _slabs(logits_BV):
        highest, tokens = _highest(slab)
        found.append((highest, tokens, slab.sub_(highest[:, None]).exp_().sum(-1).log_() + highest))
    highest, tokens, normalisers = (torch.cat(parts) for parts in zip(*found, strict=True))
    return highest, tokens, normalisers


def _highest(slab: Tensor) -> tuple[Tensor, Tensor]:
    """As `max` has it: of each row the highest and its first place, of a row that holds NaN one of those."""
    if slab.shape[1] % _PIECE:
        return slab.max(-1)[:2]
    pieces = slab.unflatten(1, (-1, _PIECE))
    highest, piece = pieces.amax(-1).max(-1)
    within = pieces.take_along_dim(piece[:, None, None], 1).squeeze(1).max(-1).indices
    return highest, piece * _PIECE + within


def _contenders(
    logits_BV: Tensor,
    keys_B: Tensor,
    positions_B: Tensor,
    temperature: float,
    reached: Tensor,
    floor: Tensor,
    cut: Cut | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(row, token, score in float64) of whatever may score as much as `reached`."""
    short = -logits_BV.shape[1] % 4
    padded = functional.pad(logits_BV, (0, short), value=-torch.inf) if short else logits_BV
    # Of a word at most `likely`, -ln(v) reaches far enough; what is added covers the rounding of the sum.
    width = padded.shape[1] // 4
    offset = (
        32 * math.log(2) - reached / temperature + 1e-5 + 1e-6 * (reached.abs() / temperature + NOISE_MAX)
    ).float()
    for start, slab in _slabs(padded):
        above = slab >= floor[start : start + len(slab), None]
        fours = slab.view(-1, 4)
        for place in (above.view(torch.int32) != 0).flatten().nonzero().flatten().split(_BLOCKS):
            row, block = (
                (start + place // width, place % width)
                if len(slab) > 1
                else (torch.tensor(start, device=slab.device), place)
            )
            words = noise.words_at(keys_B[row], positions_B[row], block)
            logits = fours.index_select(0, place)
            likely = torch.add(offset[row][..., None], logits, alpha=1 / temperature).exp_()
            i, column = (words <= likely).nonzero().unbind(1)
            token = block[i] * 4 + column
            row = row[i] if row.ndim else row.expand(len(i))
            logit = logits[i, column]
            noised = logit.double() + temperature * noise.exact(words[i, column])
            if cut is not None:
                kept = (logit > cut.logit[row]) | (logit == cut.logit[row]) & (token <= cut.index[row])
                row, token, noised = row[kept], token[kept], noised[kept]
            yield row, token, noised


def _cut(logits_BV: Tensor, highest: Tensor, temperature: float, top_k: int, top_p: float) -> Cut:
    vocabulary = logits_BV.shape[1]
    logits, indices = torch.empty_like(highest), torch.empty(len(highest), dtype=torch.int64, device=highest.device)
    for b, row in enumerate(logits_BV):
        if highest[b].isnan():
            logits[b], indices[b] = -torch.inf, 0
            continue
        ranked, kept = _rank(row.float(), highest[b], temperature, min(top_k or vocabulary, vocabulary), top_p)
        logits[b] = ranked[kept - 1]
        equals = kept - int((ranked > logits[b]).sum())
        indices[b] = (row.float() == logits[b]).nonzero()[equals - 1, 0]
    return Cut(logits, indices)


def _rank(row: Tensor, highest: Tensor, temperature: float, most: int, top_p: float) -> tuple[Tensor, int]:
    """The best logits of one row in descending order, at least as many as are kept, and how many those are."""
    if top_p >= 1:
        return row.topk(most).values, most
    total = ((row.double() - highest) / temperature).exp_().sum() if most == len(row) else None
    size = min(_HEAD, most)
    while True:
        ranked = row.topk(size).values
        weights = ((ranked.double() - highest) / temperature).exp_()
        whole = total if total is not None else weights.sum() if size == most else None
        if whole is not None:
            kept = max(1, int(((weights.cumsum(0) - weights) / whole < top_p).sum()))
            if kept < size or size == most:
                return ranked, kept
        size = min(8 * size if total is not None else most, most)
