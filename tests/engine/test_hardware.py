"""What a device can do is measured by its own time, and whether a model fits follows from its config.json alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from swarm.tiny_run import TinyRun

from node.engine import EngineSettings, Prompt, device, footprint, hardware, memory
from node.engine.fit import fit, of_budget
from node.engine.hardware import Measurement
from node.engine.memory import Footprint, MemoryBudget
from node.engine.weights import meta_model, read_model, stored_tensors
from tests.engine import models

CPU, META = torch.device("cpu"), torch.device("meta")


def test_this_machine_is_measured() -> None:
    found = hardware.measure_of(EngineSettings(device="cpu"))
    assert 0 < found.free <= found.memory == device.memory_bytes(CPU)
    assert set(found.matrix) == {"bfloat16", "float32"}
    assert all(rate > 1e8 for rate in found.matrix.values())
    assert found.bandwidth > 1e7
    assert "CPU" in found.device


def test_a_round_takes_the_cpu_time_of_its_thread_and_not_the_time_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program on the same cores takes time and no CPU time of ours."""
    spent = iter([10.0, 12.0])
    monkeypatch.setattr(hardware.time, "thread_time", lambda: next(spent))
    assert hardware._seconds(lambda: None, CPU) == 2.0


def test_one_core_counts_for_all_that_may_compute_and_the_engine_keeps_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How many cores are busy at the start moves no class: only the memory's rate is that of one core."""
    monkeypatch.setattr(hardware, "_matrix_rate", lambda *_: float(torch.get_num_threads()))
    monkeypatch.setattr(hardware, "_bandwidth", lambda *_: 7.0)
    monkeypatch.setattr(hardware.resources, "cores", lambda: 6)
    monkeypatch.setattr(hardware.resources, "idle_cores", lambda: 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for threads, cores in (("auto", 6), (4, 4), (64, 6)):
            found = hardware.measure_of(EngineSettings(device="cpu", threads=threads))
            assert (found.matrix, found.bandwidth) == ({"bfloat16": cores, "float32": cores}, 7.0)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_best_of_its_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([9.0, 3.0, 2.0, 5.0, 2.5, 4.0])
    monkeypatch.setattr(hardware, "_seconds", lambda *_: next(took))
    assert hardware._best_of(lambda: None, CPU) == 2.0


def test_the_better_rate_of_two_measurements_stands() -> None:
    older = Measurement("a", 8, 4, {"float32": 3.0, "bfloat16": 1.0}, 5.0)
    newer = Measurement("a", 8, 6, {"float32": 2.0, "bfloat16": 2.0}, 7.0)
    assert older.best(newer) == Measurement("a", 8, 6, {"float32": 3.0, "bfloat16": 2.0}, 7.0)


def test_what_fits_is_what_the_engine_computes(tiny_run: TinyRun) -> None:
    """config.json tells the same as the model that is loaded, and the rows are those that the engine plans."""
    held = footprint.of(tiny_run.engine._model, CPU)
    told = fit(tiny_run.model, "float32", 32, 64, EngineSettings(device="cpu"))
    assert (told.weights, told.row) == (held.weights, held.decoding(96))
    assert told.rows == memory.rows_most("cpu"), "this machine has room for more"
    little = fit(tiny_run.model, "float32", 32, 64, EngineSettings(device="cpu", memory="24MiB"))
    prompts = [Prompt([0] * 32, tuple(range(1000)))]
    plan = MemoryBudget(24 << 20, held).plan(prompts, 64, rows=memory.rows_most("cpu"), prefill_tokens=1 << 14)
    assert 1 < little.rows == plan.rows < told.rows


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "deepseek_v3"])
def test_a_mixture_of_experts_takes_twice_as_much_in_float32(name: str, tmp_path: Path) -> None:
    folder = models.make(models.RIGHT[name], tmp_path / name)
    read, _ = read_model(folder, torch.float32)  # as transformers writes it: expert by expert
    wide, narrow = (footprint.of(meta_model(folder, dtype), META) for dtype in (torch.float32, torch.bfloat16))
    kept = sum(
        tensor.nbytes for key, tensor in stored_tensors(read).items() if "correction_bias" in key
    )  # wide in both
    assert (wide.weights, wide.cache_token) == (2 * narrow.weights - kept, 2 * narrow.cache_token)
    assert wide == footprint.of(read, CPU)
    assert fit(folder, "float32", 16, 16, EngineSettings(device="cpu", memory="1GiB")).rows > 0


OF = Footprint(weights=100, cache_token=1, row=4, prefill_token=2, pair=0)
"""A row of 96 tokens takes 100 to generate and 192 to check, a prompt of 20 of them 60 to prefill."""


@pytest.mark.parametrize(
    ("allowed", "rows"),
    [(1160, 10), (10_000, 16), (292, 1), (291, 0), (100, 0), (50, 0)],
    ids=["many", "capped", "one", "unchecked", "none", "weights"],
)
def test_a_model_fits_where_one_completion_is_generated_and_checked(allowed: int, rows: int) -> None:
    assert of_budget(MemoryBudget(allowed, OF), 20, 76, 16).rows == rows
