"""The engine on torch keeps the contract of all engines, and so does a small one of NumPy alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from node.engine.settings import EngineSettings
from node.engine.torch_engine import TorchEngine
from tests.engine import models
from tests.engine.contract import EngineContract, Setting
from tests.engine.numpy_engine import numpy_setting
from trainer.models.pretrained import make_policy

WEIGHTS = "model.safetensors"


def on(device: str, folder: Path) -> Setting:
    version, another, broken = folder / "version", folder / "another", folder / "broken"
    make_policy(models.make(models.RIGHT["qwen3"], folder / "theirs"), version)
    for copy in (another, broken):
        shutil.copytree(version, copy)
    tensors = load_file(version / WEIGHTS)
    torch.manual_seed(1)
    save_file({name: t + 0.1 * torch.randn(t.shape).bfloat16() for name, t in tensors.items()}, another / WEIGHTS)
    save_file({name: t for name, t in tensors.items() if "layers.0" not in name}, broken / WEIGHTS)

    def make(memory: str) -> TorchEngine:
        return TorchEngine("float32", EngineSettings(device=device, memory=memory))

    return Setting(
        make, models.reference, version, another, broken, models.VOCABULARY, little="0.35MiB", too_little="0.11MiB"
    )


class TestTorchEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def setting(cls, tmp_path_factory: pytest.TempPathFactory) -> Setting:
        return on("cpu", tmp_path_factory.mktemp("torch"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
class TestTorchEngineOnAGpu(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def setting(cls, tmp_path_factory: pytest.TempPathFactory) -> Setting:
        return on("cuda", tmp_path_factory.mktemp("torch"))


class TestNumpyEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def setting(cls, tmp_path_factory: pytest.TempPathFactory) -> Setting:
        return numpy_setting(tmp_path_factory.mktemp("numpy"))
