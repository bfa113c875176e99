"""Run specs, the task set behind them, and assignment by arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from swarm.tiny_run import TinyRun, run_tables, without_sums

from protocol import calibration, runspec, seeds
from protocol.environments import assignment, taskfile
from protocol.environments.problems import head_digest
from protocol.errors import ConfigError, HashMismatch, Malformed, VersionMismatch
from protocol.runspec import RunSpec
from protocol.settings import read_toml, write_toml
from protocol.shell import runfile
from tests.protocol.test_probe import a_probe
from tests.tasks_in_process import score, task_set

_drawn: dict[str, Any] = {}


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same environments again are not drawn from a second time."""
    draw = runfile.environments

    def environments(file: Path) -> Any:
        table = str(read_toml(file)["spec"]["environments"])
        if table not in _drawn:
            _drawn[table] = draw(file)
        return _drawn[table]

    monkeypatch.setattr(runfile, "environments", environments)


def test_the_digest_names_the_spec(tiny_run: TinyRun) -> None:
    spec = tiny_run.spec
    assert runspec.from_bytes(spec.canonical(), spec.digest) == spec
    with pytest.raises(HashMismatch):
        runspec.from_bytes(spec.canonical(), b"\x00" * 32)


def test_every_field_moves_the_digest(tiny_run: TinyRun) -> None:
    spec = tiny_run.spec
    changed = [
        spec.model_copy(update={"max_lag": 3}),
        spec.model_copy(update={"sampling": spec.sampling.model_copy(update={"temperature": "1.0"})}),
        spec.model_copy(update={"environments": spec.environments[::-1]}),
    ]
    assert len({spec.digest, *(c.digest for c in changed)}) == 4


def test_what_is_off_does_not_move_the_digest(tiny_run: TinyRun) -> None:
    """Specs from before these fields keep their digest; what is switched on is part of it, and both are read back."""
    spec = tiny_run.spec
    without = spec.verification.sampling.model_copy(update={"chunk_mean_margin": None})
    spec = spec.model_copy(update={"verification": spec.verification.model_copy(update={"sampling": without})})
    written = spec.canonical()
    for name in (b"top_k", b"top_p", b"chunk_mean_margin"):
        assert name not in written
    off = spec.sampling.model_validate(spec.sampling.model_dump() | {"top_k": 0, "top_p": "1.00"})
    assert spec.model_copy(update={"sampling": off}).digest == spec.digest
    limits = spec.verification.sampling.model_validate(
        spec.verification.sampling.model_dump() | {"chunk_mean_margin": {"soft": "0.01", "hard": "0.04"}}
    )
    on = [
        spec.model_copy(update={"sampling": spec.sampling.model_copy(update={"top_k": 20})}),
        spec.model_copy(update={"sampling": spec.sampling.model_copy(update={"top_p": "0.95"})}),
        spec.model_copy(update={"verification": spec.verification.model_copy(update={"sampling": limits})}),
    ]
    assert len({spec.digest, *(s.digest for s in on)}) == 4
    for each in (spec, *on):
        assert runspec.from_bytes(each.canonical(), each.digest) == each
    assert on[0].sampling.distribution == {"temperature": 1.0, "top_k": 20, "top_p": 1.0}


def test_noise_is_no_measure_of_draws_that_are_cut(tiny_run: TinyRun) -> None:
    noise = runspec.Limit(soft="0.003", hard="0.006")
    table = tiny_run.spec.model_dump()
    table["verification"]["noise"] = noise.model_dump()
    with_noise = RunSpec.model_validate(table)
    assert runspec.from_bytes(with_noise.canonical(), with_noise.digest).verification.noise == noise
    assert b'"noise"' not in tiny_run.spec.canonical()
    table["sampling"]["top_k"] = 20
    with pytest.raises(ValueError, match="at the edge of a cut"):
        RunSpec.model_validate(table)


def test_sums_that_decide_take_noise(tiny_run: TinyRun) -> None:
    table = tiny_run.spec.model_dump(mode="json")
    table["verification"] |= {"noise": {"soft": "0.0005", "hard": "0.05"}, "history": {}}
    assert RunSpec.model_validate(table).verification.history == runspec.HistoryBudget()
    table["verification"]["noise"]["hard"] = "0.051"
    with pytest.raises(ValueError, match=r"at most 0\.05 of the range of logits"):
        RunSpec.model_validate(table)
    del table["verification"]["noise"]
    with pytest.raises(ValueError, match="takes a calibration with noise"):
        RunSpec.model_validate(table)


