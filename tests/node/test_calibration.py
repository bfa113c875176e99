"""Calibration: limits follow from the tail of honest work, cheats only show what the limits find."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from swarm.tiny_run import TinyRun

from node.engine import Engine, EngineSettings, make_engine
from node.engine.degrade import add_noise
from node.judging.calibration import Matrix, calibration, measure, report, tail
from node.judging.calibration.fit import FLOORS, HARD_BUDGET, MARGIN, limits
from node.judging.calibration.measure import PER_CHUNK, PER_SEQUENCE, CheckedCompletion, Measurements, Variant
from node.judging.calibration.noise import NoiseMeasurements
from node.validator.commands.inspection import calibrate
from protocol import runspec
from protocol.calibration import load
from protocol.errors import ConfigError
from protocol.settings import read_toml, toml
from tests.node.near_ties import completion

RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def matrix(tiny_run: TinyRun) -> Matrix:
    variants = (Variant("sdpa", 1, 4), Variant("eager", 1, 1))
    return Matrix([tiny_run.model], "float32", tiny_run.spec.sampling, 2, 3, variants=variants, draws=Random(7))


@pytest.fixture(scope="module")
def measured(matrix: Matrix, tiny_run: TinyRun) -> Measurements:
    return measure(matrix, tiny_run.context.tasks)


def made_up(values: np.ndarray) -> Measurements:
    """Honest work whose every quantity took these values, one per completion."""
    return Measurements([CheckedCompletion({n: [float(v)] for n in (*PER_CHUNK, *PER_SEQUENCE)}, 32) for v in values])


def test_all_is_computed_by_the_engine_of_the_settings(
    matrix: Matrix, tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of this role, for the run's work and for the cheats, of which one computes in another type."""
    asked: list[tuple[EngineSettings, str]] = []

    def make(settings: EngineSettings, dtype: str) -> Engine:
        asked.append((settings, dtype))
        return make_engine(settings, dtype)

    monkeypatch.setitem(measure.__globals__, "make_engine", make)
    engine = EngineSettings(device="cpu", dtype="float32", memory="1GiB")
    spec = matrix.sampling.model_copy(update={"max_new_tokens": 2})
    found = measure(replace(matrix, sampling=spec, problems=1, samples=1, engines=[engine]), tiny_run.context.tasks)
    assert {(settings.device, settings.memory) for settings, _ in asked} == {("cpu", "1GiB")}
    assert {(settings.dtype, dtype) for settings, dtype in asked} == {("float32", "float32"), ("auto", "bfloat16")}
    assert [name.rpartition(",")[0] for name in found.devices] == [f"{platform.machine()} CPU"]


# ---- tails ---------------------------------------------------------------------------------------------------------------


def test_the_tail_of_an_exponential_is_found_far_beyond_what_was_measured() -> None:
    found = tail.fit(RNG.exponential(3.0, 50_000))
    assert found is not None
    assert found.quantile(1e-12) == pytest.approx(3 * np.log(1e12), rel=0.15)


def test_a_heavier_tail_is_not_taken_for_an_exponential_one() -> None:
    found = tail.fit(RNG.pareto(4.0, 100_000))
    assert found is not None
    assert found.shape == pytest.approx(0.25, abs=0.12)
    assert found.quantile(1e-9) > 0.3 * (1e9**0.25 - 1)


def test_a_short_tail_is_never_given_an_end() -> None:
    found = tail.fit(RNG.uniform(0, 1, 50_000))
    assert found is not None
    assert found.shape == 0


@pytest.mark.parametrize(
    "values",
    [[], [0.0] * 10_000, [0.0] * 9_000 + [0.0078125] * 1_000, [0.0] * 9_990 + list(range(10)), list(range(100))],
    ids=["none", "zeros", "a step", "ten values", "too few"],
)
def test_what_has_no_tail_gets_none(values: list[float]) -> None:
    assert tail.fit(values) is None


# ---- limits --------------------------------------------------------------------------------------------------------------


def test_zeros_give_the_floors_and_say_so(matrix: Matrix) -> None:
    for name, of in limits(matrix, made_up(np.zeros(1000))).items():
        assert (of.soft, of.hard, of.source) == (FLOORS[name], MARGIN * FLOORS[name], "the floor")


def test_the_budget_is_that_of_a_whole_submission(matrix: Matrix) -> None:
    """All quantities, every completion, the worst variant: their chances together stay within it."""
    values = made_up(RNG.exponential(1.0, 5_000))
    found = limits(matrix, values)
    spec, variants = matrix.sampling, len(matrix.variants)
    sequences = spec.group_size * spec.groups_per_submission
    chance = 0.0
    for of in found.values():
        assert of.tail is not None
        assert of.hard_quantile is not None
        beyond = of.tail.share * np.exp(-(of.hard_quantile - of.tail.threshold) / of.tail.scale)
        chance += variants * sequences * beyond
    assert chance == pytest.approx(HARD_BUDGET, rel=1e-6)
    longer = replace(matrix, sampling=spec.model_copy(update={"groups_per_submission": 64}))
    assert limits(longer, values)["signs"].hard_quantile > found["signs"].hard_quantile


def test_checks_of_one_completion_count_once(matrix: Matrix) -> None:
    """A hundred variants that look at the same completions make no tail surer: of each, the worst of what they saw counts."""
    values = RNG.exponential(1.0, 500)
    once = made_up(values)
    often = Measurements([replace(c, number=i) for i, c in enumerate(once.honest) for _ in range(20)])
    for seen in often.honest[::20]:  # one of the twenty sees less
        seen.values["signs"][0] /= 2
    assert limits(matrix, often) == limits(matrix, once)
    assert often.distinct == once.distinct == 500


