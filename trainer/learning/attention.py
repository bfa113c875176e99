"""Attention over packed rows: with a mask while it is small, and piece by piece where it would not be.

The mask of a row of W tokens has W² entries: a gigabyte at 32,768, nearly all of them False, and no kernel that avoids the scores
takes one. Wide rows are attended as what they consist of: a prompt by itself, causally; each completion to its prompt and
itself. For both torch has kernels that hold no scores, and nothing is computed that a mask would have hidden.

Registered with transformers under the name `PACKED`; the layout reaches it through the model's keyword arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainer.learning.packing import Layout

PACKED = "murmuration_packed"
MASK_ENTRIES_MAX = 1 << 25
"""Entries (bytes) of the largest mask that is made."""


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout | None = None,
    **how: Any,
) -> tuple[Tensor, None]:
    """query [R, H, W, D], key and value [R, H / G, W, D] → [R, W, H, D]; what padding attends to is zero where there is a layout."""
    if layout is None:
        attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **how)
        return attended, None
    return _piecewise(module, query, key, value, layout, how.get("scaling"), how.get("dropout", 0.0)), None


@torch.compiler.disable  # every batch has another layout: each would be compiled anew
def _piecewise(
    module: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None, dropout: float
) -> Tensor:
    how = {"scale": scale, "dropout_p": dropout}
    rows = []
    for q, few_k, few_v, units in zip(query, key, value, layout, strict=True):
        k, v = (few.repeat_interleave(q.shape[0] // few.shape[0], 0) for few in (few_k, few_v))  # [H, W, D]
        pieces, at = [], 0
        for prompt, *completions in units:
            alone = len(completions) == 1  # then it and its prompt are as one sequence
            head = slice(at, at + prompt + (completions[0] if alone else 0))
            at = head.stop
            pieces.append(_sdpa(q[:, head], k[:, head], v[:, head], is_causal=True, **how))
            for length in () if alone else completions:
                own = slice(at, at + length)
                seen_k, seen_v = (torch.cat((t[:, head], t[:, own]), 1) for t in (k, v))
                bias = causal_lower_right(length, seen_k.shape[1])
                pieces.append(_sdpa(q[:, own], seen_k, seen_v, attn_mask=bias, **how))
                at = own.stop
        pieces.append(v.new_zeros(q.shape[0], q.shape[1] - at, v.shape[2]))
        rows.append(torch.cat(pieces, 1))
    return torch.stack(rows).transpose(1, 2).contiguous()


def _sdpa(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
    """[H, Q, D], [H, K, D], [H, K, D] → [H, Q, D]. The kernels without scores want four dimensions."""
    return scaled_dot_product_attention(query[None], key[None], value[None], **how)[0]


AttentionInterface.register(PACKED, attend)
