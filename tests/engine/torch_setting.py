"""The engine on torch as the contract of all engines wants it (contract.py), on any device."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from node.engine.settings import EngineSettings
from node.engine.torch_engine import TorchEngine
from tests.engine import models
from tests.engine.contract import Setting
from trainer.models.pretrained import make_policy

WEIGHTS = "model.safetensors"


def versions(folder: Path, config: dict[str, Any]) -> tuple[Path, Path, Path]:
    """Two versions of one model, and one that is not to be loaded."""
    version, another, broken = folder / "version", folder / "another", folder / "broken"
    make_policy(models.make(config, folder / "theirs"), version)
    for copy in (another, broken):
        shutil.copytree(version, copy)
    tensors = load_file(version / WEIGHTS)
    torch.manual_seed(1)
    save_file({name: t + 0.1 * torch.randn(t.shape).bfloat16() for name, t in tensors.items()}, another / WEIGHTS)
    save_file({name: t for name, t in tensors.items() if "layers.0" not in name}, broken / WEIGHTS)
    return version, another, broken


def torch_setting(device: str, folder: Path) -> Setting:
    version, another, broken = versions(folder, models.RIGHT["qwen3"])

    def make(memory: str) -> TorchEngine:
        return TorchEngine("float32", EngineSettings(device=device, memory=memory))

    return Setting(
        make, models.reference, version, another, broken, models.VOCABULARY, little="0.35MiB", too_little="0.11MiB"
    )
