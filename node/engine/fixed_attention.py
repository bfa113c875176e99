"""Attention in fixed shapes: each token at hand sums over its own sequence, KEYS tokens at a time, from the first to its own.

What a token gets depends on nothing but its own query and its sequence's keys and values: every product has the shapes of one piece and
R tokens, pieces are added in order, and those that a token does not see add exactly nought. It is the same in decoding and in
prefill, for both come here a token at a time.

Scores and sums are float32, whatever the model's type. Windows and capped scores are computed wherever a layer asks for them.

Shapes: R tokens at hand, H heads of queries, K of keys, Q = H ÷ K, D head size, W = KEYS.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from node.engine.degrade import rounding_of
from node.engine.fixed_cache import KEYS, FixedCache

NAME = "murmuration_fixed"
"""By which transformers knows it."""
CACHE = "murmuration_fixed_cache"
"""Name of the argument of a model's `forward` that carries the cache to its layers."""


def install(model: Any) -> None:
    """From now on this model attends as this module does."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    model.set_attn_implementation(NAME)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None = None,
    sliding_window: int | None = None, softcap: float | None = None, **rest: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """[R, 1, H, D] of queries [R, H, 1, D], as transformers wants it."""
    if rest.get("s_aux") is not None or rest.get("position_bias") is not None:
        raise NotImplementedError(f"{type(module).__name__} adds something to its scores that is not computed here")
    cache: FixedCache = rest[CACHE]
    if (rounding := rounding_of(module)) is not None:
        key, value = rounding(key), rounding(value)
    cache.write(key, value)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    kept = key.shape[1]
    asked = (query.float() * scale).reshape(len(query) * kept, -1, query.shape[-1]).contiguous()
    return _weighted(asked, cache, sliding_window, softcap).to(query.dtype).view(
        len(query), 1, query.shape[1], -1
    ), None


def _weighted(asked: Tensor, cache: FixedCache, window: int | None, softcap: float | None) -> Tensor:
    """[R · K, Q, D] in float32 of scaled queries [R · K, Q, D]."""
    scores = []
    for number in range(cache.reach):
        keys, _ = cache.piece(number)
        made = torch.bmm(asked, keys.float().flatten(0, 1).transpose(1, 2))
        if softcap is not None:
            made = softcap * torch.tanh(made / softcap)
        unseen = _unseen(cache.places, number, window)
        made.unflatten(0, (len(unseen), -1)).masked_fill_(unseen[:, None, None], -torch.inf)
        scores.append(made)
    highest = scores[0].amax(-1, keepdim=True)
    for made in scores[1:]:
        highest = highest.maximum(made.amax(-1, keepdim=True))
    total = torch.zeros_like(highest)
    found = torch.zeros_like(asked[..., :1])  # of nought and not of the first piece: -0 + 0 is 0
    for number, made in enumerate(scores):
        _, values = cache.piece(number)
        weights = made.sub_(highest).exp_()
        total = total + weights.sum(-1, keepdim=True)
        found = found + torch.bmm(weights, values.float().flatten(0, 1))
    return found / total


def _unseen(places: Tensor, number: int, window: int | None) -> Tensor:
    """Which tokens of a piece [R, W] each token does not see."""
    at = torch.arange(number * KEYS, (number + 1) * KEYS, device=places.device)
    unseen = at > places[:, None]
    if window is not None:
        unseen |= at <= places[:, None] - window
    return unseen
