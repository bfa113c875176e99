"""Attention of one step of decoding: one query for each row, over its prompt and its own tokens (kv_cache.py).

The rows of one prompt attend to it together, in one product with its keys: memory is read once for all of them. To its own tokens a row
attends alone, in products too: on a CPU torch's fused kernel takes two to three times as long for a single query. One softmax joins both:
what came of the prompt is a column beside those of the row's own tokens, whose score is the logarithm of the sum that the prompt's
softmax has divided by. Query heads that share a head of keys are folded into its queries; nothing is repeated.

Scores and sums are float32, whatever the model's type: on CUDA products give that out, elsewhere keys and values of other types are
widened a piece at a time. The way "eager" rounds scores, weights and products to the model's type, as transformers' own eager attention does.

Shapes: B rows, P prompts, G rows of a prompt at most, H heads of queries, K of keys, Q = H ÷ K, D head size, W tokens; M products of
one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from node.engine.decoding_step import Run, Shared, Step
from node.engine.kv_cache import Held, Pair

_WIDENED = 1 << 20  # numbers that are widened at once: their copy stays in a CPU's cache


@dataclass(frozen=True)
class How:
    scale: float
    window: int | None = None
    softcap: float | None = None
    rounded: bool = False
    """As "eager" has it."""


def attend(query: Tensor, step: Step, held: Held, how: How) -> Tensor:
    """[B, 1, H, D] of queries [B, H, 1, D]."""
    rows, heads, _, size = query.shape
    kept = held.prompts[0].shape[1]
    folded = query.reshape(rows, kept, heads // kept, size)
    of_prompts = _of_prompts(folded, step, held, how)
    asked = folded.flatten(0, 1)
    if not how.rounded:
        asked = asked.float() * how.scale
    made = [_of_run(asked, run, held, of_prompts, how) for run in step.runs(how.window)]
    whole = made[0] if len(made) == 1 else torch.cat(made)
    return whole.to(query.dtype).view(rows, 1, heads, -1)


# ---- prompts -----------------------------------------------------------------------------------------------------------


def _of_prompts(query: Tensor, step: Step, held: Held, how: How) -> Pair | None:
    """What the prompts give to each row [M, Q, D], and the logarithm of the sum of each softmax [M, Q, 1]; None where none is seen."""
    parts = step.shared(how.window)
    if not parts:
        return None
    _, kept, queries, size = query.shape
    asked = query if step.sharing.asked is None else query[step.sharing.asked]
    found, at = [], 0
    for part in parts:
        count = part.last - part.first
        shape = (count, part.group, kept, queries, size)
        of = asked if len(parts) == 1 else asked[at : at + count * part.group]
        at += count * part.group
        together = of.view(shape).transpose(1, 2).reshape(count, kept, part.group * queries, size)
        key, value = held.of_prompts(part.first, part.last, part.start, part.end)
        out, sums = _together(together, key, value, _folded(part, queries), how)
        by_row = (count, kept, part.group, queries, -1)
        found.append(
            (out.reshape(by_row).transpose(1, 2).flatten(0, 1), sums.reshape(by_row).transpose(1, 2).flatten(0, 1))
        )
    out, sums = found[0] if len(found) == 1 else (torch.cat(of) for of in zip(*found, strict=True))
    if step.sharing.found is not None:
        out, sums = out[step.sharing.found], sums[step.sharing.found]
    return out.flatten(0, 1), sums.flatten(0, 1)


def _folded(part: Shared, queries: int) -> Tensor | None:
    """Its mask [P, 1, 1 or G·Q, W]."""
    if part.mask is None:
        return None
    mask = part.mask.repeat_interleave(queries, 1) if part.mask.shape[1] > 1 and queries > 1 else part.mask
    return mask[:, None]


def _together(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, how: How) -> Pair:
    """Queries [P, K, G·Q, D] over keys and values [P, K, W, D]; the sums are [P, K, G·Q]."""
    if query.device.type == "cpu" and not how.rounded and how.softcap is None and key.shape[3] == value.shape[3]:
        made: Pair = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=how.scale
        )
        return made
    prompts, kept, queries, _ = query.shape
    asked = query if how.rounded else query.float() * how.scale
    scores = _scores(asked.flatten(0, 1), key.flatten(0, 1), how).view(prompts, kept, queries, -1)
    if mask is not None:
        scores = scores + mask
    sums = scores.logsumexp(-1)
    weights = scores.sub_(sums[..., None]).exp_()
    return _sum(weights.flatten(0, 1), value.flatten(0, 1), how).view(prompts, kept, queries, -1), sums


# ---- the rows' own tokens -----------------------------------------------------------------------------------------------


def _of_run(query: Tensor, run: Run, held: Held, of_prompts: Pair | None, how: How) -> Tensor:
    """[M, Q, D] in float32 of queries [M, Q, D] of all rows."""
    kept = held.prompts[0].shape[1]
    if (run.last - run.first) * kept < len(query):
        part = slice(run.first * kept, run.last * kept)
        query, of_prompts = query[part], of_prompts and (of_prompts[0][part], of_prompts[1][part])
    blocks = held.of_rows(run.first, run.last, run.blocks)
    unseen = (
        query.new_full((*query.shape[:2], 1), -torch.inf, dtype=torch.float32) if of_prompts is None else of_prompts[1]
    )
    scores = torch.cat([unseen, *(_scores(query, key, how) for key, _ in blocks)], -1)
    if run.mask is not None:
        scores.unflatten(0, (-1, kept)).add_(run.mask)
    elif run.seen <= run.width:
        scores[..., run.seen :].fill_(-torch.inf)
    weights = scores.softmax(-1)
    made = None if of_prompts is None else weights[..., :1] * of_prompts[0]
    at = 1
    for _, value in blocks:
        here = weights[..., at : at + value.shape[1]]
        at += value.shape[1]
        if made is not None and made.dtype == value.dtype:
            made = made.baddbmm_(here, value)
        else:
            made = _sum(here, value, how) if made is None else made + _sum(here, value, how)
    assert made is not None
    return made


# ---- products ----------------------------------------------------------------------------------------------------------


def _scores(query: Tensor, key: Tensor, how: How) -> Tensor:
    """[M, Q, W] in float32, capped, of queries [M, Q, D], scaled where nothing is rounded, and keys [M, W, D]."""
    turned = key.transpose(1, 2)
    scores = torch.bmm(query, turned) * how.scale if how.rounded else _product(query, turned)
    if how.softcap is not None:
        scores = how.softcap * torch.tanh(scores / how.softcap)
    return scores.float()


def _sum(weights: Tensor, value: Tensor, how: How) -> Tensor:
    """[M, Q, D] in float32 of weights [M, Q, W] and values [M, W, D]."""
    return torch.bmm(weights.to(value.dtype), value).float() if how.rounded else _product(weights, value)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """In float32, of float32 and the type of what is stored."""
    if right.dtype == torch.float32:
        return torch.bmm(left, right)
    if right.device.type == "cuda":
        return torch.bmm(left.to(right.dtype), right, out_dtype=torch.float32)
    step = max(1, _WIDENED // max(1, right[0].numel()))
    return torch.cat([torch.bmm(a, b.float()) for a, b in zip(left.split(step), right.split(step), strict=True)])
