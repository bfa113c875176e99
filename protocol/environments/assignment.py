"""Assignment by arithmetic: which problems, budgets and sampling keys one submission consists of.

Nobody hands out work. A submission's seed (protocol/seeds.py) names everything, so each party derives the same list, and
nobody can choose. Labels of derived seeds: "problem" (group, attempt), "budget" (group), "sample" (group, sample).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from protocol import length_rewards, seeds
from protocol.environments import Problem, Tasks
from protocol.errors import ConfigError
from protocol.runspec import AnswerSpec, EnvironmentSpec, starts

_ATTEMPTS_MAX = 1000


def mixture(environments: Sequence[EnvironmentSpec]) -> str:
    """How often each environment is asked, for people: every problem is as likely as any other, so by their sizes."""
    total = starts(environments)[-1]
    sizes = [after - before for before, after in pairwise(starts(environments))]
    return ", ".join(f"{_percent(size, total)} % {of.dataset}" for size, of in zip(sizes, environments, strict=True))


def _percent(size: int, total: int) -> str:
    share = 100 * size / total
    return f"{share:.1f}" if share >= 0.1 else f"{share:.1g}"


@dataclass(frozen=True)
class AssignedGroup:
    """Samples of one problem. `budget` is the announced length in tokens, 0 for none; one Philox key per sample."""

    problem: Problem
    budget: int
    keys: tuple[int, ...]


def assign(spec: AnswerSpec, tasks: Tasks, seed: bytes, hardware: int | None) -> list[AssignedGroup]:
    """The groups of the submission with this seed, for a seat of this hardware class; None: with budgets of all classes."""
    samples = range(spec.sampling.group_size)
    groups = []
    for group, problem in enumerate(_draw(tasks, seed, spec.sampling.groups_per_submission)):
        keys = tuple(seeds.sampling_key(seeds.derive(seed, "sample", group, sample)) for sample in samples)
        budget = length_rewards.draw(spec.reward_of(problem.environment), seed, group, hardware)
        groups.append(AssignedGroup(problem, budget, keys))
    return groups


def _draw(tasks: Tasks, seed: bytes, groups: int) -> list[Problem]:
    """For each group the first derived problem that evaluation does not ask."""
    found: dict[int, Problem] = {}
    for attempt in range(_ATTEMPTS_MAX):
        missing = [group for group in range(groups) if group not in found]
        if not missing:
            return [found[group] for group in range(groups)]
        drawn = [seeds.below(seeds.derive(seed, "problem", group, attempt), tasks.size) for group in missing]
        asked = zip(missing, tasks.problems(drawn), strict=True)
        found |= {group: problem for group, problem in asked if not problem.is_held_out}
    raise ConfigError("almost every training problem is held out; the run's task sets must be larger")
