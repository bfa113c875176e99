"""Attention over packed rows: with a mask while it is small, and piece by piece where it would not be.

The mask of a row of W tokens has W² entries: a gigabyte at 32,768, nearly all of them False, and no kernel that avoids the scores
takes one. Wide rows are attended as what they consist of: a prompt by itself, causally; each completion to its prompt and
itself. For both torch has kernels that hold no scores, and nothing is computed that a mask would have hidden. A sliding window is
cut into blocks of queries, each with the few keys that it sees.

A mask that transformers is given replaces all masks of its own, those of windows too: `windowed` has those for layers with a
window, by its tokens. Soft caps on scores are soft_cap.py's.

Registered with transformers under the name `PACKED`; layout and masks reach it through the model's keyword arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainer.learning.packing import Layout
from trainer.learning.soft_cap import capped

PACKED = "murmuration_packed"
MASK_ENTRIES_MAX = 1 << 25
"""Entries (bytes) of the largest mask that is made."""
_BLOCK = 1024  # queries of a window that are attended at once, at most


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout | None = None,
    windowed: Mapping[int, Tensor] | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **how: Any,
) -> tuple[Tensor, None]:
    """query [R, H, W, D], key and value [R, H / G, W, D] → [R, W, H, D]; what padding attends to is zero where there is a layout.

    A mask [R, 1, W, W] of `windowed` stands for `attention_mask` in layers with that window. Raises ValueError for one without a mask
    or a layout.
    """
    if layout is not None:
        # Where normed queries come in float32 (Qwen 3 under autocast), some kernels do not cast them.
        query, key = query.to(value.dtype), key.to(value.dtype)
        scale = how.get("scaling") or query.shape[3] ** -0.5
        reach = _Reach(scale, how.get("dropout", 0.0), sliding_window, softcap)
        return _piecewise(query, key, value, layout, reach), None
    if sliding_window is not None:
        if windowed is None or sliding_window not in windowed:
            raise ValueError(f"a layer has a window of {sliding_window} tokens, and no mask of it was given")
        attention_mask = windowed[sliding_window]
    if softcap is not None:
        scale = how.get("scaling") or query.shape[3] ** -0.5
        return capped(query, key, value, attention_mask, scale=scale, cap=softcap).transpose(1, 2).contiguous(), None
    attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **how)
    return attended, None


@dataclass(frozen=True)
class _Reach:
    """How a layer attends, whatever the piece: factor on scores, dropout, tokens of its window, cap on scores."""

    scale: float
    dropout: float
    window: int | None
    cap: float | None

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[H, Q, D], [H, K, D], [H, K, D] → [H, Q, D], causal; the queries are the last of the keys."""
        queries, keys = query.shape[1], key.shape[1]
        if self.window is not None and keys > self.window:
            blocks = (slice(at, min(queries, at + _BLOCK)) for at in range(0, queries, _BLOCK))
            return torch.cat([self._windowed(query, key, value, block) for block in blocks], 1)
        if self.cap is not None:
            return capped(query[None], key[None], value[None], None, scale=self.scale, cap=self.cap)[0]
        if queries == keys:
            return self._sdpa(query, key, value, is_causal=True)
        return self._sdpa(query, key, value, attn_mask=causal_lower_right(queries, keys))

    def _windowed(self, query: Tensor, key: Tensor, value: Tensor, block: slice) -> Tensor:
        assert self.window is not None
        before = key.shape[1] - query.shape[1]
        first, last = max(0, before + block.start - self.window + 1), before + block.stop
        at = torch.arange(before + block.start, last, device=query.device)[:, None]
        seen = torch.arange(first, last, device=query.device)
        mask = (seen <= at) & (seen > at - self.window)
        query, key, value = query[:, block], key[:, first:last], value[:, first:last]
        if self.cap is not None:
            return capped(query[None], key[None], value[None], mask[None, None], scale=self.scale, cap=self.cap)[0]
        return self._sdpa(query, key, value, attn_mask=mask)

    def _sdpa(self, query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
        """The kernels without scores want four dimensions."""
        made = scaled_dot_product_attention(
            query[None], key[None], value[None], scale=self.scale, dropout_p=self.dropout, **how
        )
        return made[0]


@torch.compiler.disable  # every batch has another layout: each would be compiled anew
def _piecewise(query: Tensor, key: Tensor, value: Tensor, layout: Layout, reach: _Reach) -> Tensor:
    rows = []
    for q, few_k, few_v, units in zip(query, key, value, layout, strict=True):
        k, v = (few.repeat_interleave(q.shape[0] // few.shape[0], 0) for few in (few_k, few_v))  # [H, W, D]
        pieces, at = [], 0
        for prompt, *completions in units:
            alone = len(completions) == 1  # then it and its prompt are as one sequence
            head = slice(at, at + prompt + (completions[0] if alone else 0))
            at = head.stop
            pieces.append(reach.attended(q[:, head], k[:, head], v[:, head]))
            for length in () if alone else completions:
                own = slice(at, at + length)
                seen_k, seen_v = (torch.cat((t[:, head], t[:, own]), 1) for t in (k, v))
                pieces.append(reach.attended(q[:, own], seen_k, seen_v))
                at = own.stop
        pieces.append(v.new_zeros(q.shape[0], q.shape[1] - at, v.shape[2]))
        rows.append(torch.cat(pieces, 1))
    return torch.stack(rows).transpose(1, 2).contiguous()


AttentionInterface.register(PACKED, attend)