def test_the_report_says_what_counts_alone_support(matrix: Matrix, tmp_path: Path) -> None:
    few = made_up(np.zeros(1000))
    text = report.write(tmp_path / "report", calibration(matrix, few, [0]), matrix, few).read_text()
    # 0 of 1000 completions: at most 0.003 of them with 95 % confidence, and eight times as many submissions of eight.
    assert "at most 2.4 % of submissions" in text
    assert "2.4e+10 distinct completions" in text, "what the budget of 1e-9 would take"


def test_no_cheat_takes_part(matrix: Matrix, measured: Measurements) -> None:
    assert calibration(matrix, measured, [0]) == calibration(matrix, replace(measured, cheats={}), [0])


# ---- the whole -----------------------------------------------------------------------------------------------------------


def test_every_variant_checks_what_every_one_made(matrix: Matrix, measured: Measurements) -> None:
    assert len(measured.honest) == 2 * 2 * 6
    assert {"another seed", "temperature × 0.9", "int4", "computed in bfloat16"} <= set(measured.cheats)
    assert all(len(checked) == 6 for checked in measured.cheats.values())


def test_a_calibration_can_be_loaded_and_its_limits_are_a_specs(
    matrix: Matrix, measured: Measurements, tmp_path: Path, tiny_run: TinyRun
) -> None:
    content = calibration(matrix, measured, [3, 1])
    (tmp_path / "mine.json").write_text(json.dumps(content))
    found = load("mine.json", tmp_path)
    assert found.hardware == [1, 3]
    assert found.compute_dtype == matrix.dtype
    assert content["engines"] == ["torch"]
    (model,) = found.models
    assert (model.name, model.config) == (tiny_run.model.name, tiny_run.spec.model.config)
    weights = hashlib.sha256((tiny_run.model / "model.safetensors").read_bytes()).hexdigest()
    assert model.weights == {"model.safetensors": weights}
    assert runspec.ComputationLimits.model_validate(found.computation)
    assert runspec.SamplingLimits.model_validate(found.sampling)
    shipped = load("tiny-qwen3-float32-cpu", tmp_path)
    assert (found.computation, found.sampling) == (shipped.computation, shipped.sampling), "the floors, again"


def test_the_report_shows_what_finds_each_cheat(matrix: Matrix, measured: Measurements, tmp_path: Path) -> None:
    few = Measurements(measured.honest, {name: measured.cheats[name] for name in ("another seed", "int8")})
    content = calibration(matrix, few, [0])
    text = report.write(tmp_path / "report", content, matrix, few).read_text()
    rows = {line.split("|")[1].strip(): line.split("|") for line in text.splitlines() if line.startswith("| ")}
    assert set(few.cheats) <= set(rows)
    seed = next(line.split("|") for line in text.splitlines() if line.startswith("| another seed"))
    assert seed[6].strip() == "100 %", "found hard"
    assert float(seed[10]) > 1, "beyond the hard limit"
    assert "No tail could be fitted" in text
    for name in (*PER_CHUNK, *PER_SEQUENCE):
        assert (tmp_path / "report" / f"{name}.svg").read_text().startswith("<?xml")


def test_the_report_says_after_how_many_tokens_sums_find_each_cheat(
    matrix: Matrix, measured: Measurements, tmp_path: Path
) -> None:
    noise = NoiseMeasurements()
    for unit in range(50):
        scores = completion(RNG, 0.001, 200)
        noise.add(("torch sdpa", "torch eager", "a policy"), unit, scores, scores.logprobs)
    found = replace(measured, noise=noise)
    content = calibration(matrix, found, [0])
    (tmp_path / "mine.json").write_text(json.dumps(content))
    limit = load("mine.json", tmp_path).noise
    assert limit == content["limits"]["noise"]
    assert 1.5e-3 < float(limit["soft"]) < float(limit["hard"]) / 2
    (pair,) = content["noise"]["pairs"]
    assert (pair["made_by"], pair["checked_by"], pair["model"], pair["completions"], pair["tokens"]) == (
        "torch sdpa",
        "torch eager",
        "a policy",
        50,
        10_000,
    )
    lines = report.write(tmp_path / "report", content, matrix, found).read_text().splitlines()
    part = lines[lines.index("## Noise") : lines.index("## Cheats")]
    seed = next(line.split("|") for line in part if line.startswith("| another seed |"))
    assert int(seed[3]) < int(seed[4]) < 1_000
    sides = {line.split("|")[1].strip(): line.split("|") for line in part if line.startswith("| ") and " of " in line}
    assert {"int8", "int4", "fp8", "computed in bfloat16"} <= set(sides)


def test_work_by_other_weights_sides_with_them_and_honest_work_does_not(
    matrix: Matrix, tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, which hardly rounds: the one always, the other never."""
    monkeypatch.setitem(measure.__globals__, "DEGRADATIONS", {"half noise": partial(add_noise, relative=0.5)})
    found = measure(replace(matrix, draws=Random(1)), tiny_run.context.tasks).sides["half noise"]
    assert found.cheated.total == found.cheated.count > 0
    assert (found.honest.total, found.honest.count > 0) == (0, True)


def test_a_file_without_tasks_is_refused_in_words(tiny_run: TinyRun, tmp_path: Path) -> None:
    tables = read_toml(tiny_run.folder / "run.toml")
    tables["spec"]["environments"] = []
    (tmp_path / "run.toml").write_text(toml(tables, ""))
    out = tmp_path / "calibration.json"
    with pytest.raises(ConfigError, match="no tasks to calibrate on"):
        calibrate(f"@{tmp_path / 'run.toml'}", [tiny_run.model], out, home=tmp_path / "home", prompts=1, samples=1)
    assert not out.exists()
