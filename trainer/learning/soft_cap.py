"""Attention with a soft cap on its scores (Gemma 2), which none of torch's fused kernels knows and transformers' SDPA leaves out.

    score → cap · tanh(score ÷ cap), before the mask

Scores exist for a block of queries at a time, forwards and, recomputed, backwards. The engine has its own (node/engine/row_attention.py).

Shapes: B rows, H query heads, K key heads (H a multiple of K), Q queries, S keys, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

SCORES_MAX = 1 << 25
"""Scores (float32: 128 MiB) that exist at once."""


def capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float, cap: float | None
) -> Tensor:
    """query [B, H, Q, D], key and value [B, K, S, D] → [B, H, Q, D]. `mask` [B or 1, 1, Q, S] is True where attention goes, or is
    added; None: causal, the queries being the last of the keys."""
    rows, heads, queries, _ = query.shape
    keys = key.shape[2]
    at_once = max(1, SCORES_MAX // max(1, rows * heads * keys))
    pieces = []
    for first in range(0, queries, at_once):
        block = slice(first, min(queries, first + at_once))
        seen = _causal(block, queries, keys, query.device) if mask is None else mask[:, :, block, :keys]
        given = (query[:, :, block], key, value, seen, scale, cap)
        if torch.is_grad_enabled() and query.requires_grad:
            pieces.append(checkpoint(_block, *given, use_reentrant=False))
        else:
            pieces.append(_block(*given))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)


def _block(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, cap: float | None
) -> Tensor:  # fmt: skip
    rows, heads, queries, size = query.shape
    few, keys = key.shape[1], key.shape[2]
    folded = query.reshape(rows, few, heads // few * queries, size)  # no head is repeated
    scores = (folded @ key.transpose(2, 3)).mul(scale)
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    scores = scores.view(rows, few, heads // few, queries, keys)
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask[:, :, None], torch.finfo(scores.dtype).min)
    else:
        scores = scores + mask[:, :, None]
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights.view(rows, few, -1, keys) @ value).view(rows, heads, queries, value.shape[3])


def _causal(block: slice, queries: int, keys: int, device: torch.device) -> Tensor:
    """[1, 1, Q of the block, S], True where attention goes."""
    at = torch.arange(block.start, block.stop, device=device) + keys - queries
    return (torch.arange(keys, device=device) <= at[:, None])[None, None]
