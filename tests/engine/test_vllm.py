"""The engine on vLLM, where it is installed (scripts/test-vllm): the contract of all engines, and what a process of its own adds."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from swarm.tiny_run import TinyRun

from node.engine import Completion, Engine
from node.engine.settings import EngineSettings
from node.engine.vllm_engine import VllmEngine
from node.judging.judge import judge
from tests.engine import models
from tests.engine.contract import EngineContract, Setting, generate, tokens
from trainer.models.pretrained import make_policy
from trainer.models.tiny import make_policy as make_tiny

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: see scripts/test-vllm"),
]
WEIGHTS = "model.safetensors"
MODEL = models.RIGHT["qwen3"] | {"head_dim": 32}  # vLLM's attention on the CPU knows no smaller heads


def versions(folder: Path) -> tuple[Path, Path, Path]:
    version, another, broken = folder / "version", folder / "another", folder / "broken"
    make_policy(models.make(MODEL, folder / "theirs"), version)
    for copy in (another, broken):
        shutil.copytree(version, copy)
    tensors = load_file(version / WEIGHTS)
    torch.manual_seed(1)
    save_file({name: t + 0.1 * torch.randn(t.shape).bfloat16() for name, t in tensors.items()}, another / WEIGHTS)
    save_file({name: t for name, t in tensors.items() if "layers.0" not in name}, broken / WEIGHTS)
    return version, another, broken


class TestVllmEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def setting(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
        version, another, broken = versions(tmp_path_factory.mktemp("vllm"))
        made: list[VllmEngine] = []

        def make(memory: str) -> VllmEngine:
            made.append(VllmEngine("float32", EngineSettings(name="vllm", device="cpu", memory=memory)))
            return made[-1]

        plain = make("1GiB")
        plain.load(version)
        row = 1.5 * 123 * plain._footprint.cache_token  # one of at most 59 tokens, in blocks, and the working memory
        little, too_little = (f"{(plain._fixed() + part * row) / (1 << 20):.6f}MiB" for part in (1, 0.3))
        yield Setting(make, models.reference, version, another, broken, models.VOCABULARY, little, too_little)
        for engine in made:
            engine.close()

    def test_a_process_that_is_killed_is_replaced(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        assert isinstance(engine, VllmEngine) and engine._process is not None
        os.kill(engine._process.pid, signal.SIGKILL)
        assert tokens(generate(engine, setting.prompts)) == tokens(made)


@pytest.fixture(scope="module")
def vllm(run: TinyRun, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Engine]]:
    """Engines on vLLM that hold the run's version, by dtype."""
    made: dict[str, VllmEngine] = {}

    def get(dtype: str) -> Engine:
        if dtype not in made:
            made[dtype] = VllmEngine(dtype, EngineSettings(name="vllm", device="cpu", memory="1GiB"))
            made[dtype].load(run.model)
        return made[dtype]

    yield get
    for engine in made.values():
        engine.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return TinyRun.create(tmp_path_factory.mktemp("run"), make_tiny)


def test_a_torch_validator_accepts_what_vllm_made(run: TinyRun, vllm: Callable[[str], Engine]) -> None:
    made = replace(run, engine=vllm("float32")).honest()  # type: ignore[arg-type]
    assert judge(run.candidate(made)) is None


def test_a_vllm_validator_accepts_what_torch_made(run: TinyRun, vllm: Callable[[str], Engine]) -> None:
    made = run.honest(sequence=1)
    assert judge(replace(run, engine=vllm("float32")).candidate(made)) is None  # type: ignore[arg-type]
