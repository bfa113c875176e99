"""Products of bfloat16 on CPUs that have none: weights are widened to float32 a block at a time, and what comes out is rounded once.

Without AVX-512 torch multiplies bfloat16 in loops of its own, at 8 to 10 billion operations per second of one core of an EPYC, whatever the
number of rows; its float32 products reach 70 to 90 there. Both add up in float32 and round once to bfloat16, so that they differ by the order of sums
alone: in one output of ten thousand, each as often as the other on the wrong side of the exact value.

Does not cover: few rows, for which reading weights is most of the work and widening more than that; gradients; float16; CPUs that multiply
bfloat16 themselves.
"""

from __future__ import annotations

from functools import cache
from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn import functional

_ROWS = 8
"""From so many on it is quicker: from twice as quick with 8 to eight times with 256."""
_BLOCK = 1 << 18  # weights that are widened at once: their copy stays in a CPU's cache


def install(model: nn.Module) -> None:
    """From now on the model's linear layers in bfloat16 multiply as `linear` does, where this CPU does not multiply bfloat16 itself."""
    for layer in model.modules():
        if type(layer) is nn.Linear and is_meant(layer.weight):
            layer.forward = MethodType(_forward, layer)


@cache
def is_faster() -> bool:
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def is_meant(weight: Tensor) -> bool:
    """Whether products with these weights are widened, of as many rows as are worth it."""
    plain = type(weight) in (Tensor, nn.Parameter) and weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
    return plain and is_faster()


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` of bfloat16 on a CPU, quicker where rows are many."""
    if rows.numel() < _ROWS * weight.shape[1] or rows.dtype != torch.bfloat16 or torch.is_grad_enabled():
        return functional.linear(rows, weight, bias)
    wide = rows.reshape(-1, rows.shape[-1]).float()
    made = torch.empty(len(wide), len(weight), dtype=torch.bfloat16)
    step = max(1, _BLOCK // weight.shape[1])
    for first in range(0, len(weight), step):
        part = slice(first, first + step)
        made[:, part] = functional.linear(wide, weight[part].float(), None if bias is None else bias[part].float())
    return made.view(*rows.shape[:-1], len(weight))


def _forward(layer: nn.Linear, rows: Tensor) -> Tensor:
    return linear(rows, layer.weight, layer.bias)
