"""The offline filter keeps what is solved sometimes, says so in a pinned file, and goes on where it was stopped."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from swarm.tiny_run import TinyRun
from typer.testing import CliRunner

from protocol import runspec
from protocol.environments import TaskSet, selection, taskfile
from protocol.environments.importing import importer
from protocol.environments.importing.sieve import RateBand
from protocol.errors import IntegrityError, LockHeld, UsageError
from protocol.replies import Asked
from protocol.rollout import ToolResult
from protocol.runspec import RunSpec
from protocol.sandbox import EnvironmentSandbox
from protocol.settings import write_toml
from protocol.shell import runfile
from tests.tasks_in_process import task_set
from tests.trainer.conftest import Made
from trainer.commands import app
from trainer.evaluation import filter as filter_
from trainer.evaluation.filter import Band, OfflineFilter
from trainer.evaluation.journal import Journal, Tried

TRIED = 40


@pytest.fixture(scope="module")
def spec(made: Made) -> RunSpec:
    return runfile.complete(made.file, made.folder)


def filtering(made: Made, spec: RunSpec, samples: int = 4) -> OfflineFilter:
    return OfflineFilter(spec, made.folder, samples=samples, problems=TRIED)


@pytest.fixture(scope="module")
def everything(made: Made, spec: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Rates of all problems that were tried."""
    file = tmp_path_factory.mktemp("all") / "tasks.json"
    filtering(made, spec).run(file, Band(0, 1), lambda _: None)
    return rates_in(file)


def rates_in(file: Path) -> dict[int, float]:
    (kept,) = selection.read(file).environments
    return dict(zip(kept.indices, map(float, kept.rates), strict=True))


def test_what_lies_in_the_band_is_kept_with_its_rate(
    made: Made, spec: RunSpec, everything: dict[int, float], tmp_path: Path
) -> None:
    told: list[int] = []
    result = filtering(made, spec).run(tmp_path / "tasks.json", Band(0.25, 0.5), told.append)
    kept = rates_in(tmp_path / "tasks.json")
    assert kept == {index: rate for index, rate in everything.items() if 0.25 <= rate <= 0.5}
    assert 0 < len(kept) < len(everything)  # or this test would say little
    assert (result.tried, result.kept) == (TRIED, {"spiral_matrix": len(kept)})
    written = selection.read(tmp_path / "tasks.json")
    assert [one.environment for one in written.environments] == spec.environments
    assert [one.tried for one in written.environments] == [TRIED]
    assert written.sampling["samples"] == 4
    assert result.digest == hashlib.sha256((tmp_path / "tasks.json").read_bytes()).hexdigest()
    assert told[-1] == TRIED
    assert written.sampling["budgets"] == "6,12"
    assert result.length_error is not None and 0 < result.length_error < 16
    assert not (tmp_path / "tasks.json.partial").exists()


class Interrupted(Exception):
    pass


def test_it_goes_on_where_it_was_stopped_with_the_same_result(
    made: Made, spec: RunSpec, everything: dict[int, float], tmp_path: Path
) -> None:
    def stop(done: int) -> None:
        if done == 13:
            raise Interrupted

    file, partial = tmp_path / "tasks.json", tmp_path / "tasks.json.partial"
    with pytest.raises(Interrupted):
        filtering(made, spec).run(file, Band(0, 1), stop)
    assert not file.exists()
    with partial.open("ab") as torn:
        torn.write(b"[17, 0.")
    with pytest.raises(UsageError, match="another model"):
        filtering(made, spec, samples=2).run(file, Band(0, 1), lambda _: None)
    told: list[int] = []
    filtering(made, spec).run(file, Band(0, 1), told.append)
    assert told == list(range(13, TRIED + 1))  # no problem twice
    assert rates_in(file) == everything
    with pytest.raises(UsageError, match="exists already"):
        filtering(made, spec).run(file, Band(0, 1), lambda _: None)


