"""Quantisers that no validator names: whether looking for one finds its relatives."""

from __future__ import annotations

from typing import Any

import torch

from node.engine.degrade import matrices

_GROUP = 32


def grouped_int8(model: Any) -> None:
    """Weights to 8 bits with an offset and a scale for each 32 inputs, as "asymmetric, group size 32" is told."""
    with torch.no_grad():
        for weight in matrices(model):
            exact = weight.float()
            inputs = exact.shape[-1]
            size = _GROUP if inputs % _GROUP == 0 else inputs
            grouped = exact.reshape(*exact.shape[:-1], inputs // size, size)
            low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
            scale = ((high - low) / 255).clamp(min=torch.finfo(torch.float32).tiny)
            weight.copy_((((grouped - low) / scale).round() * scale + low).reshape(exact.shape))
