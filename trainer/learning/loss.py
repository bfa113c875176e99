"""Policy losses over per-token inputs: what one optimizer step minimises. recipes.py names and combines them.

All of them equal TRL's GRPOTrainer, in value and gradient (tests/vectors/losses.json). Logarithms of ratios are bounded
before exp: 100 there would make the gradient NaN. Not here: logprobs themselves (logprobs.py), advantages (advantage.py).

Shapes: N completion tokens, flat, of S samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.recipes import Aggregation, Clip, Correction

_LOG_RATIO_MAX = 20.0


@dataclass(frozen=True)
class Tokens:
    """logprobs, old, advantages [N]; sample [N], the number of each token's sample; lengths [S], tokens of each sample."""

    logprobs: Tensor
    old: Tensor
    advantages: Tensor
    sample: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Objective:
    """Loss of each token, [N], and which tokens were clipped: they have no gradient (cispo: a bounded one)."""

    loss: Tensor
    clipped: Tensor


def clipped_ratio(tokens: Tokens, clip: Clip) -> Objective:
    """−min(min(r, δ)·A, clip(r)·A).

    For A > 0 this is the usual clipping. For A < 0 the usual loss grows without bound with the ratio; δ caps it.
    """
    return _clipped(bounded(tokens.logprobs - tokens.old).exp(), tokens.advantages, clip)


def clipped_sequence_ratio(tokens: Tokens, clip: Clip) -> Objective:
    """As `clipped_ratio`, but all tokens of a sample have one ratio, the exp of their mean log-ratio."""
    log_ratio = bounded(tokens.logprobs - tokens.old)
    sums = log_ratio.new_zeros(len(tokens.lengths)).index_add(0, tokens.sample, log_ratio)
    ratio = (sums / tokens.lengths.clamp(min=1)).exp()[tokens.sample]
    return _clipped(ratio, tokens.advantages, clip)


def clipped_weight(tokens: Tokens, clip: Clip) -> Objective:
    """−sg(clip(r))·A·logprob."""
    ratio = bounded(tokens.logprobs - tokens.old).exp().detach()
    weight = ratio.clamp(1 - clip.low, 1 + clip.high)
    return Objective(-weight * tokens.advantages * tokens.logprobs, weight != ratio)


def _clipped(ratio: Tensor, advantages: Tensor, clip: Clip) -> Objective:
    capped = ratio.clamp(max=clip.delta) if clip.delta is not None else ratio
    loss = -torch.minimum(capped * advantages, ratio.clamp(1 - clip.low, 1 + clip.high) * advantages)
    with torch.no_grad():
        above = (advantages > 0) & (ratio > 1 + clip.high)
        below = (advantages < 0) & (ratio < 1 - clip.low)
        beyond = (advantages < 0) & (ratio > clip.delta) if clip.delta is not None else torch.zeros_like(above)
    return Objective(loss, above | below | beyond)


OBJECTIVES = {
    "clipped ratio": clipped_ratio,
    "clipped sequence ratio": clipped_sequence_ratio,
    "clipped weight": clipped_weight,
}


# ---- what every loss may add -------------------------------------------------------------------------------------------


def bounded(log_ratio: Tensor) -> Tensor:
    """Within ±20; beyond that a ratio has no gradient."""
    return log_ratio.clamp(-_LOG_RATIO_MAX, _LOG_RATIO_MAX)


def kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate k3 of KL(policy ‖ reference) at each token, never negative: exp(d) − d − 1, d = reference − logprob."""
    d = bounded(reference - logprobs)
    return d.exp() - d - 1


def importance(old: Tensor, behaviour: Tensor, correction: Correction, low: float, high: float) -> Tensor:
    """Weight of each token for having been sampled by older weights (or another engine) than the old logprobs are of.

    w = exp(old − behaviour); "truncate" gives min(w, high), "mask" w within [low, high] and 0 elsewhere. No gradient.
    """
    weight = bounded(old - behaviour).exp().detach()
    if correction == "truncate":
        return weight.clamp(max=high)
    if correction == "mask":
        return torch.where((weight >= low) & (weight <= high), weight, 0.0)
    return torch.ones_like(weight)


@dataclass(frozen=True)
class Totals:
    """Of one optimizer step's whole batch, whatever parts it goes through the model in."""

    tokens: int
    samples: int


def token_weights(tokens: Tokens, aggregation: Aggregation, totals: Totals, constant: int | None = None) -> Tensor:
    """What each token's loss is multiplied with, [N]; the weighted sum over the whole batch is the loss.

    "token": mean over all tokens. "sequence": mean over samples of the means over their tokens. "constant": sum over
    tokens, divided by samples × `constant`.
    """
    if aggregation == "token":
        return torch.full_like(tokens.advantages, 1 / max(1, totals.tokens))
    if aggregation == "sequence":
        return (1 / (tokens.lengths.clamp(min=1).to(tokens.advantages.dtype) * totals.samples))[tokens.sample]
    if constant is None:
        raise ValueError('aggregation "constant" needs its constant')
    return torch.full_like(tokens.advantages, 1 / (totals.samples * constant))
