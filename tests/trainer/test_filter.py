"""The offline filter keeps what is solved sometimes, says so in a pinned file, and goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol import runfile
from protocol.errors import UsageError
from protocol.runspec import RunSpec
from tests.trainer.conftest import Made
from trainer.filter import Band, OfflineFilter

TRIED = 40


@pytest.fixture(scope="module")
def spec(made: Made) -> RunSpec:
    return runfile.complete(made.file, made.folder)


def work(made: Made, spec: RunSpec, samples: int = 4) -> OfflineFilter:
    return OfflineFilter(spec, made.folder, samples=samples, problems=TRIED, threads=1)


@pytest.fixture(scope="module")
def everything(made: Made, spec: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Rates of all problems that were tried."""
    file = tmp_path_factory.mktemp("all") / "tasks.json"
    work(made, spec).run(file, Band(0, 1), lambda _: None)
    return {problem["index"]: float(problem["rate"]) for problem in json.loads(file.read_text())["problems"]}


def test_what_lies_in_the_band_is_kept_with_its_rate(
    made: Made, spec: RunSpec, everything: dict[int, float], tmp_path: Path
) -> None:
    told: list[int] = []
    result = work(made, spec).run(tmp_path / "tasks.json", Band(0.25, 0.5), told.append)
    written = json.loads((tmp_path / "tasks.json").read_text())
    kept = {problem["index"]: float(problem["rate"]) for problem in written["problems"]}
    assert kept == {index: rate for index, rate in everything.items() if 0.25 <= rate <= 0.5}
    assert 0 < len(kept) < len(everything)  # or this test would say little
    assert (result.tried, result.kept) == (TRIED, len(kept))
    assert written["environments"] == [environment.model_dump() for environment in spec.environments]
    assert written["sampling"]["samples"] == 4
    assert told[-1] == TRIED
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
        work(made, spec).run(file, Band(0, 1), stop)
    assert not file.exists()
    with partial.open("ab") as torn:
        torn.write(b"[17, 0.")
    with pytest.raises(UsageError, match="another model"):
        work(made, spec, samples=2).run(file, Band(0, 1), lambda _: None)
    told: list[int] = []
    work(made, spec).run(file, Band(0, 1), told.append)
    assert told[0] == 13
    rates = {problem["index"]: float(problem["rate"]) for problem in json.loads(file.read_text())["problems"]}
    assert rates == everything
    with pytest.raises(UsageError, match="exists already"):
        work(made, spec).run(file, Band(0, 1), lambda _: None)


def test_a_band_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError):
        Band(0.5, 0.1)
