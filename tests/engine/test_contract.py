"""The engine on torch keeps the contract of all engines, and so does a small one of NumPy alone. On a GPU: tests/gpu."""

from __future__ import annotations

import pytest

from tests.engine.contract import EngineContract, Setting
from tests.engine.numpy_engine import numpy_setting
from tests.engine.torch_setting import torch_setting


class TestTorchEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def setting(cls, tmp_path_factory: pytest.TempPathFactory) -> Setting:
        return torch_setting("cpu", tmp_path_factory.mktemp("torch"))


class TestNumpyEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def setting(cls, tmp_path_factory: pytest.TempPathFactory) -> Setting:
        return numpy_setting(tmp_path_factory.mktemp("numpy"))
