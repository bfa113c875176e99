"""Whether a model fits its device, and how many answers are generated at once: told from config.json alone, before anything is loaded.

The arithmetic is that of node/engine/memory.py, and as rough: what the engine "vllm" does with its cache is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from node.engine import device, footprint, memory
from node.engine.settings import EngineSettings
from node.engine.weights import meta_model


@dataclass(frozen=True)
class Fit:
    """Bytes, but for `rows` and `tokens`."""

    allowed: int
    """What the engine may take of the device."""
    weights: int
    row: int
    """One sequence of `tokens`, prompt and answer, while it is generated."""
    prefill: int
    """The same while it is checked, alone."""
    tokens: int

    @property
    def free(self) -> int:
        """What the weights leave."""
        return self.allowed - self.weights

    @property
    def rows(self) -> int:
        """Sequences that are generated at once; 0 where the model does not fit."""
        return max(0, self.free // self.row) if self.prefill <= self.free else 0


def fit(folder: Path, dtype: str, tokens: int, settings: EngineSettings) -> Fit:
    """Of the model whose config.json lies in `folder`, for sequences of so many tokens.

    Raises ConfigError for a model that is not computed rightly, IntegrityError for a config.json that is none, PreflightError where the
    device is not there.
    """
    of = footprint.of(meta_model(folder, getattr(torch, dtype)), torch.device("meta"))
    return Fit(
        allowed=memory.parse(settings.memory, device.free_bytes(device.named(settings.device))),
        weights=of.weights,
        row=of.decoding(tokens),
        prefill=of.prefilling(tokens, tokens, cached=False),
        tokens=tokens,
    )
