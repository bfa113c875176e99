"""Logprobs and entropies of tokens, straight from the hidden states: the full logits [N, V] never exist.

Tokens go through the head in chunks, whose size follows from the vocabulary, forwards and, recomputed, backwards; what is kept in
between is three numbers per token. Where one chunk holds them all, its logprobs are kept as well. One chunk of logits is alive at a time;
everything is computed in its place. The sums over the
vocabulary are in float32 whatever the head's type. Covers heads that are one matrix with or without a bias, and what a model
does to its logits afterwards (soft cap, scale: node/engine/output.py).

Shapes: N tokens, H hidden size, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from node.engine import products
from node.engine.output import Bend

CHUNK_LOGITS = 1 << 21
"""Logits of a chunk, 8 MiB of float32, where the vocabulary is small; more take memory for no speed."""
CHUNK_TOKENS_MIN = 48
"""Tokens of a chunk where it is large. Every chunk reads the head twice and reads and writes its gradient, however few its tokens: at a
vocabulary of 152k, chunks of 16 tokens took 1.45 times as long. More than 32 MiB glibc takes from the system for each chunk anew: 64
tokens took 1.1 times as long."""
_CACHED = 1 << 18
"""Logits that are worked on together on a CPU: the passes over them go through its cache, and what they take is no matter of size."""


def token_logprobs(
    hidden_NH: Tensor,
    head: Any,
    targets_N: Tensor,
    *,
    bend: Bend = Bend(),
    chunk_tokens: int | None = None,
    accumulates: bool = False,
) -> tuple[Tensor, Tensor]:
    """Logprob [N] of each target and entropy [N] of its whole distribution, both with gradients to hidden states and head.

    `head` has a `weight` [V, H] and a `bias` [V] or None, as torch.nn.Linear; `bend` is what the model does to its product.
    `accumulates`: the weight's gradient is added to `weight.grad` chunk by chunk, and autograd, which would want another [V, H] for it,
    hears nothing of it. For a parameter that nobody shards, and `backward()`.
    """
    weight = head.weight
    chunk = chunk_tokens or max(CHUNK_TOKENS_MIN, CHUNK_LOGITS // weight.shape[0])
    into = weight if accumulates and weight.requires_grad and weight.dtype == torch.float32 else None
    shown = weight if into is None else weight.detach()
    return _TokenLogprobs.apply(hidden_NH, shown, head.bias, targets_N, bend, chunk, into)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        bend: Bend,
        chunk: int,
        into: nn.Parameter | None,
    ) -> tuple[Tensor, Tensor]:
        kind = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, normaliser, entropy = (torch.empty(len(hidden), dtype=kind, device=hidden.device) for _ in range(3))
        kept = None
        for part in _parts(len(hidden), chunk):
            logits = bend.apply_(_logits(hidden[part], weight, bias, kind))
            logprobs[part], normaliser[part], entropy[part] = _normalise_(logits, targets[part])
            kept = logits if len(hidden) <= chunk else None
            del logits  # not to lie beside those of the next chunk
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy, kept)
        ctx.bend, ctx.chunk, ctx.into = bend, chunk, into
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        of_logprob, of_entropy = gradients
        hidden, weight, bias, targets, normaliser, entropy, kept = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros_like(weight, dtype=normaliser.dtype) if ctx.needs_input_grad[1] else None
        into = d_weight if ctx.into is None else _gradient(ctx.into)
        d_bias = (
            torch.zeros_like(bias, dtype=normaliser.dtype) if bias is not None and ctx.needs_input_grad[2] else None
        )
        for part in _parts(len(hidden), ctx.chunk):
            if kept is None:
                d_logits = ctx.bend.apply_(_logits(hidden[part], weight, bias, normaliser.dtype))
            else:
                d_logits = kept + normaliser[part, None]
            scales = _column(of_logprob, part), _column(of_entropy, part)
            _d_logits_(d_logits, targets[part], _column(normaliser, part), _column(entropy, part), scales, ctx.bend)
            if d_hidden is not None:
                d_hidden[part] = products.linear(d_logits.to(weight.dtype), weight.t())
            if into is not None:
                into.addmm_(d_logits.T, hidden[part].to(into.dtype))
            if d_bias is not None:
                d_bias += d_logits.sum(0)
            del d_logits
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(weight.dtype),
            None,
            None,
            None,
            None,
        )


def _gradient(of: nn.Parameter) -> Tensor:
    """Of a parameter, to be added to; zero where it has none yet."""
    if of.grad is None:
        of.grad = torch.zeros_like(of)
    return of.grad


def _normalise_(logits_CV: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logprob of each target, logarithm of the sum over the vocabulary, entropy, [C] each. The logits become logprobs."""
    chosen, normaliser, entropy = (torch.empty_like(logits_CV[:, 0]) for _ in range(3))
    for rows in _parts(len(logits_CV), _at_once(logits_CV)):
        logits = logits_CV[rows]
        normaliser[rows] = logits.logsumexp(1)
        chosen[rows] = logits.sub_(normaliser[rows, None]).gather(1, targets_C[rows, None]).squeeze(1)
        # 0·(−∞) is to be 0: a token that cannot come adds nothing.
        logits.clamp_(min=torch.finfo(logits.dtype).min)
        entropy[rows] = -logits.exp().mul_(logits).sum(1)
    return chosen, normaliser, entropy


def _d_logits_(
    logits_CV: Tensor, targets_C: Tensor, normaliser_C1: Tensor, entropy_C1: Tensor, of_C1: tuple[Tensor | None, Tensor | None], bend: Bend
) -> None:  # fmt: skip
    """The gradient of the logits, in their place; `of` are those of logprobs and entropies.

    d logprob / d logit j = [j is the target] − p_j;  d entropy / d logit j = −p_j·(log p_j + entropy).
    """
    for rows in _parts(len(logits_CV), _at_once(logits_CV)):
        logits, slope = logits_CV[rows], None if bend.is_none else bend.slope(logits_CV[rows])
        of_logprob, of_entropy = (None if of is None else of[rows] for of in of_C1)
        log_p = logits.sub_(normaliser_C1[rows])
        if of_entropy is None:
            made = log_p.exp_().mul_(0.0 if of_logprob is None else -of_logprob)
        else:
            p = log_p.exp()
            made = log_p.clamp_(min=torch.finfo(p.dtype).min).add_(entropy_C1[rows]).mul_(-of_entropy)
            made = (made if of_logprob is None else made.sub_(of_logprob)).mul_(p)
        if of_logprob is not None:
            made.scatter_add_(1, targets_C[rows, None], of_logprob.to(made.dtype))
        if slope is not None:
            made.mul_(slope)


def _at_once(logits_CV: Tensor) -> int:
    """Rows that are worked on together: all on a GPU's few calls, on a CPU as many as its cache holds."""
    return max(1, _CACHED // logits_CV.shape[1] if logits_CV.device.type == "cpu" else len(logits_CV))


def _parts(count: int, chunk: int) -> list[slice]:
    return [slice(start, min(count, start + chunk)) for start in range(0, count, chunk)]


def _column(values_N: Any, part: slice) -> Any:
    return None if values_N is None else values_N[part, None]


def _logits(hidden_CH: Tensor, weight: Tensor, bias: Tensor | None, kind: torch.dtype) -> Tensor:
    return products.linear(hidden_CH, weight, bias).to(kind)