def test_each_environment_numbers_its_own_problems(tiny_run: TinyRun, tmp_path: Path) -> None:
    def stop(done: int) -> None:
        raise Interrupted

    huge = [e.model_copy(update={"size": 2**31 - 1}) for e in tiny_run.spec.environments]  # no time to walk through it
    spec = tiny_run.spec.model_copy(update={"environments": huge})
    work = OfflineFilter(spec, tiny_run.model, samples=4, problems=3)
    with pytest.raises(Interrupted):
        work.run(tmp_path / "tasks.json", Band(0.25, 0.5), stop)
    second = 2**31 - 1
    with (tmp_path / "tasks.json.partial").open("a") as partial:  # as if all had been tried
        for number, rate in ((2, 0.25), (1, 0.0), (0, 0.5), (second, None), (second + 1, 0.25), (second + 2, 1.0)):
            partial.write(json.dumps([number, rate, int(4 * (rate or 0)), None]) + "\n")
    result = work.run(tmp_path / "tasks.json", Band(0.25, 0.5), lambda _: None)
    assert (result.tried, result.kept) == (5, {"rotate_matrix": 2, "spiral_matrix": 1})
    halves = {"1": "0.625", "2": "0.75", "4": "1"}  # of one problem with 1 of 4 right, and one with all
    assert result.pass_at == {"rotate_matrix": {"1": "0.25", "2": "0.444444", "4": "0.666667"}, "spiral_matrix": halves}
    said = [json.loads(line) for line in Path(result.rows).read_text().splitlines()]
    assert [(row["dataset"], row["problem"], row["solve_rate"], row["solved"]) for row in said] == [
        ("rotate_matrix", 0, "0.5", 2), ("rotate_matrix", 1, "0", 0), ("rotate_matrix", 2, "0.25", 1),
        ("spiral_matrix", 1, "0.25", 1), ("spiral_matrix", 2, "1", 4),
    ]  # fmt: skip
    assert said[0]["pass_at"] == {"1": "0.5", "2": "0.833333", "4": "1"}
    with EnvironmentSandbox(huge) as sandbox:
        first, other = TaskSet(huge, sandbox).problems([0, second + 1])
    assert [(row["question"], row["answer"]) for row in (said[0], said[3])] == [
        (p.prompt, p.answer) for p in (first, other)
    ]
    rotate, spiral = selection.read(tmp_path / "tasks.json").environments
    assert (rotate.tried, rotate.indices, rotate.rates) == (3, [0, 2], ["0.5", "0.25"])
    assert (spiral.tried, spiral.indices, spiral.rates, spiral.solved) == (2, [1], ["0.25"], [1])
    assert spiral.pass_at == halves


