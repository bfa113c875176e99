"""Engines are made by name, in the dtype that the run computes in; whatever cannot be made is said before anything is computed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from node.engine import Adjustable, EngineSettings, factory, make_engine
from node.engine.torch_engine import TorchEngine
from protocol.errors import ConfigError, PreflightError
from tests.engine.numpy_engine import NumpyEngine
from trainer.config import load_engine


def adding(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """As if an installed package added an engine."""
    added = EntryPoint(name, value, factory.GROUP)
    monkeypatch.setattr(factory, "entry_points", lambda *, group: [added] if group == factory.GROUP else [])


def test_the_usual_engine_is_the_one_on_torch() -> None:
    engine = make_engine(EngineSettings(), "float32")
    assert isinstance(engine, TorchEngine)
    assert isinstance(engine, Adjustable)


def test_an_installed_package_adds_an_engine_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    adding(monkeypatch, "numpy", "tests.engine.numpy_engine:NumpyEngine")
    assert isinstance(make_engine(EngineSettings(name="numpy"), "float32"), NumpyEngine)


def test_no_package_takes_the_name_of_what_is_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    adding(monkeypatch, "torch", "tests.engine.numpy_engine:NumpyEngine")
    assert isinstance(make_engine(EngineSettings(), "float32"), TorchEngine)


def test_an_unknown_name_is_told_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    adding(monkeypatch, "numpy", "tests.engine.numpy_engine:NumpyEngine")
    with pytest.raises(ConfigError, match="no engine 'vlm'") as told:
        make_engine(EngineSettings(name="vlm"), "float32")
    assert told.value.hint == "engine.name is one of: numpy, torch, vllm"


@pytest.mark.parametrize("value", ["tests.engine.nowhere:Engine", "tests.engine.numpy_engine:Missing"])
def test_an_engine_that_cannot_be_imported_is_told_by_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    adding(monkeypatch, "broken", value)
    with pytest.raises(ConfigError, match="engine 'broken' cannot be imported"):
        make_engine(EngineSettings(name="broken"), "float32")


def test_another_dtype_than_the_runs_is_refused() -> None:
    make_engine(EngineSettings(dtype="bfloat16"), "bfloat16")
    with pytest.raises(ConfigError, match=r"engine\.dtype is bfloat16, and the run computes in float32"):
        make_engine(EngineSettings(dtype="bfloat16"), "float32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an NVIDIA GPU")
def test_a_device_that_is_not_there_is_told() -> None:
    make_engine(EngineSettings(device="auto"), "float32")
    with pytest.raises(PreflightError, match=r"engine\.device is cuda:1, and torch sees 0 NVIDIA GPUs"):
        make_engine(EngineSettings(device="cuda:1"), "float32")


@pytest.mark.parametrize(
    "wrong", [{"device": "gpu"}, {"device": "cuda:x"}, {"memory": "12"}, {"memory": "0%"}, {"memory": "120%"}, {"memory": "4GB"}]
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        EngineSettings.model_validate(wrong)


def test_the_engine_of_a_run_file_is_read_before_the_rest_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[spec]\nname = "unfinished"\n[engine]\nthreads = 3\n')
    assert load_engine(file).threads == 3
    assert load_engine(file).memory == "25%"  # beside the training
    file.write_text("[engine]\nthread = 3\n")
    with pytest.raises(ConfigError, match=r"unknown setting 'engine\.thread'") as told:
        load_engine(file)
    assert "engine.threads" in told.value.hint


def test_an_amount_of_memory_needs_no_quotes_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.toml"
    file.write_text("")
    for amount in ("24GiB", "12.5%"):
        monkeypatch.setenv("MURMUR_ENGINE__MEMORY", amount)
        assert load_engine(file).memory == amount


def test_settings_import_no_torch() -> None:
    """Every command reads them."""
    code = "import sys; import node.contributor.settings, node.validator.settings, node.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_vllm_is_asked_for_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured and drawn there hangs on places inside it, which another version may have moved."""
    settings = EngineSettings(name="vllm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        make_engine(settings, "float32")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("node.engine.vllm_engine.distributions", lambda name: [SimpleNamespace(version="0.31.0+cpu")])
    with pytest.raises(ConfigError, match=r"written for vLLM 0\.32\.0, and 0\.31\.0 is installed"):
        make_engine(settings, "float32")
    monkeypatch.setattr("node.engine.vllm_engine.distributions", lambda name: [SimpleNamespace(version="0.32.0+cpu")])
    make_engine(settings, "float32")
