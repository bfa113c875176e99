"""Routers that choose experts in float32 whatever else computes in.

DeepSeek-V3's multiplies in float32, and engines, which hold the published weights, do so too. Autocast would take that product in its own
type, and at a near tie other experts would be trained than answered.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_ROUTERS = ("DeepseekV3TopkRouter",)


def without_autocast(model: nn.Module, dtype: torch.dtype) -> None:
    """Has the routers of `model` compute in float32 from weights and hidden states as engines have them, of type `dtype`."""
    for module in model.modules():
        if type(module).__name__ in _ROUTERS:
            module.forward = partial(_routed, _AsPublished(module, dtype))


def _routed(router: _AsPublished, hidden: Tensor) -> Any:
    with torch.autocast(hidden.device.type, enabled=False):
        return type(router.module).forward(router, hidden.to(router.dtype))


class _AsPublished:
    """A router with weights of another type."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.module = module
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        return value.to(self.dtype) if name == "weight" else value