def test_a_run_that_names_it_draws_from_what_was_kept_and_nothing_else(
    made: Made, spec: RunSpec, everything: dict[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MURMUR_TASKS", str(tmp_path / "machine"))
    file = tmp_path / "tasks.json"
    filtering(made, spec).run(file, Band(0.25, 0.5), lambda _: None)
    tables = copy.deepcopy(made.tables)
    tables["spec"]["environments"][0]["kept"] = "tasks.json"
    write_toml(tmp_path / "run.toml", tables, "x")
    narrowed = runfile.complete(tmp_path / "run.toml", made.folder)
    kept = sorted(rates_in(file))
    before, after = task_set(spec.environments), task_set(narrowed.environments)
    after.require_same_problems()
    assert after.size == len(kept)
    assert [after.problem(i).prompt for i in range(len(kept))] == [before.problem(number).prompt for number in kept]
    assert after.held_out == before.held_out
    assert runspec.from_bytes(narrowed.canonical(), narrowed.digest) == narrowed

    again = filtering(made, narrowed)
    assert again.total == TRIED  # another filter tries all of them again, not what this one kept
    again.run(tmp_path / "again.json", Band(0, 1), lambda _: None)
    assert rates_in(tmp_path / "again.json") == everything


def test_the_two_files_appear_whole_and_nothing_is_overwritten(
    made: Made, spec: RunSpec, everything: dict[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, rows = tmp_path / "tasks.json", tmp_path / "tasks-tried.jsonl"
    rows.write_text("somebody else's")
    with pytest.raises(UsageError, match=r"tasks-tried\.jsonl exists already"):
        filtering(made, spec).run(file, Band(0, 1), lambda _: None)
    rows.unlink()

    def killed(source: Path, target: Path) -> None:
        os.rename(source, target)
        raise Interrupted

    with monkeypatch.context() as patched:  # after the rows have their name, and before the selection has
        patched.setattr(os, "replace", killed)
        with pytest.raises(Interrupted):
            filtering(made, spec).run(file, Band(0, 1), lambda _: None)
    assert (rows.exists(), file.exists()) == (True, False)
    filtering(made, spec).run(file, Band(0, 1), lambda _: None)
    assert rates_in(file) == everything
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tasks-tried.jsonl", "tasks.json"]


def test_what_is_sampled_otherwise_is_not_gone_on_with(made: Made, spec: RunSpec, tmp_path: Path) -> None:
    def stop(done: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        filtering(made, spec).run(tmp_path / "tasks.json", Band(0, 1), stop)
    cut = spec.model_copy(update={"sampling": spec.sampling.model_copy(update={"top_p": "0.9"})})
    other = spec.model_copy(update={"reward": spec.reward.model_copy(update={"length": "maximum"})})
    for changed in (cut, other):
        with pytest.raises(UsageError, match="another model, task set or sampling"):
            filtering(made, changed).run(tmp_path / "tasks.json", Band(0, 1), stop)


# ---- environments of every kind ----------------------------------------------------------------------------------------


def test_problems_of_task_files_come_out_as_the_importer_takes_them(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of an import are filtered, and another import takes what was in the band."""
    monkeypatch.setenv("MURMUR_TASKS", str(tmp_path / "machine"))
    rows = [(f"What is {i} + {i}?", f"{2 * i}") for i in range(8)]
    taskfile.write(iter(rows), tmp_path / "sums.parquet")
    mathematics = runfile.environment_alone("math", "sums", {}, [tmp_path / "sums.parquet"])
    spec = tiny_run.spec.model_copy(update={"environments": [mathematics, tiny_run.spec.environments[0]]})
    file = tmp_path / "tasks.json"
    result = OfflineFilter(spec, tiny_run.model, samples=2, problems=6).run(file, Band(0, 0), lambda _: None)
    assert result.kept["sums"] == 6  # the policy knows no sums
    said = [json.loads(line) for line in Path(result.rows).read_text().splitlines()]
    assert [(row["question"], row["answer"]) for row in said[:6]] == rows[:6]
    assert {row["package"] for row in said} == {"math", "reasoning-gym"}
    for row in (said[2], said[7]):
        row["solve_rate"] = "0.5"
    Path(result.rows).write_text("".join(json.dumps(row) + "\n" for row in said))
    report = importer.run([Path(result.rows)], tmp_path / "mix", importer.Options(band=RateBand(0.25, 0.75)))
    assert {name: made.training for name, made in report.environments.items()} == {"math": 1}
    assert report.left_out["a problem that another environment than those of task files asks"].rows == 1
    groups = taskfile.Groups(tmp_path / "mix" / "math-000.parquet")
    assert groups.read(0).to_pylist() == [dict(zip(("question", "answer"), rows[2], strict=True))]


def test_tests_of_programs_come_out_whole(tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`code` says no right answer; what an import needs is the row's tests."""
    monkeypatch.setenv("MURMUR_TASKS", str(tmp_path / "machine"))
    case = {"type": "stdin_stdout", "input": "1\n", "output": "2\n"}
    rows = [(f"Print {i} more.", json.dumps({"test_cases": [case]})) for i in range(12)]
    taskfile.write(iter(rows), tmp_path / "code.parquet")
    code = runfile.environment_alone("code", "programs", {}, [tmp_path / "code.parquet"])
    with EnvironmentSandbox([code]) as sandbox:
        asked = list(filter_._questions(code, 0, [1, 7], TaskSet([code], sandbox)))
    assert asked == [rows[1], rows[7]]
    said = [{"package": "code", "question": q, "answer": a, "solve_rate": "0.5"} for q, a in asked]
    (tmp_path / "tried.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
    report = importer.run([tmp_path / "tried.jsonl"], tmp_path / "mix", importer.Options())
    assert {name: made.training for name, made in report.environments.items()} == {"code": 2}


def test_a_run_that_names_no_calibration_is_filtered_as_it_is_trained_alone(made: Made, tmp_path: Path) -> None:
    spec = {
        name: made.tables["spec"][name]
        for name in ("name", "model", "sampling", "reward", "environments")
        if name in made.tables["spec"]
    }
    file = tmp_path / "run.toml"
    write_toml(file, {"spec": spec, "trainer": {"model": str(made.folder)}}, "No calibration.")
    asked = ["filter", f"@{file}", str(tmp_path / "tasks.json"), "--samples", "2", "--problems", "2", "--json"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output + repr(shown.exception)
    assert json.loads(shown.stdout)["tried"] == 2
    assert [one.environment for one in selection.read(tmp_path / "tasks.json").environments] == made.spec.environments


class Replying(EnvironmentSandbox):
    """The run's environments, but each says something to every turn."""

    asked: ClassVar[list[int]] = []

    def converses(self, environment: int) -> bool:
        return True

    def replies(self, asked: Sequence[Asked], *, held_out: bool = False) -> list[list[ToolResult]]:
        self.asked += [one.first for one in asked]
        return [[ToolResult("7")] * (len(one.turns) - one.first) for one in asked]


def test_environments_that_reply_are_talked_to(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_, "EnvironmentSandbox", Replying)
    sampling = tiny_run.spec.sampling.model_copy(update={"turns": 3, "reply_tokens": 32})
    spec = tiny_run.spec.model_copy(update={"sampling": sampling})
    Replying.asked.clear()
    work = OfflineFilter(spec, tiny_run.model, samples=4, problems=4)
    result = work.run(tmp_path / "tasks.json", Band(0, 1), lambda _: None)
    assert result.tried == 8
    assert {0, 1} <= set(Replying.asked)  # a second turn was asked about
    assert selection.read(tmp_path / "tasks.json").sampling["turns"] == 3


# ---- the journal -------------------------------------------------------------------------------------------------------


def test_a_journal_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", {"a": 1}), pytest.raises(LockHeld, match="another process"):
        Journal(tmp_path / "j", {"a": 1})
    Journal(tmp_path / "j", {"a": 1}).__exit__()


@pytest.mark.parametrize("torn", [b"", b"[3, 0.5", b"[3, 0.5, 1, null]", b"\xff"])
def test_what_a_kill_left_of_the_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    path, one = tmp_path / "j", Tried(2, 0.25, 1, 3.5)
    with Journal(path, {"a": 1}) as journal:
        journal.add(one)
    path.write_bytes(path.read_bytes() + torn)
    with Journal(path, {"a": 1}) as journal:
        assert journal.tried == {2: one}
        journal.add(Tried(3, None))
    with Journal(path, {"a": 1}) as journal:
        assert journal.tried == {2: one, 3: Tried(3, None)}


def test_a_line_within_a_journal_that_is_none_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"a": 1}\n[2, 0.5, 1, null]\nnonsense\n[4, 0.5, 1, null]\n')
    with pytest.raises(IntegrityError, match="line 3 of"):
        Journal(path, {"a": 1})
    assert path.read_bytes().count(b"\n") == 4


@pytest.mark.long
def test_a_process_that_was_killed_is_gone_on_from(made: Made, spec: RunSpec, tmp_path: Path) -> None:
    samples = 64  # batches of four problems
    file, partial = tmp_path / "tasks.json", tmp_path / "tasks.json.partial"
    command = [
        str(Path(sys.executable).with_name("murmur")), "trainer", "filter", f"@{made.file}", str(file), "--model", str(made.folder),
        "--samples", str(samples), "--problems", str(TRIED), "--low", "0", "--high", "1",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    until = time.monotonic() + 300
    while not (partial.exists() and partial.read_bytes().count(b"\n") > 5):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not file.exists()
    done = partial.read_bytes().count(b"\n") - 1
    told: list[int] = []
    filtering(made, spec, samples).run(file, Band(0, 1), told.append)
    assert told == list(range(done, TRIED + 1))
    filtering(made, spec, samples).run(tmp_path / "whole.json", Band(0, 1), lambda _: None)
    assert file.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert (tmp_path / "tasks-tried.jsonl").read_bytes() == (tmp_path / "whole-tried.jsonl").read_bytes()


def test_a_band_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError):
        Band(0.5, 0.1)


def test_a_folder_that_is_missing_is_refused_before_any_work_and_not_made(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["filter", f"@{tmp_path}/run.toml", str(tmp_path / "none/at/all/kept.json")])
    assert isinstance(told.exception, UsageError)
    assert "none/at/all is no folder" in str(told.exception)
    assert told.exception.hint
    assert not list(tmp_path.iterdir())
