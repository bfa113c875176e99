"""Advantages of a group: how much better a sample did than its siblings (GRPO, arXiv 2402.03300)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_EPSILON = 1e-6


def has_signal(rewards: NDArray[np.float64]) -> bool:
    """Whether a group teaches anything: equal rewards have zero advantages throughout (online filtering)."""
    return float(rewards.max() - rewards.min()) > _EPSILON


def normalised(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """(r - mean) / (standard deviation + 1e-6) of one group's rewards, [samples]; the deviation is the sample's (n - 1)."""
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + _EPSILON)
