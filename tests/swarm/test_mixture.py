"""The demo's mixture: right answers are worth 1, nothing held out is trained on, and without bubblewrap there is no code and a sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from swarm import mixture
from swarm.settings import SwarmSettings, run_file

from protocol.environments import TaskSet
from protocol.folders import TASKS_VARIABLE
from protocol.runspec import EnvironmentSpec
from protocol.sandbox import EnvironmentSandbox
from protocol.sandbox.programs import survey, walls
from protocol.settings import write_toml
from protocol.shell import runfile


def specs(folder: Path, mixed: mixture.Mixture) -> list[EnvironmentSpec]:
    nobody = "0x" + "0" * 40
    tables: dict[str, Any] = run_file(
        SwarmSettings(), mixed.environments, rpc="", contract=nobody, chain_id=1, run=1, trainer=nobody, bootnode="", first_block=0
    )  # fmt: skip
    write_toml(folder / "run.toml", tables, "A run for tests.")
    return runfile.environments(folder / "run.toml")


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_of_each_kind_a_right_answer_earns_1_and_what_is_held_out_is_never_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "tasks"))
    mixed = mixture.write(tmp_path)
    assert mixed.left_out == ""
    environments = specs(tmp_path, mixed)
    kinds = mixture.kinds(mixed.environments)
    assert list(kinds.values()) == ["reasoning-gym", "reasoning-gym", "math", "code"]
    assert [one.package for one in environments] == list(kinds.values())
    with EnvironmentSandbox(environments) as sandbox:
        tasks = TaskSet(environments, sandbox)
        held_out = {
            problem.prompt for problem in tasks.held_out if kinds[list(kinds)[problem.environment]] != "reasoning-gym"
        }
        problems = tasks.problems(range(tasks.size))
        assert not held_out & {problem.prompt for problem in problems}
        asked = [problem for problem in problems if problem.index % 25 == 0]
        assert {problem.environment for problem in asked} == {0, 1, 2, 3}
        assert sandbox.score([(problem.index, problem.answer) for problem in asked]) == [1.0] * len(asked)
        assert sandbox.score([(problem.index, "1/1") for problem in asked]) == [0.0] * len(asked)


def test_without_bubblewrap_the_demo_says_how_to_get_it_and_asks_the_other_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walls, "bubblewrap", lambda: None)
    survey.require.cache_clear()
    try:
        mixed = mixture.write(tmp_path)
    finally:
        survey.require.cache_clear()
    assert set(mixture.kinds(mixed.environments).values()) == {"reasoning-gym", "math"}
    assert "without `code`" in mixed.left_out
    assert survey.INSTALL in mixed.left_out
    assert not (tmp_path / "programs.parquet").exists()
