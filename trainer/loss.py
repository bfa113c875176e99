"""The policy loss: token-level GRPO with two-sided clipping (arXiv 2505.07291, section 3.4).

Shapes: N tokens of completions, flat over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LOG_RATIO_MAX = 20.0  # bounded before exp: a log-ratio of 100 would make the gradient NaN


@dataclass(frozen=True)
class LossParts:
    """`loss` is summed over tokens, to be divided by the batch's tokens; the others are sums for metrics."""

    loss: Tensor
    clipped: Tensor
    log_ratio: Tensor


def two_sided(logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, *, clip: float, delta: float) -> LossParts:
    """−Σ min(min(ratio, δ)·A, clamp(ratio, 1 − ε, 1 + ε)·A).

    For A > 0 this is the usual clipping. For A < 0 the usual loss grows without bound with the ratio; δ caps it.
    """
    log_ratio = (logprobs_N - old_N).clamp(-_LOG_RATIO_MAX, _LOG_RATIO_MAX)
    ratio = log_ratio.exp()
    unclipped = ratio.clamp(max=delta) * advantages_N
    clipped = ratio.clamp(1 - clip, 1 + clip) * advantages_N
    is_clipped = ((ratio - 1).abs() > clip).detach()
    return LossParts(-torch.minimum(unclipped, clipped).sum(), is_clipped.sum(), log_ratio.detach().abs().sum())
