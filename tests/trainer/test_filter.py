"""The offline filter keeps what is solved sometimes, says so in a pinned file, and goes on where it was stopped."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path

import pytest
from swarm.tiny_run import TinyRun

from protocol import runspec
from protocol.environments import selection
from protocol.errors import UsageError
from protocol.runspec import RunSpec
from protocol.settings import write_toml
from protocol.shell import runfile
from tests.tasks_in_process import task_set
from tests.trainer.conftest import Made
from trainer.evaluation.filter import Band, OfflineFilter

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
    assert told[0] == 13
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
            partial.write(json.dumps([number, rate, None]) + "\n")
    result = work.run(tmp_path / "tasks.json", Band(0.25, 0.5), lambda _: None)
    assert (result.tried, result.kept) == (6, {"rotate_matrix": 2, "spiral_matrix": 1})
    rotate, spiral = selection.read(tmp_path / "tasks.json").environments
    assert (rotate.tried, rotate.indices, rotate.rates) == (3, [0, 2], ["0.5", "0.25"])
    assert (spiral.tried, spiral.indices, spiral.rates) == (3, [1], ["0.25"])


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


def test_a_band_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError):
        Band(0.5, 0.1)
