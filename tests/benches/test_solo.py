"""Learning in one process: rollouts are as old as they are said to be, and nothing but their age differs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benches.solo import NothingToLearn, Solo, Step
from safetensors.torch import load_file, save_file


def steps(file: Path, folder: Path, *, staleness: int, count: int = 4) -> list[Step]:
    with Solo(file, folder, staleness=staleness, seed=3) as run:
        return [run.step() for _ in range(count)]


def test_rollouts_are_exactly_so_many_versions_old(run_file: Path, tmp_path: Path) -> None:
    """What they claim to be sampled with is what the weights of that version give, and not those of a later one."""
    fresh, stale = (steps(run_file, tmp_path / str(staleness), staleness=staleness) for staleness in (0, 2))
    assert [step.version for step in fresh] == [0, 1, 2, 3]
    assert [step.version for step in stale] == [0, 0, 0, 1]
    rounding = max(step.metrics.behaviour_gap for step in fresh)
    assert rounding < 0.02
    assert stale[0].metrics.behaviour_gap < 0.02
    assert all(step.metrics.behaviour_gap > 2 * rounding for step in stale[1:])


def test_every_lag_is_asked_the_same(run_file: Path, tmp_path: Path) -> None:
    one, other = (steps(run_file, tmp_path / str(staleness), staleness=staleness, count=2) for staleness in (0, 1))
    asked = [[[(s.problem, s.budget) for s in step.rollouts[:8]] for step in of] for of in (one, other)]
    assert asked[0] == asked[1]
    assert asked[0][0] != asked[0][1]
    first = [[sample.completion.tolist() for sample in of[0].rollouts] for of in (one, other)]
    assert first[0] == first[1]


def test_lengths_are_paid_for_by_the_runs_own_rule(run_file: Path, tmp_path: Path) -> None:
    (step,) = steps(run_file, tmp_path / "solo", staleness=0, count=1)
    for sample in step.rollouts:
        assert sample.budget in (4, 8)
        penalty = 0.01 * abs(sample.budget - len(sample.completion))
        assert sample.reward == pytest.approx(sample.task_reward - penalty, abs=1e-6)


def test_a_policy_that_cannot_learn_is_an_error_and_no_hang(run_file: Path, tmp_path: Path) -> None:
    run_file.write_text(run_file.read_text().replace('alpha = "0.01"', 'alpha = "0"'))
    weights = run_file.parent / "policy/model.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(NothingToLearn, match="only 0 of 4 groups have unequal rewards"):
        steps(run_file, tmp_path / "solo", staleness=0)
