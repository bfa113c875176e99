"""Gradients, held in no more memory than they need, where no ranks share them (FSDP2 has gradients of its own). Sparse ones on a CPU alone.

    look_up_sparsely(model)       the embedding's gradient holds the rows of the tokens that were looked up, and not all of the vocabulary
    settle(parameters)            after each backward pass: rows that came twice are summed, and many rows become a plain tensor
    clip(parameters, most)        in place, whatever their form

The head's gradient is a plain tensor that logprobs.py adds to; that of an embedding which is the head as well is the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trainer.learning.ranks import gathered

_DENSE_FROM = 0.5
"""Share of the rows from which on a plain tensor takes less: rows that are added lie beside those that are there."""


def look_up_sparsely(model: Any) -> None:
    """For a transformers model whose parameters are whole."""
    embedding = model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding):
        embedding.sparse = True


def settle(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or not gradient.is_sparse:
            continue
        summed = gradient.coalesce()
        many = summed.values().shape[0] > _DENSE_FROM * len(parameter)
        parameter.grad = summed.to_dense() if many else summed


def numbers(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """What the gradients hold, settled, in memory of theirs; of ranks their shards."""
    found = (parameter.grad for parameter in parameters)
    return [gradient.values() if gradient.is_sparse else gradient for gradient in found if gradient is not None]


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], most: float) -> float:
    """Scales all gradients down to a norm of `most`, if theirs is larger, which is returned; every rank has to ask."""
    held = numbers(parameters)
    norm = float(gathered(nn.utils.get_total_norm(held)))
    if norm > most:
        for gradient in held:
            gradient.mul_(most / (norm + 1e-6))
    return norm