@pytest.mark.usefixtures("drawn_once")
def test_a_calibrations_noise_becomes_the_specs_where_nothing_is_cut(tmp_path: Path, tiny_run: TinyRun) -> None:
    content = json.loads(files("protocol").joinpath("calibrations/tiny-qwen3-float32-cpu.json").read_text())
    content["limits"]["noise"] = {"soft": "0.003", "hard": "0.006"}
    in_logits = json.loads(json.dumps(content))
    for pair in in_logits["noise"]["pairs"]:
        del pair["range"]
    assert calibration.Calibration(content).noise == content["limits"]["noise"]
    assert calibration.Calibration(in_logits).noise is None, "logits are not read as shares of their range"
    (tmp_path / "mine.json").write_text(json.dumps(content))
    found = []
    for cut in ({}, {"top_p": "0.9"}):
        tables = run_tables()
        tables["spec"]["verification"]["calibration"] = "mine.json"
        tables["spec"]["sampling"] |= cut
        write_toml(tmp_path / "run.toml", tables, "x")
        found.append(runfile.complete(tmp_path / "run.toml", tiny_run.model).verification.noise)
    assert found == [runspec.Limit(soft="0.003", hard="0.006"), None]


def test_greedy_sampling_has_no_cut(tiny_run: TinyRun) -> None:
    with pytest.raises(ValueError, match="greedy"):
        runspec.SamplingSpec.model_validate(tiny_run.spec.sampling.model_dump() | {"temperature": "0.0", "top_k": 5})


