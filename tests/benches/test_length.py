"""The bench of length budgets: that its task is what it says it is, its rows, and that budgets are learned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benches import length
from benches.curves import draw
from benches.length import Learned, Measured
from benches.solo import NothingToLearn, Solo
from swarm.processes import ROOT

from protocol.settings import write_toml
from protocol.shell import runfile
from tests.tasks_in_process import score, task_set


def test_spaces_after_an_answer_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    """And an answer with its end token leaves room below every budget, so that each can be met exactly."""
    write_toml(tmp_path / "run.toml", length.tables(), "A run of one task.")
    tasks = task_set(runfile.environments(tmp_path / "run.toml"))
    for index in range(50):
        problem = tasks.problem(index)
        answer = str(problem.answer)
        assert len(answer) + 1 <= min(length.BUDGETS) <= max(length.BUDGETS) <= length._NEW_TOKENS_MAX
        for spaces in (0, 1, 11):
            assert score(tasks.specs, index, answer + " " * spaces) == 1
            assert score(tasks.specs, index, "5" + answer + " " * spaces) == 0


GOOD = Measured(1.4, 0.7, 240)


def learned(before: Measured, after: Measured) -> Learned:
    return Learned(0, before, after, [before.error], [before.task_reward], {})


@pytest.mark.parametrize(
    ("after", "met"),
    [(GOOD, [True, True]), (Measured(1.6, 0.7, 240), [False, True]), (Measured(1.4, 0.5, 240), [True, False])],
)
def test_a_third_of_the_error_without_loss_of_reward_is_what_counts(after: Measured, met: list[bool]) -> None:
    rows = length.rows([learned(Measured(4.5, 0.6, 240), after)])
    assert [row.met for row in rows] == [*met, None]


def test_a_length_for_all_budgets_cannot_pass_for_one_that_was_read() -> None:
    assert length.blind() == pytest.approx(8 / 3)
    rows = length.rows([learned(Measured(4.5, 0.6, 240), Measured(length.blind(), 0.6, 240))])
    assert rows[0].met is False


def test_an_error_of_nothing_is_taken_as_one_token_in_one_answer() -> None:
    rows = length.rows([learned(Measured(4.5, 0.0, 240), Measured(0.0, 0.6, 240))])
    assert [(row.ours, row.ratio) for row in rows] == [(0, 4.5 * 240), (0.6, 0.6 * 240), (0, length.blind() * 240)]


def test_lengths_are_measured_on_every_held_out_problem_with_every_budget(run_file: Path, tmp_path: Path) -> None:
    with Solo(run_file, tmp_path / "solo") as run:
        found = length.measure(run)
        assert found == length.measure(run)
        assert 0 < found.error < max(length.BUDGETS)
        run.spec = run.spec.model_copy(update={"sampling": run.spec.sampling.model_copy(update={"max_new_tokens": 1})})
        assert length.measure(run) == Measured(
            13.0, 0.0, found.answers
        )  # one token each: 9, 13 and 17 from the budgets


def test_a_run_ends_where_nothing_is_left_to_learn_and_its_curve_with_it(tmp_path: Path) -> None:
    class Learns:
        left = iter([{}, {}])

        def step(self) -> Any:
            try:
                return next(self.left)
            except StopIteration:
                raise NothingToLearn("every group has equal rewards") from None

    assert list(length._steps(Learns(), 5)) == [{}, {}]  # type: ignore[arg-type]

    def run_of(steps: int) -> Learned:
        lengths = {budget: [5.0] * steps for budget in length.BUDGETS}
        return Learned(0, GOOD, GOOD, [4.0] * steps, [0.5] * steps, lengths)

    panels = length.panels([run_of(2), run_of(1)])
    np.testing.assert_array_equal(panels[0].lines[0].values, [[4, 4], [4, np.nan]])
    draw(tmp_path / "length.png", panels)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_budgets_are_learned_and_the_task_with_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benches", "length", "--json", "--plot", str(tmp_path / "length.png")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1700, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert {row["name"]: row["ours"] for row in rows if row["met"] is False} == {}
    assert [row["goal"] for row in rows] == [3.0, 1.0, 3.0, 1.0, None]
    assert (tmp_path / "length.png").exists()
