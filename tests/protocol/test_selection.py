"""Selections: only the problems that were kept, the same for everybody, and nothing believed that a file says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from swarm.tiny_run import TinyRun, run_tables

from protocol.environments import assignment, selection, taskfile
from protocol.environments.problems import head_digest
from protocol.environments.selection import Kept, SelectionFile
from protocol.errors import ConfigError, HashMismatch, Malformed, Oversized
from protocol.runspec import EnvironmentSpec, FromFiles, Generated, Selection
from protocol.sandbox import Sandbox
from protocol.settings import write_toml
from protocol.shell import runfile
from tests.tasks_in_process import task_set

KEPT = [3, 7, 8, 40]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's task files."""
    made = tmp_path / "machine"
    monkeypatch.setenv("MURMUR_TASKS", str(made))
    return made


@pytest.fixture
def environment(tiny_run: TinyRun) -> EnvironmentSpec:
    return tiny_run.spec.environments[0]


def write(path: Path, environments: list[EnvironmentSpec], indices: list[int] = KEPT) -> Path:
    """What the filter would have written."""
    kept = [Kept(environment=e, tried=50, indices=indices, rates=["0.25"] * len(indices)) for e in environments]
    made = SelectionFile(model={}, sampling={"samples": 8}, band={"low": "0.125", "high": "0.5"}, environments=kept)
    path.write_bytes(made.encode())
    return path


def choose(environment: EnvironmentSpec, path: Path, indices: list[int] = KEPT) -> EnvironmentSpec:
    kept = selection.add(write(path, [environment], indices), environment)
    chosen = environment.model_copy(update={"kept": kept})
    return chosen.model_copy(update={"head": head_digest(chosen)})


def test_only_kept_problems_are_assigned_and_scored(
    environment: EnvironmentSpec, tiny_run: TinyRun, tmp_path: Path
) -> None:
    every, other = task_set([environment]), tiny_run.spec.environments[1]
    spec = tiny_run.spec.model_copy(update={"environments": [choose(environment, tmp_path / "a.json"), other]})
    tasks = task_set(spec.environments)
    tasks.require_same_problems()
    assert tasks.size == len(KEPT) + other.size
    kept = tasks.problems(range(len(KEPT)))
    assert [problem.prompt for problem in kept] == [problem.prompt for problem in every.problems(KEPT)]
    assert (
        tasks.problem(len(KEPT)).prompt == task_set([other]).problem(0).prompt
    )  # the next environment follows at once
    drawn = [g.problem.index for seed in range(20) for g in assignment.assign(spec, tasks, bytes([seed]) * 32, 0)]
    assert drawn and all(0 <= index < tasks.size for index in drawn)
    answers = [(i, every.problem(number).answer) for i, number in enumerate(KEPT)]
    with Sandbox(spec) as sandbox:
        assert sandbox.score(answers) == [1.0] * len(KEPT)
        assert sandbox.score([(0, answers[1][1])]) != [1.0]


def test_rows_of_files_can_be_chosen_from_as_well(tmp_path: Path) -> None:
    taskfile.write(((f"What is {i} + 1?", str(i + 1)) for i in range(60)), tmp_path / "sums.parquet")
    sums = FromFiles(
        package="parquet", version="1", dataset="sums", files=[taskfile.add(tmp_path / "sums.parquet")], seed=0, size=50,
        held_out_seed=0, held_out_size=10, head="0" * 64, exact=True,
    )  # fmt: skip
    tasks = task_set([choose(sums, tmp_path / "a.json")])
    tasks.require_same_problems()
    assert [tasks.problem(i).prompt for i in range(tasks.size)] == [f"What is {number} + 1?" for number in KEPT]
    assert [p.prompt for p in tasks.held_out] == [f"What is {i} + 1?" for i in range(50, 60)]
    with pytest.raises(IndexError):
        tasks.problem(len(KEPT))


def test_one_file_serves_each_environment_it_tried(tiny_run: TinyRun, tmp_path: Path) -> None:
    first, second = tiny_run.spec.environments
    path = write(tmp_path / "a.json", [first, second])
    assert selection.add(path, first) == selection.add(path, second)
    longer = second.model_copy(update={"held_out_size": 5, "size": second.size + 1})  # problem i is what it was
    assert selection.add(path, longer).rows == len(KEPT)
    with pytest.raises(ConfigError, match="other problems"):
        selection.add(path, first.model_copy(update={"seed": first.seed + 1}))


