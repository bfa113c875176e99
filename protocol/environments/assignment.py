"""Assignment by arithmetic: which problems, budgets and sampling keys one submission consists of.

Nobody hands out work. A submission's seed (protocol/seeds.py) names everything, so each party derives the same list, and
nobody can choose. Labels of derived seeds: "problem" (group, attempt), "budget" (group), "sample" (group, sample).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol import seeds
from protocol.environments import Problem, Tasks
from protocol.errors import ConfigError
from protocol.runspec import AnswerSpec, RewardSpec

_ATTEMPTS_MAX = 1000


@dataclass(frozen=True)
class AssignedGroup:
    """Samples of one problem. `budget` is the announced length in tokens, 0 for none; one Philox key per sample."""

    problem: Problem
    budget: int
    keys: tuple[int, ...]


def assign(spec: AnswerSpec, tasks: Tasks, seed: bytes, hardware: int) -> list[AssignedGroup]:
    """The groups of the submission with this seed, for a seat of this hardware class."""
    budgets = spec.reward.budgets.get(str(hardware), [])
    samples = range(spec.sampling.group_size)
    groups = []
    for group, problem in enumerate(_draw(tasks, seed, spec.sampling.groups_per_submission)):
        keys = tuple(seeds.sampling_key(seeds.derive(seed, "sample", group, sample)) for sample in samples)
        groups.append(AssignedGroup(problem, draw_budget(budgets, seed, group), keys))
    return groups


def draw_budget(budgets: Sequence[int], seed: bytes, group: int) -> int:
    """The length budget of a group in tokens, one of these; 0 where there are none."""
    return budgets[seeds.below(seeds.derive(seed, "budget", group), len(budgets))] if budgets else 0


def all_budgets(reward: RewardSpec) -> list[int]:
    """What budgets are drawn from where nobody's hardware class matters: those of all classes, in order."""
    return [budget for number in sorted(reward.budgets, key=int) for budget in reward.budgets[number]]


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


def length_penalty(spec: AnswerSpec, budget: int, tokens: int) -> float:
    """α·|l_target − l|, or 0 where no budget was announced (arXiv 2505.07291, section 3.1.2)."""
    return float(spec.reward.alpha) * abs(budget - tokens) if budget else 0.0
