"""A run's task set: the problems of all its environments under one index, and the held-out ones apart.

Index i counts through the environments in the order of the spec. Held-out problems come from other seeds or rows; a training
problem that asks the same question as one of them is skipped by assignment, so evaluation never sees a trained question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from protocol import canonical
from protocol.environments import reasoning, selection, taskfile
from protocol.environments.source import Source
from protocol.errors import VersionMismatch
from protocol.runspec import EnvironmentSpec, starts

_HEAD = 256


@dataclass(frozen=True)
class Problem:
    """`entry` is the environment's own record of the problem, whatever its verifier needs."""

    environment: int
    index: int
    prompt: str
    entry: Any


class TaskSet:
    """All problems of a run. Construction is quick; nothing is generated before it is asked for."""

    def __init__(self, environments: Sequence[EnvironmentSpec]) -> None:
        self.specs = list(environments)
        self._train = [_training(e) for e in self.specs]
        self._held_out = [_held_out(e) for e in self.specs]
        self._starts = starts(self.specs)

    @property
    def size(self) -> int:
        return self._starts[-1]

    def problem(self, index: int) -> Problem:
        """The training problem of `index` in [0, size)."""
        if not 0 <= index < self.size:
            raise IndexError(f"problem {index} of {self.size}")
        environment = next(i for i, start in enumerate(self._starts[1:]) if index < start)
        source = self._train[environment]
        entry = source.entry(index - self._starts[environment])
        return Problem(environment, index, source.prompt(entry), entry)

    @cached_property
    def held_out(self) -> list[Problem]:
        """Evaluation problems, no question twice."""
        found: list[Problem] = []
        asked: set[str] = set()
        for environment, (spec, source) in enumerate(zip(self.specs, self._held_out, strict=True)):
            drawn = spec.held_out_size if spec.files else 20 * spec.held_out_size
            fresh = (p for p in _problems(environment, source, drawn) if p.prompt not in asked)
            for problem in islice(fresh, spec.held_out_size):
                asked.add(problem.prompt)
                found.append(problem)
        return found

    @cached_property
    def _held_out_prompts(self) -> frozenset[str]:
        return frozenset(problem.prompt for problem in self.held_out)

    def is_held_out(self, problem: Problem) -> bool:
        """Whether a training problem asks what evaluation asks."""
        return problem.prompt in self._held_out_prompts

    def score(self, problem: Problem, completion: str | None) -> float:
        """Task reward in [0, 1]; None stands for an answer that never ended and scores 0."""
        return 0.0 if completion is None else self._train[problem.environment].score(problem.entry, completion)

    def require_same_problems(self) -> None:
        """Raises VersionMismatch unless this machine draws the problems the spec was written for.

        Of files it reads every byte: raises ConfigError, HashMismatch or Malformed unless they are here and whole.
        """
        for spec in self.specs:
            taskfile.require(spec)
            selection.require(spec)
            if head_digest(spec) != spec.head:
                raise VersionMismatch(
                    f"{spec.package} draws other problems for {spec.dataset} here than the run was created with",
                    hint=f"install {spec.package}=={spec.version}",
                )


def _training(spec: EnvironmentSpec) -> Source:
    every: Source = (
        taskfile.Dataset(spec, held_out=False) if spec.files else reasoning.Dataset(spec, spec.seed, spec.size)
    )
    return every if spec.kept is None else selection.Selected(every, spec)


def _held_out(spec: EnvironmentSpec) -> Source:
    return taskfile.Dataset(spec, held_out=True) if spec.files else reasoning.Dataset(spec, spec.held_out_seed, None)


def _problems(environment: int, source: Source, most: int) -> Any:
    for index in range(most):
        entry = source.entry(index)
        yield Problem(environment, index, source.prompt(entry), entry)


def head_digest(spec: EnvironmentSpec) -> str:
    """SHA-256 (hex) over the first problems of an environment, questions and answers."""
    source = _training(spec)
    entries = [source.entry(index) for index in range(min(_HEAD, spec.problems))]
    return hashlib.sha256(canonical.encode([[e["question"], str(e["answer"])] for e in entries])).hexdigest()