def test_a_spec_without_a_selection_keeps_its_digest(tiny_run: TinyRun) -> None:
    assert b"kept" not in tiny_run.spec.canonical()


def test_a_selection_that_is_not_here_or_was_changed_is_noticed(environment: EnvironmentSpec, tmp_path: Path) -> None:
    chosen = choose(environment, tmp_path / "a.json")
    assert chosen.kept is not None
    path = taskfile.path_of(chosen.kept)
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        task_set([chosen]).require_same_problems()
    write(path, [environment], [3, 7, 8, 41])
    with pytest.raises(HashMismatch, match="was changed"):
        task_set([chosen]).require_same_problems()
    write(path, [environment], [3, 7, 8])
    with pytest.raises(Malformed, match="keeps 3 problems, and the run spec says 4"):
        task_set([chosen]).require_same_problems()
    with pytest.raises(Malformed, match="keeps 3"):
        task_set([chosen]).problem(0)
    path.write_bytes(kept)
    task_set([chosen]).require_same_problems()


def lacking(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda value: value["environments"][0].update(changes)


@pytest.mark.parametrize(
    "change",
    [
        lacking(indices=[3, 7, 7, 40]), lacking(indices=[7, 3, 8, 40]), lacking(indices=[3, 7, 8, 1 << 30]),
        lacking(indices=[3, 7, 8, 1 << 64]), lacking(indices=[-1, 7, 8, 40]), lacking(indices=[3, 7, 8, "40"]),
        lacking(indices=[3, 7, 8, True]), lacking(indices=[3, 7, 8]), lacking(indices=[], rates=[]), lacking(rates=None),
        lacking(environment={}), lacking(more=1), lambda value: value.update(format="murmuration/selection/2"),
        lambda value: value.update(environments=[]), lambda value: value.pop("band"),
    ],
)  # fmt: skip
def test_what_is_no_selection_is_refused(
    environment: EnvironmentSpec, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    path = write(tmp_path / "a.json", [environment])
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")))
    with pytest.raises(ConfigError, match="cannot be used"):
        selection.add(path, environment)


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"format": 1e999}', b"\xff\xfe{", b"null", b"[]"])
def test_what_is_not_even_json_of_ours_is_malformed_in_the_sandbox_too(
    content: bytes, tiny_run: TinyRun, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(Malformed):
        selection.read(path)
    with pytest.raises(Malformed):
        tiny_run.context.sandbox.require_task_file(path)


def test_more_than_anybody_reads_is_neither_written_nor_read(
    environment: EnvironmentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.json", [environment])
    monkeypatch.setattr(selection, "FILE_BYTES_MAX", path.stat().st_size - 1)
    with pytest.raises(Oversized):
        selection.read(path)
    with pytest.raises(ConfigError, match="a selection of"):
        write(tmp_path / "b.json", [environment])


def test_the_run_file_names_it_by_path(
    environment: EnvironmentSpec, tiny_run: TinyRun, tmp_path: Path, folder: Path
) -> None:
    tables = run_tables()
    for number, table in enumerate(tables["spec"]["environments"]):
        table["kept"] = "chosen.json" if number == 0 else table.get("kept")
    tables["spec"]["environments"] = [
        {k: v for k, v in t.items() if v is not None} for t in tables["spec"]["environments"]
    ]
    write_toml(tmp_path / "run.toml", tables, "x")
    with pytest.raises(ConfigError, match=r"chosen\.json"):
        runfile.complete(tmp_path / "run.toml", tiny_run.model)
    write(tmp_path / "chosen.json", [environment])
    spec = runfile.complete(tmp_path / "run.toml", tiny_run.model)
    (file,) = spec.task_files
    assert isinstance(file, Selection)
    assert [path.name for path in folder.iterdir()] == [f"{file.sha256}.json"]
    task_set(spec.environments).require_same_problems()


def test_more_cannot_be_kept_than_there_is(environment: EnvironmentSpec) -> None:
    kept = Selection(sha256="0" * 64, rows=environment.size + 1, size=1)
    with pytest.raises(ValueError, match="problems kept of"):
        Generated.model_validate(environment.model_dump() | {"kept": kept.model_dump()})