def test_a_spec_of_the_right_hash_and_wrong_content_is_refused() -> None:
    from protocol import canonical

    value = {"name": "x"}
    with pytest.raises(Malformed, match="wrong"):
        runspec.from_bytes(canonical.encode(value), canonical.digest(value))


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("sampling", "temperature"), 1.0, "sampling.temperature"),
        (("sampling", "temperature"), "-1", "not negative"),
        (("sampling", "temperature"), "101", "at most 100"),
        (("sampling", "top_k"), -1, "sampling.top_k"),
        (("sampling", "top_p"), 0.9, "sampling.top_p"),
        (("sampling", "top_p"), "0", "between"),
        (("sampling", "top_p"), "1.5", "between"),
        (("sampling", "group_size"), 1, "sampling.group_size"),
        (("sampling", "surprise"), 1, "unknown setting 'spec.sampling.surprise'$"),
        (("sampling", "grup_size"), 1, "'spec.sampling.grup_size', did you mean 'group_size'"),
        (("environments", 0, "datasett"), 1, "'spec.environments.0.datasett', did you mean 'dataset'"),
        (("verification", "sampling"), {"sof": 1}, "unknown setting 'spec.verification.sampling.sof'"),
        (("sampling", "prompt_template"), "no place for it", r"^  spec.sampling: prompt_template must hold"),
        (("environments",), {"dataset": "simple_equations"}, "no list of tables"),
        (("environments",), ["simple_equations"], "no list of tables"),
        (("model",), "qwen", "spec.model is 'qwen' instead of a table"),
        (("verification",), 1, "spec.verification is 1 instead of a table"),
        (("verification", "calibration"), {}, "calibration is not set"),
        (("max_lag",), -1, "max_lag"),
        (("reward",), {"budgets": {"0": [10]}}, "spec: reward.budgets leaves out hardware class 1"),
        (("reward",), {"budgets": {"1": [10]}}, "leaves out hardware class 0"),
        (("reward",), {"budgets": {"00": [10], "1": [10]}}, "spec.reward.budgets.00"),
        (("reward",), {"budgets": {"0": [10], "1": [10], "3": [9], "5": [9]}}, "of hardware classes 3, 5, .* not list"),
        (("reward",), {"budgets": {"0": [10], "1": []}}, "spec.reward.budgets.1"),
        (("reward",), {"budgets": {"0": [10], "1": [5, 0]}}, "spec.reward.budgets.1.1"),
        (("reward",), {"budgets": {"0": [10], "1": [10, 90000]}}, "reward.budgets announces 90000 tokens, and sampl"),
        (("reward",), {"length": "exacty"}, "spec.reward.length"),
        (("reward",), {"alpha": "1e-999999999"}, "spec.reward.alpha: expected at most 100, with at most 12 decimals"),
        (("reward",), {"alpha": "101"}, "spec.reward.alpha: expected at most 100"),
        (
            ("environments", 1, "reward"),
            {"budgets": {"0": [10]}},
            "spec: environments.1.reward.budgets leaves out hard",
        ),
        (("environments", 1, "reward"), {"alfa": "1"}, "spec.environments.1.reward.alfa', did you mean 'alpha'"),
        (("environments", 1, "reward"), {"alpha": 1}, "spec.environments.1.reward.alpha"),
        (("verification", "uncalibrated"), [0], "hardware class 0 is both"),
        (("verification", "calibrated"), [0, 3], "'tiny-qwen3-float32-cpu' measured hardware class 0, not 3"),
        (("hardware",), [{"number": 0}], "spec: hardware leaves out hardware class 1"),
        (("hardware",), [{"number": 0}, {"number": 1}, {"number": 0}], "hardware describes class 0 twice"),
        (("hardware",), [{"number": 0}, {"number": 1}, {"number": 4}], "hardware class 4, which verification does not"),
        (("hardware",), [{"number": 0, "memory_gib": 24}, {"number": 1}], "spec.hardware.0.memory_gib"),
        (
            ("hardware",),
            [{"number": 0, "memory": "24"}, {"number": 1}],
            "hardware.0.memory', did you mean 'memory_gib'",
        ),
        (("name",), "No Spaces", "name"),
        (
            ("verification", "noise"),
            {"soft": "0", "hard": "0.1"},
            "spec.verification.noise: .*above 0, and at most 0.05",
        ),
        (
            ("verification", "noise"),
            {"soft": "0.1", "hard": "0.34"},
            "spec.verification.noise: .*above 0, and at most 0.05",
        ),
        (("verification", "noise"), {"soft": "0.1", "hard": "0.01"}, "hard must not be below soft"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    tmp_path: Path, tiny_run: TinyRun, drawn_once: None, path: tuple[str | int, ...], value: Any, complaint: str
) -> None:
    tables = run_tables()
    place: Any = tables["spec"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    write_toml(tmp_path / "run.toml", tables, "x")
    with pytest.raises(ConfigError, match=f"(?m){complaint}"):
        runfile.complete(tmp_path / "run.toml", tiny_run.model)


@pytest.mark.usefixtures("drawn_once")
def test_alpha_without_budgets_is_told_of(tmp_path: Path, tiny_run: TinyRun, caplog: pytest.LogCaptureFixture) -> None:
    tables = run_tables()
    tables["spec"]["reward"] = {"alpha": "0.0003"}
    tables["spec"]["environments"][0]["reward"] = {"alpha": "0.1"}
    write_toml(tmp_path / "run.toml", tables, "x")
    runfile.complete(tmp_path / "run.toml", tiny_run.model)
    name = tables["spec"]["environments"][0]["dataset"]
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "spec.reward has alpha = 0.0003 and no budgets", f"the reward of {name} has alpha = 0.1 and no budgets",
    ]  # fmt: skip


