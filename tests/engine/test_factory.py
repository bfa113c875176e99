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
from swarm.tiny_run import TinyRun

from node.engine import Adjustable, EngineSettings, device, factory, make_engine, vllm_build
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


def test_apples_gpu_is_told_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(PreflightError, match=r"engine\.device is mps, and torch sees no GPU of Apple's"):
        make_engine(EngineSettings(device="mps"), "float32")


def test_threads_are_the_cores_that_nobody_uses_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.resources.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for load, expected in ((0.2, 8), (3.4, 5), (7.9, 1), (40.0, 1)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert EngineSettings().thread_count == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert EngineSettings().thread_count == 3
    assert EngineSettings(threads=2).thread_count == 2


@pytest.mark.parametrize(
    "wrong", [{"threads": 0}, {"threads": "many"}, {"device": "mps:0"}, {"device": "gpu"}, {"device": "cuda:x"}, {"memory": "12"}, {"memory": "0%"}, {"memory": "120%"}, {"memory": "4GB"}]
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
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
    monkeypatch.setattr("node.engine.vllm_build.distributions", lambda name: [SimpleNamespace(version="0.31.0+cpu")])
    with pytest.raises(ConfigError, match=r"written for vLLM 0\.32\.0, and 0\.31\.0 is installed"):
        make_engine(settings, "float32")
    monkeypatch.setattr("node.engine.vllm_build.distributions", lambda name: [SimpleNamespace(version="0.32.0+cpu")])
    make_engine(settings.model_copy(update={"device": "cpu"}), "float32")


def test_a_gpu_that_torch_cannot_use_is_not_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node on such a machine would compute on its CPU, and nobody would know why."""
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n")
    monkeypatch.setattr(device, "_DRIVER", driver)
    monkeypatch.setattr(torch.version, "cuda", None)
    device._warn_of_an_idle_gpu.cache_clear()
    assert device.named("auto").type == "cpu"
    assert "580.95.05 is loaded: the CPU computes; run scripts/setup" in caplog.text
    with pytest.raises(PreflightError, match=r"580\.95\.05 is loaded") as refused:
        device.named("cuda")
    assert refused.value.hint == device.WITH_CUDA
    device._warn_of_an_idle_gpu.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an NVIDIA GPU")
def test_no_build_of_vllm_falls_back_to_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(
        "node.engine.vllm_build.distributions",
        lambda name: [SimpleNamespace(version="0.32.0")] if name == "vllm" else [],
    )
    with pytest.raises(
        ConfigError, match=r"the CPU here, and the vLLM that is installed computes on NVIDIA GPUs alone \(torch"
    ):
        make_engine(EngineSettings(name="vllm"), "float32")
    with pytest.raises(PreflightError, match=r"torch sees 0 NVIDIA GPUs: torch 2\S* is built without CUDA"):
        make_engine(EngineSettings(name="vllm", device="cuda"), "float32")


def test_vllm_is_not_asked_for_apples_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("node.engine.vllm_build.distributions", lambda name: [SimpleNamespace(version="0.32.0+cpu")])
    monkeypatch.setattr(device, "named", lambda setting: torch.device("mps"))
    with pytest.raises(ConfigError, match="computes on a CPU or on NVIDIA GPUs"):
        make_engine(EngineSettings(name="vllm", device="mps"), "float32")


def test_the_drivers_state_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr(device, "_DRIVER", file)
    assert device.driver_state() == f"no NVIDIA driver is loaded ({file} is not there)"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65  Sun Jul 20\nGCC version:  12\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.driver_state().endswith("580.65  Sun Jul 20, CUDA_VISIBLE_DEVICES is ''")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an NVIDIA GPU")
def test_batch_invariance_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = EngineSettings(name="another", batch_invariant=True)
    with pytest.raises(ConfigError, match="the engine 'another' has none"):
        make_engine(asked, "float32")
    on = torch.device("cuda", 0)
    with pytest.raises(PreflightError, match=r"capability 8\.0 or above, and the engine computes on the CPU"):
        vllm_build.require_batch_invariance(torch.device("cpu"))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (7, 5))
    with pytest.raises(PreflightError, match=r"8\.0 or above, and Tesla T4 has 7\.5"):
        vllm_build.require_batch_invariance(on)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    vllm_build.require_batch_invariance(on)


def test_attention_is_computed_as_the_settings_say_and_only_where_it_can_be_chosen(tiny_run: TinyRun) -> None:
    found = set()
    for attention, expected in (("auto", "sdpa"), ("sdpa", "sdpa"), ("eager", "eager")):
        engine = make_engine(EngineSettings(attention=attention), "float32")
        engine.load(tiny_run.model)
        assert engine._model.config._attn_implementation == f"murmuration_{expected}"
        found.add(engine.prefill([([1, 2, 3, 4, 5], [6, 7, 8] * 9)])[0].numpy().tobytes())
    assert len(found) == 2
    with pytest.raises(ConfigError, match="'vllm' has its own attention"):
        make_engine(EngineSettings(name="vllm", attention="eager"), "float32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an NVIDIA GPU")
def test_a_model_is_split_over_gpus_that_are_there_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the engine 'torch' computes on one device"):
        make_engine(EngineSettings(tensor_parallel=2), "float32")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("node.engine.vllm_build.distributions", lambda name: [SimpleNamespace(version="0.32.0+cpu")])
    with pytest.raises(PreflightError, match="tensor_parallel is 2, from cpu on, and torch sees 0 NVIDIA GPUs"):
        make_engine(EngineSettings(name="vllm", tensor_parallel=2), "float32")


def test_a_run_asks_for_batch_invariance_and_older_specs_keep_their_digests(tiny_run: TinyRun) -> None:
    spec = tiny_run.spec
    asking = spec.model_copy(update={"model": spec.model.model_copy(update={"batch_invariant": True})})
    assert b"batch_invariant" not in spec.canonical()
    assert b'"batch_invariant":true' in asking.canonical()
    assert EngineSettings().of_run(spec.model) == EngineSettings()
    with pytest.raises(ConfigError, match=r"by the run or by engine\.batch_invariant"):
        make_engine(EngineSettings(name="another").of_run(asking.model), "float32")
