"""Advantages of a group: how much better a sample did than its siblings (GRPO, arXiv 2402.03300)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protocol.reward import on_grid
from protocol.rollout import Sample
from trainer.config import OnlineFilter

_EPSILON = 1e-6


def has_signal(rewards: NDArray[np.float64]) -> bool:
    """Whether rewards of a group differ: equal ones have zero advantages throughout."""
    return float(rewards.max() - rewards.min()) > _EPSILON


Dropped = Literal["all_right", "none_right", "equal"]
"""Why a group teaches nothing: every sample has the full task reward, none has any, or all are as good as each other."""


def no_signal(samples: Sequence[Sample], by: OnlineFilter = "task_reward") -> Dropped | None:
    """Why the online filter drops a group; None where it keeps it: its task rewards differ, and so do its rewards.

    Penalties for length differ nearly always. `by` the whole reward, groups that only differ in length are kept as well.
    """
    of_task = np.array([on_grid(sample.task_reward) for sample in samples])
    differ = has_signal(np.array([sample.reward for sample in samples]))
    if differ and (by == "reward" or has_signal(of_task)):
        return None
    return "all_right" if of_task.min() >= 1 else "none_right" if of_task.max() <= 0 else "equal"


def teaches(samples: Sequence[Sample], by: OnlineFilter = "task_reward") -> bool:
    """Whether the online filter keeps a group."""
    return no_signal(samples, by) is None


def normalised(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """(r - mean) / (standard deviation + 1e-6) of one group's rewards, [samples]; the deviation is the sample's (n - 1)."""
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + _EPSILON)