@pytest.mark.usefixtures("drawn_once")
def test_a_reference_probe_is_pinned_by_its_bytes(
    tmp_path: Path, tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MURMUR_TASKS", str(tmp_path / "tasks"))
    file, tables = tmp_path / "run.toml", run_tables()
    tables["spec"]["verification"] |= {"probe": "mine.json"}
    write_toml(file, tables, "x")
    with pytest.raises(ConfigError, match=r"mine\.json cannot be used: .*No such file"):
        runfile.complete(file, tiny_run.model)
    assert without_sums(runfile.complete(file, tiny_run.model, probe=False)) == tiny_run.spec
    for config, dtype in (("0" * 64, "float32"), (tiny_run.spec.model.config, "bfloat16")):
        (tmp_path / "mine.json").write_bytes(
            a_probe().model_copy(update={"config": config, "compute_dtype": dtype}).encode()
        )
        with pytest.raises(ConfigError, match="of another model or compute dtype"):
            runfile.complete(file, tiny_run.model)
    data = a_probe().model_copy(update={"config": tiny_run.spec.model.config}).encode()
    (tmp_path / "mine.json").write_bytes(data)
    spec = runfile.complete(file, tiny_run.model)
    pinned = spec.verification.probe
    assert pinned is not None
    assert taskfile.path_of(pinned).read_bytes() == data
    assert (spec.pinned_files, spec.versions_pinned) == ([pinned], {0})
    assert spec.digest != tiny_run.spec.digest
    assert (tiny_run.spec.pinned_files, tiny_run.spec.versions_pinned) == ([], frozenset())


def test_a_created_spec_is_never_changed_under_its_run(tmp_path: Path, tiny_run: TinyRun) -> None:
    file = tmp_path / "run.toml"
    runfile.write_spec(file, tiny_run.spec)
    assert runfile.read_spec(file) == tiny_run.spec
    runfile.write_spec(file, tiny_run.spec)
    with pytest.raises(ConfigError, match="another spec"):
        runfile.write_spec(file, tiny_run.spec.model_copy(update={"max_lag": 1}))


# ---- tasks ---------------------------------------------------------------------------------------------------------------


def test_all_parties_draw_the_same_problems(tiny_run: TinyRun) -> None:
    tasks = task_set(tiny_run.spec.environments)
    tasks.require_same_problems()
    again = task_set(tiny_run.spec.environments)
    for index in (0, 5, 1_000_000, 1_999_999):
        assert tasks.problem(index) == again.problem(index)
    assert tasks.problem(999_999).environment == 0
    assert tasks.problem(1_000_000).environment == 1


def test_other_problems_than_the_specs_are_noticed(tiny_run: TinyRun) -> None:
    other = tiny_run.spec.environments[0].model_copy(update={"head": "0" * 64})
    with pytest.raises(VersionMismatch, match="other problems"):
        task_set([other]).require_same_problems()


def test_held_out_problems_are_distinct_and_never_assigned(tiny_run: TinyRun) -> None:
    tasks = task_set(tiny_run.spec.environments)
    prompts = [problem.prompt for problem in tasks.held_out]
    assert len(prompts) == len(set(prompts)) == 40
    asked = {
        group.problem.prompt
        for sequence in range(200)
        for group in assignment.assign(tiny_run.spec, tasks, seeds.derive(b"\x01" * 32, "x", sequence), 0)
    }
    assert len(asked) > 300
    assert not asked & set(prompts)


def test_a_task_set_that_is_all_held_out_is_an_error_not_an_endless_search(tiny_run: TinyRun) -> None:
    tiny = tiny_run.spec.environments[0].model_copy(
        update={"size": 1, "held_out_seed": 1_000_000_000, "held_out_size": 1}
    )
    spec = tiny_run.spec.model_copy(update={"environments": [tiny]})
    with pytest.raises(ConfigError, match="held out"):
        assignment.assign(spec, task_set([tiny]), b"\x00" * 32, 0)


def test_another_version_of_the_package_is_refused(tiny_run: TinyRun) -> None:
    with pytest.raises(VersionMismatch):
        head_digest(tiny_run.spec.environments[0].model_copy(update={"version": "0.1.24"}))


def test_an_answer_is_never_evaluated(tiny_run: TinyRun, tmp_path: Path) -> None:
    tasks = task_set(tiny_run.spec.environments)
    spiral = tasks.problem(1_000_000)
    mark = tmp_path / "mark"

    def scored(answer: str) -> float:
        return score(tiny_run.spec.environments, spiral.index, answer)

    assert scored(f"[open({str(mark)!r}, 'w')]") == 0
    assert not mark.exists()
    assert scored(str(spiral.answer)) == 1
    assert scored(str([int(x) for x in str(spiral.answer).split()])) == pytest.approx(0.1, abs=1e-6)


# ---- assignment ----------------------------------------------------------------------------------------------------------


def test_assignment_follows_from_the_seed_alone(tiny_run: TinyRun) -> None:
    tasks, seed = task_set(tiny_run.spec.environments), b"\x05" * 32
    first = assignment.assign(tiny_run.spec, tasks, seed, 0)
    assert first == assignment.assign(tiny_run.spec, tasks, seed, 0)
    assert first != assignment.assign(tiny_run.spec, tasks, b"\x06" * 32, 0)
    assert [len(group.keys) for group in first] == [4, 4]
    assert len({key for group in first for key in group.keys}) == 8


def test_nothing_that_names_a_submission_can_be_exchanged() -> None:
    given = {
        "chain_id": 1,
        "contract": b"\x01" * 20,
        "run": 1,
        "beacon": b"\x02" * 32,
        "node": b"\x03" * 20,
        "step": 4,
        "sequence": 5,
    }
    changed = [
        {**given, key: value}
        for key, value in {"chain_id": 2, "contract": b"\x09" * 20, "run": 2, "beacon": b"\x09" * 32, "node": b"\x09" * 20, "step": 5, "sequence": 6}.items()
    ]  # fmt: skip
    assert len({seeds.submission_seed(**g) for g in [given, *changed]}) == 8


@pytest.mark.usefixtures("drawn_once")
def test_a_spec_names_the_hardware_classes_its_calibration_covers(tmp_path: Path, tiny_run: TinyRun) -> None:
    shipped = calibration.load("tiny-qwen3-float32-cpu", tmp_path).content
    (tmp_path / "mine.json").write_text(json.dumps(shipped | {"hardware": [2, 7]}))
    tables = run_tables()
    for name, covered in (("tiny-qwen3-float32-cpu", [0]), ("mine.json", [2, 7])):
        tables["spec"]["verification"]["calibration"] = name
        write_toml(tmp_path / "run.toml", tables, "")
        assert runfile.complete(tmp_path / "run.toml", tiny_run.model).verification.calibrated == covered
    tables["spec"]["verification"]["calibrated"] = [7]
    write_toml(tmp_path / "run.toml", tables, "")
    assert runfile.complete(tmp_path / "run.toml", tiny_run.model).verification.calibrated == [7], (
        "fewer than it covers"
    )


@pytest.mark.usefixtures("drawn_once")
def test_a_calibration_of_another_dtype_is_refused_and_one_of_another_model_warned_of(
    tmp_path: Path, tiny_run: TinyRun, caplog: pytest.LogCaptureFixture
) -> None:
    file, mine = tmp_path / "run.toml", tmp_path / "mine.json"
    shipped = calibration.load("tiny-qwen3-float32-cpu", tmp_path).content
    tables = run_tables()
    tables["spec"]["verification"]["calibration"] = "mine.json"
    write_toml(file, tables, "")
    mine.write_text(json.dumps(shipped | {"compute_dtype": "bfloat16"}))
    with pytest.raises(
        ConfigError, match=r"computes in float32, and the calibration 'mine.json' was measured in bfl"
    ) as caught:
        runfile.complete(file, tiny_run.model)
    assert "calibrate @run.toml" in caught.value.hint
    for config, warned in ((tiny_run.spec.model.config, False), ("ab" * 32, True)):
        caplog.clear()
        models = [{"name": "a policy", "config": config, "weights": {"model.safetensors": "00" * 32}}]
        mine.write_text(json.dumps(shipped | {"models": models}))
        spec = runfile.complete(file, tiny_run.model)
        assert ("measured a policy, and the run's model is none" in caplog.text) == warned
        assert spec.verification.calibration == calibration.load("mine.json", tmp_path).digest
    mine.write_text(json.dumps(shipped | {"models": [{"name": "a policy"}]}))
    with pytest.raises(ConfigError, match=r"is no calibration: .* cannot be read as one"):
        runfile.complete(file, tiny_run.model)
    mine.unlink()
    with pytest.raises(ConfigError, match=r"'mine.json' is no calibration: there is no file .*/mine\.json") as caught:
        runfile.complete(file, tiny_run.model)
    assert "murmur validator calibrate" in caught.value.hint
    assert "Errno" not in str(caught.value)


def test_length_budgets_are_announced_and_charged_by_hardware_class(tiny_run: TinyRun) -> None:
    tasks, spec = task_set(tiny_run.spec.environments), tiny_run.with_budgets().spec
    for hardware, budgets in ((0, {10, 20}), (1, {15, 30})):
        drawn = [assignment.assign(spec, tasks, seeds.derive(b"\x00" * 32, "i", i), hardware) for i in range(50)]
        assert {group.budget for groups in drawn for group in groups} == budgets
    assert {g.budget for g in assignment.assign(tiny_run.spec, tasks, b"\x00" * 32, 0)} == {0}
    problem = tasks.problem(0)
    prompt = tiny_run.tokenizer.prompt(tiny_run.spec, problem, 20)
    assert prompt != tiny_run.tokenizer.prompt(tiny_run.spec, problem, 0)


def test_groups_are_values(tiny_run: TinyRun) -> None:
    group = assignment.assign(tiny_run.spec, task_set(tiny_run.spec.environments), b"\x00" * 32, 0)[0]
    assert replace(group) == group
