"""Products with weights on a CPU: by oneDNN, where torch's own choice leaves half of the processor idle.

In float32 torch's linear layers call Intel's MKL, which does not use AVX-512 on AMD's processors: of one core of an EPYC with it MKL got
100 billion operations per second, and oneDNN, which is in the same wheel, 200 (64 rows, 256 × 704), in products for gradients as well.
torch has no setting for that; the operation that is called here is the one that its compiler puts in place of linear layers. It takes
weights as they lie, so that nothing is held twice.

Does not cover: other types (torch computes them by oneDNN anyway), ARM (so it does there), attention (bound by memory), experts, whose
weights are no linear layers.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

log = logging.getLogger(__name__)

_WORTH = 1 << 20  # multiplications from which on it is quicker: a call costs ten microseconds more
_CPUINFO = Path("/proc/cpuinfo")


def install(model: nn.Module) -> None:
    """From now on the model's linear layers in float32 on a CPU multiply as `linear` does; those of another class, where they have a
    method `product`, in that method."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and _is_meant(layer.weight):
            method = "forward" if type(layer) is nn.Linear else "product"
            if hasattr(layer, method):
                setattr(layer, method, MethodType(_forward, layer))


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` of whatever type and device, quicker where it can be. Knows nothing of autocast."""
    return _linear(rows, weight, bias) if _is_meant(weight) else functional.linear(rows, weight, bias)


@cache
def is_faster() -> bool:
    """Whether this processor is AMD's, and oneDNN multiplies on it, and rightly."""
    try:
        if "AuthenticAMD" not in _CPUINFO.read_text() or not torch.backends.mkldnn.is_available():
            return False
        torch.ops.mkldnn._linear_pointwise  # noqa: B018  raises where this torch has no such operation
    except (OSError, AttributeError):
        return False
    with torch.inference_mode():
        made = torch.Generator().manual_seed(0)
        rows, weight, bias = (torch.randn(*shape, generator=made) for shape in ((64, 256), (256, 256), (256,)))
        right = torch.allclose(_product(rows, weight, bias), functional.linear(rows, weight, bias), rtol=0, atol=1e-3)
    if not right:
        log.warning("oneDNN's products are not used: they differ from torch's own")
    return right


def _is_meant(weight: Tensor) -> bool:
    """Neither a rank's shard nor anything else that only looks like a tensor of this machine's memory."""
    plain = type(weight) in (Tensor, nn.Parameter) and weight.dtype == torch.float32 and weight.device.type == "cpu"
    return plain and is_faster()


def _forward(layer: nn.Linear, rows: Tensor) -> Tensor:
    if rows.numel() * layer.out_features < _WORTH:  # said twice: where rows are few, every microsecond counts
        return functional.linear(rows, layer.weight, layer.bias)
    return _linear(rows, layer.weight, layer.bias)


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if rows.numel() * len(weight) < _WORTH or rows.dim() < 2 or rows.dtype != torch.float32:
        return functional.linear(rows, weight, bias)
    if torch.is_grad_enabled():
        made: Tensor = _Learnt.apply(rows, weight, bias)
        return made
    return _product(rows, weight, bias)


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else bias.contiguous()  # it reads any other as if it were
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # a stride between numbers makes it a thousand times slower
    made: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return made


class _Learnt(torch.autograd.Function):
    """The same with gradients, whose products are made likewise."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        flat = gradient.flatten(0, -2)
        return (
            _product(gradient, weight.t(), None) if of_rows else None,
            _product(flat.t(), rows.flatten(0, -2).t(), None) if of_weight else None,
            flat.sum(0) if of_bias else None,
        )
