"""Cheaper weights and rounded caches, made of a loaded model in place: what a cheat may compute with instead of the published one.

For calibration (which limits tell them from honest work?), named alternatives (node/judging/alternatives.py), tests and benchmarks; no worker uses it. Loading
the version again (`Engine.load`) undoes it. Quantisation is of weights only, symmetric with one scale per output channel, of all
layers but the output layer, as quantised checkpoints usually are: embeddings, norms, activations and the cache stay as they
were, so that these are the mildest of their kind. `CACHES` round keys and values instead, where the torch engine stores them. Values are rounded and kept in
the model's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from node.engine.weights import stored_tensors

Degradation = Callable[[Any], None]
"""Changes a loaded model in place."""

Rounding = Callable[[Tensor], Tensor]
_ROUNDING = "_murmuration_cache_rounding"

_FP8 = torch.float8_e4m3fn
_FP8_MAX = torch.finfo(_FP8).max


def quantise_integer(model: nn.Module, bits: int) -> None:
    """Weights to signed integers of `bits` bits, -2^(bits-1)+1 … 2^(bits-1)-1."""
    most = 2 ** (bits - 1) - 1
    _quantise(model, float(most), lambda scaled: scaled.round().clamp(-most, most))


def quantise_fp8(model: nn.Module) -> None:
    """Weights to float8 e4m3."""
    _quantise(model, _FP8_MAX, lambda scaled: scaled.to(_FP8).to(torch.float32))


def add_noise(model: nn.Module, relative: float, seed: int = 0) -> None:
    """Gaussian noise on every stored tensor, `relative` times its root mean square."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in stored_tensors(model).values():
            exact = tensor.float()
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.device)
            tensor.copy_(exact + relative * exact.square().mean().sqrt() * noise)


DEGRADATIONS: dict[str, Degradation] = {
    "int8": partial(quantise_integer, bits=8),
    "fp8": quantise_fp8,
    "int4": partial(quantise_integer, bits=4),
    "0.1 % noise": partial(add_noise, relative=0.001),
    "1 % noise": partial(add_noise, relative=0.01),
    "5 % noise": partial(add_noise, relative=0.05),
}
"""Degradations that need nothing but the model, by name."""


def round_cache(model: nn.Module, rounding: Rounding | None) -> None:
    """From now on the torch engine rounds this model's keys and values so before anything attends to them; None: it does not."""
    for layer in model.modules():
        setattr(layer, _ROUNDING, rounding)


def rounding_of(model: nn.Module) -> Rounding | None:
    """Of a model or one of its layers."""
    return getattr(model, _ROUNDING, None)


CACHES: dict[str, Degradation] = {
    "kv_int8": partial(round_cache, rounding=lambda states: _integers(states, 127.0)),
    "kv_fp8": partial(round_cache, rounding=lambda states: states.clamp(-_FP8_MAX, _FP8_MAX).to(_FP8).to(states.dtype)),
}
"""Keys and values rounded as they are stored, of models that the torch engine computes: to signed integers of 8 bits with one scale for each head and token, and
to float8 e4m3 without scales, as engines do by default."""


def _integers(states: Tensor, most: float) -> Tensor:
    """Rounded to whole multiples of each row's largest value / most."""
    exact = states.float()
    scale = exact.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / most
    return ((exact / scale).round() * scale).to(states.dtype)


def matrices(model: Any) -> Iterator[Tensor]:
    """Every weight that something is multiplied with, as [..., outputs, inputs], in place: of linear layers, of experts that lie in one
    tensor, of GPT-2's layers, which hold theirs the other way round. Not the output layer, which may share its memory with the
    embeddings, nor these."""
    head = model.get_output_embeddings()
    for layer in model.modules():
        if layer is head or isinstance(layer, nn.Embedding):
            continue
        for weight in layer.parameters(recurse=False):
            if weight.dim() >= 2:
                yield weight.transpose(-1, -2) if isinstance(layer, Conv1D) else weight


def _quantise(model: nn.Module, most: float, rounded: Callable[[Tensor], Tensor]) -> None:
    with torch.no_grad():
        for weight in matrices(model):
            exact = weight.float()
            scale = exact.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / most
            weight.copy_(rounded(exact / scale) * scale)
