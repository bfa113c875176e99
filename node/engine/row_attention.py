"""Attention as the engine computes it, registered with transformers under names of its own: models ask there for every layer.

Prompts and whole sequences are right-padded and attended to causally, without a mask; a step of decoding has one query for each row of
the cache (step_attention.py). Windows and capped scores are computed wherever a layer asks for them. transformers makes no mask for a
name that it does not know: what a layer may see is decided here alone.

Two ways, equal but for rounding: "sdpa", torch's fused kernels, and "eager", products and a softmax, for calibration.

Shapes: B rows, H heads of queries, K of keys, T tokens, D head size; a query at place t sees the keys at places t and before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from node.engine import step_attention
from node.engine.degrade import rounding_of
from node.engine.kv_cache import KeyValueCache
from node.engine.step_attention import How
from protocol.errors import ConfigError

WAYS = ("sdpa", "eager")
CACHE = "murmuration_cache"
"""Name of the argument of a model's `forward` that carries the cache to its layers, in a step of decoding."""


def install(model: Any, way: str) -> None:
    """From now on this model attends as this module does. Raises ConfigError for a way that is none."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if way not in WAYS:
        raise ConfigError(f"attention {way!r} is not computed here", hint=f"these ways are: {', '.join(WAYS)}")
    name = f"murmuration_{way}"
    ALL_ATTENTION_FUNCTIONS.register(name, _fused if way == "sdpa" else _plain)
    model.set_attn_implementation(name)


def _fused(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **how: Any
) -> tuple[Tensor, None]:
    return _attend(module, query, key, value, fused=True, **how), None


def _plain(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **how: Any
) -> tuple[Tensor, None]:
    return _attend(module, query, key, value, fused=False, **how), None


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *, fused: bool,
    scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None, **rest: Any,
) -> Tensor:  # fmt: skip
    """[B, T, H, D] of queries [B, H, T, D], as transformers wants it."""
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    cache: KeyValueCache | None = rest.get(CACHE)
    if rest.get("s_aux") is not None or rest.get("position_bias") is not None:
        raise NotImplementedError(f"{type(module).__name__} adds something to its scores that is not computed here")
    if cache is None:
        if (rounding := rounding_of(module)) is not None:
            key, value = rounding(key), rounding(value)
        return _attend_causally(query, key, value, scale, sliding_window, softcap, fused=fused)
    how = How(scale, sliding_window, softcap, rounded=not fused)
    return step_attention.attend(query, cache.current, cache.stored(key, value), how)


def _attend_causally(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, softcap: float | None, *, fused: bool
) -> Tensor:
    tokens = query.shape[2]
    if key.shape[2] != tokens:
        raise RuntimeError("a layer attends to a cache, and was not told how far its rows reach")
    groups = query.shape[1] // key.shape[1]
    if fused and softcap is None and (window is None or window >= tokens):
        made = functional.scaled_dot_product_attention(
            query, key, value, is_causal=tokens > 1, scale=scale, enable_gqa=groups > 1
        )
        return made.transpose(1, 2)
    at = torch.arange(tokens, device=query.device)
    seen = at <= at[:, None]
    if window is not None:
        seen &= at > at[:, None] - window
    mask = torch.full(seen.shape, -torch.inf, dtype=query.dtype, device=query.device).masked_fill_(seen, 0.0)
    del seen
    if fused and softcap is None:
        return _masked(query, key, value, mask, scale).transpose(1, 2)
    # Groups are folded into the queries: those of one group are `tokens` queries each with the same masks.
    folded = query.reshape(query.shape[0], key.shape[1], groups * tokens, query.shape[-1])
    made = _products(folded, key, value, mask.repeat(groups, 1), scale, softcap)
    return made.reshape(query.shape[0], query.shape[1], tokens, -1).transpose(1, 2)


def _masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """All heads under one mask, of which a long prompt has room for no second. CUDA's kernels that take a mask know no groups."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and query.device.type != "cpu":
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    shared = key.shape[1] != query.shape[1]
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=shared)


def _products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Of queries [B, K, Q, D], keys and values [B, K, T, D], what is added to the scores, their factor, and the cap on them."""
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return (scores + mask).softmax(-1, dtype=torch.float32).to(query.dtype) @ value
