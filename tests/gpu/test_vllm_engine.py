"""The engine on vLLM on a GPU: the contract of all engines, and honest work between it and the engine on torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from tests.engine.contract import EngineContract, Setting

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.cuda_alone,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: pip install 'murmuration[vllm]'"
    ),
]


class TestVllmEngineOnAGpu(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def setting(cls, tmp_path_factory: pytest.TempPathFactory, gpu: torch.device) -> Iterator[Setting]:
        from node.engine import EngineSettings, footprint, vllm_plan
        from node.engine.vllm_engine import VllmEngine
        from node.engine.weights import meta_model
        from tests.engine import models
        from tests.engine.torch_setting import versions

        version, another, broken = versions(tmp_path_factory.mktemp("vllm"), models.RIGHT["qwen3"] | {"head_dim": 64})
        made: list[VllmEngine] = []

        def make(memory: str) -> VllmEngine:
            for before in made:  # each takes its part of the device at the start
                before.close()
            made.append(VllmEngine("float32", EngineSettings(name="vllm", device=str(gpu), memory=memory)))
            return made[-1]

        of = footprint.of(meta_model(version, torch.float32), torch.device("meta"))
        row = 1.5 * 123 * of.cache_token  # one of at most 59 tokens, in blocks, and the working memory
        little, too_little = (f"{(vllm_plan.fixed(of) + part * row) / (1 << 20):.6f}MiB" for part in (1, 0.3))
        yield Setting(make, models.reference, version, another, broken, models.VOCABULARY, little, too_little)
        for engine in made:
            engine.close()
