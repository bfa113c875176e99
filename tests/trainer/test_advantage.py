"""Advantages compare a sample with its siblings and with nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.rollout import Sample
from trainer.learning.advantage import has_signal, no_signal, normalised, teaches

rewards = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=32).map(np.array)


def test_advantages_are_the_rewards_in_standard_deviations_from_their_mean() -> None:
    assert normalised(np.array([0.0, 1.0])) == pytest.approx([-0.70710578, 0.70710578], abs=1e-6)
    assert normalised(np.array([1.0, 2.0, 3.0])) == pytest.approx([-1, 0, 1], abs=1e-5)


@given(rewards.filter(has_signal))
def test_advantages_have_mean_zero_and_keep_the_order_of_rewards(values: np.ndarray) -> None:
    made = normalised(values)
    assert abs(made.mean()) < 1e-6
    assert made.std(ddof=1) <= 1 + 1e-9
    assert (np.diff(made[np.argsort(values)]) >= 0).all()


@given(rewards.filter(lambda r: np.ptp(r) > 0.1), st.floats(-50, 50), st.floats(0.5, 20))
def test_shifting_and_scaling_rewards_changes_no_advantage(values: np.ndarray, shift: float, scale: float) -> None:
    assert normalised(values * scale + shift) == pytest.approx(normalised(values), abs=1e-3)


def test_a_group_teaches_nothing_when_all_its_rewards_are_equal() -> None:
    assert not has_signal(np.array([0.3, 0.3, 0.3]))
    assert not has_signal(np.array([0.3, 0.3 + 1e-9]))  # rounding is no signal
    assert has_signal(np.array([0.3, 0.3, 0.301]))


def test_a_group_whose_rewards_are_no_numbers_has_no_signal() -> None:
    assert not has_signal(np.array([np.nan, 1.0]))


def answered(*rewards: tuple[float, float]) -> list[Sample]:
    """Samples of these task rewards and length penalties."""
    none = np.zeros(0, np.int32)
    return [Sample(0, i, 0, 8, none, none, none, (), of, off, of - off) for i, (of, off) in enumerate(rewards)]


def test_answers_that_differ_in_length_only_teach_no_task() -> None:
    solved = answered((1.0, 0.01), (1.0, 0.02), (1.0, 0.03))
    assert not teaches(solved)
    assert teaches(solved, "reward")
    assert teaches(answered((1.0, 0.01), (0.0, 0.01)))
    assert not teaches(answered((1.0, 0.5), (0.5, 0.0)))  # their advantages are zero, whatever the task says
    assert not teaches(answered((1.0, 0.0), (0.9999999999999999, 0.1)))  # the same to every honest machine


def test_why_a_group_teaches_nothing() -> None:
    assert no_signal(answered((1.0, 0.01), (1.0, 0.02))) == "all_right"
    assert no_signal(answered((0.0, 0.01), (0.0, 0.02))) == "none_right"
    assert no_signal(answered((0.5, 0.01), (0.5, 0.02))) == "equal"
    assert no_signal(answered((1.0, 0.5), (0.5, 0.0))) == "equal"
    assert no_signal(answered((1.0, 0.0), (0.0, 0.0))) is None
