"""Assignment by arithmetic: which problems, budgets and sampling keys one submission consists of.

Nobody hands out work. A submission's seed (protocol/seeds.py) names everything, so each party derives the same list, and
nobody can choose. Labels of derived seeds: "problem" (group, attempt), "budget" (group), "sample" (group, sample).
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol import seeds
from protocol.environments import Problem, TaskSet
from protocol.errors import ConfigError
from protocol.runspec import RunSpec

_ATTEMPTS_MAX = 1000


@dataclass(frozen=True)
class Group:
    """Samples of one problem. `budget` is the announced length in tokens, 0 for none; one Philox key per sample."""

    problem: Problem
    budget: int
    keys: tuple[int, ...]


def assign(spec: RunSpec, tasks: TaskSet, seed: bytes, hardware: int) -> list[Group]:
    """The groups of the submission with this seed, for a seat of this hardware class."""
    budgets = spec.reward.budgets.get(str(hardware), [])
    groups = []
    for group in range(spec.sampling.groups_per_submission):
        budget = budgets[seeds.below(seeds.derive(seed, "budget", group), len(budgets))] if budgets else 0
        samples = range(spec.sampling.group_size)
        keys = tuple(seeds.sampling_key(seeds.derive(seed, "sample", group, sample)) for sample in samples)
        groups.append(Group(_draw(tasks, seed, group), budget, keys))
    return groups


def _draw(tasks: TaskSet, seed: bytes, group: int) -> Problem:
    """The first derived problem that evaluation does not ask."""
    for attempt in range(_ATTEMPTS_MAX):
        problem = tasks.problem(seeds.below(seeds.derive(seed, "problem", group, attempt), tasks.size))
        if not tasks.is_held_out(problem):
            return problem
    raise ConfigError("almost every training problem is held out; the run's task sets must be larger")


def length_penalty(spec: RunSpec, budget: int, tokens: int) -> float:
    """α·|l_target − l|, or 0 where no budget was announced (arXiv 2505.07291, section 3.1.2)."""
    return float(spec.reward.alpha) * abs(budget - tokens) if budget else 0.0
