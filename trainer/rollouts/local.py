"""Rollouts that this machine makes by itself, in submissions as nodes would be assigned them, and the batches they become.

No file, proof or validator stands between generating and learning; assignment, budgets, penalties and the online filter are a run's.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from threading import Event

import numpy as np

from node.engine import EngineSettings
from node.engine.checked_engine import CheckedEngine
from node.engine.samples import generated
from protocol import seeds
from protocol.environments import Grader, Tasks
from protocol.environments.assignment import assign
from protocol.errors import MurmurationError, Unavailable
from protocol.rollout import Sample
from protocol.runspec import AnswerSpec, RewardSpec
from protocol.tokenizer import Tokenizer
from trainer.config import OnlineFilter
from trainer.learning import advantage
from trainer.rollouts.counts import DataCounts, Tally
from trainer.rollouts.data import training_sample
from trainer.rollouts.pool import TrainingGroup

log = logging.getLogger("trainer")

_TRIES = 16  # times as many submissions as a batch has at least, before a policy counts as one that cannot learn

Make = Callable[[int, int], Sequence[Sample]]
"""The samples of one submission, group after group: of a step, by number within it. The same numbers give the same problems and
sampling keys."""


class NothingToLearn(MurmurationError):
    """The policy does every problem equally well each time: always right, or never."""


class LocalGeneration:
    """A `Make` with an engine of its own: `load` a version first."""

    def __init__(
        self, spec: AnswerSpec, tasks: Tasks, grader: Grader, tokenizer: Tokenizer, engine: EngineSettings, seed: int
    ) -> None:
        """`seed`: problems, budgets and sampling keys follow from it, the step and the submission's number."""
        self._spec = spec
        self._tasks = tasks
        self._grader = grader
        self._tokenizer = tokenizer
        self._made = CheckedEngine.of_run(engine, spec.model)
        self._seed = hashlib.sha256(f"murmuration/solo/1/{seed}".encode()).digest()

    def load(self, folder: Path) -> None:
        """Loads a version; the first one is compared with the plain model. Raises as engine and self-check do."""
        self._made.load(folder)

    def __call__(self, step: int, sequence: int) -> list[Sample]:
        """Raises Unavailable where the weights compute no numbers, and what the grader raises."""
        groups = assign(self._spec, self._tasks, seeds.derive(self._seed, "submission", step, sequence), None)
        try:
            return generated(self._spec, self._made.engine, self._tokenizer, self._grader, groups, prove=False)
        except ValueError as error:
            raise Unavailable(
                f"the weights of step {step} compute no numbers: {error}",
                hint="a smaller learning rate (trainer.optimizer.lr), from the checkpoint before",
            ) from error


class Batches:
    """Collects what a step learns from, and counts what came in."""

    def __init__(
        self, make: Make, group_size: int, end_tokens: Collection[int], *, online_filter: OnlineFilter = "task_reward",
        names: Sequence[str] = (), environment: Callable[[Sample], int] = lambda _: 0,
        reward_of: Callable[[int], RewardSpec] = lambda _: RewardSpec(),
    ) -> None:  # fmt: skip
        """`names` of the environments, `environment`, the number of a sample's, and `reward_of` such a number are for the counts."""
        self.counts = DataCounts()
        self._make = make
        self._size = group_size
        self._end_tokens = end_tokens
        self._filter: OnlineFilter = online_filter
        self._names = names
        self._environment = environment
        self._reward_of = reward_of

    def collect(
        self, step: int, needed: int, *, version: int, least: int | None = None, stop: Event | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> tuple[list[TrainingGroup], list[Sample]] | None:  # fmt: skip
        """`needed` groups that teach something, and every sample that was made for them; None when stopped meanwhile.

        `version`: of the weights that make them. Where most groups teach nothing, `least` groups will do in the end. `progress` is told
        how many there are. Raises NothingToLearn.
        """
        before = self.counts.all
        groups: list[TrainingGroup] = []
        samples: list[Sample] = []
        sequence = 0
        while len(groups) < needed:
            if stop is not None and stop.is_set():
                return None
            progress(len(groups))
            made = self._make(step, sequence)
            groups += self._groups(made, step, sequence, version)
            samples += made
            sequence += 1
            if len(samples) > _TRIES * max(needed * self._size, len(made)) and len(groups) < needed:
                if len(groups) >= (least or needed):
                    log.warning("step %d: only %d of %d groups have unequal rewards", step, len(groups), needed)
                    break
                raise self._nothing(step, len(groups), needed, self.counts.all.since(before))
        return groups[:needed], samples

    def _groups(self, made: Sequence[Sample], step: int, sequence: int, version: int) -> list[TrainingGroup]:
        found = []
        for index in range(len(made) // self._size):
            samples = made[index * self._size : (index + 1) * self._size]
            called = f"{step}.{sequence}/{index}"
            self.counts.groups += 1
            if unknown := sum(not math.isfinite(sample.reward) for sample in samples):
                self.counts.bad_groups += 1
                log.warning("group %s is left out: %d of its %d rewards are no numbers", called, unknown, self._size)
                continue
            environment = self._environment(samples[0])
            name = self._names[environment] if self._names else ""
            self.counts.add(name, samples, self._end_tokens, self._reward_of(environment))
            if reason := advantage.no_signal(samples, self._filter):
                self.counts.drop(name, reason)
                continue
            self.counts.staleness[step - version] += 1
            found.append(_group(called, samples, version))
        return found

    def _nothing(self, step: int, groups: int, needed: int, came: Tally) -> NothingToLearn:
        if not came.samples:
            return NothingToLearn(
                f"step {step}: no answer got a reward that is a number", hint="see the warnings above"
            )
        cut, mean = came.truncated / came.samples, came.reward / came.samples
        hint = "tasks that the policy solves sometimes, or a reward that tells its answers apart"
        if cut > 0.5 and mean <= 0:  # who is cut off and earns something has said it before the end
            hint = "more room for answers (spec.sampling.max_new_tokens), or a model that ends them"
        return NothingToLearn(
            f"step {step}: only {groups} of {needed} groups have unequal rewards after {came.samples} answers; "
            f"mean reward {mean:.3f}, {cut:.0%} of the answers cut off",
            hint=hint,
        )


def _group(name: str, samples: Sequence[Sample], version: int) -> TrainingGroup:
    """One problem's samples with their advantages."""
    rewards = tuple(float(sample.reward) for sample in samples)
    advantages = advantage.normalised(np.array(rewards))
    made = tuple(
        training_sample(sample, float(a), f"{name}.{number}")
        for number, (sample, a) in enumerate(zip(samples, advantages, strict=True))
    )
    return TrainingGroup(name.encode(), 0, "", version, made, rewards=rewards)


def version_for(step: int, staleness: int, folder: Path) -> int:
    """The version in `folder` that rollouts for `step` are made with: `staleness` steps old.

    Where that one is gone, it is the next one that is here, with a warning: other rollouts follow, and so other weights.
    """
    here = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    wanted = max(0, step - staleness)
    found = next((version for version in here if version >= wanted), here[-1])
    if found != wanted:
        log.warning(
            "step %d: version %d of the weights, which was to answer for it, is gone; version %d does, and what follows is not "
            "what would have followed without the interruption",
            step, wanted, found,
        )  # fmt: skip
    return found
