"""Task sets that draw their problems in this process, for tests that look at environments and not at their sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.environments import TaskSet
from protocol.environments.problems import Problems
from protocol.runspec import EnvironmentSpec


def task_set(environments: Sequence[EnvironmentSpec]) -> TaskSet:
    return TaskSet(environments, Problems(environments))


def score(environments: Sequence[EnvironmentSpec], index: int, answer: str | None) -> float:
    """Of an answer to a training problem."""
    return Problems(environments).score([(index, answer)])[0]
