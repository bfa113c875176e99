"""Evaluation on held-out problems, through the same engine as the nodes generate with.

One sample per problem from the run's distribution, with sampling keys and length budgets that never change: differences between
versions are the weights', not the dice's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.engine import EngineSettings, Generator, Prompt
from node.engine.checked_engine import CheckedEngine
from node.engine.samples import answer, completed
from protocol import length_rewards, seeds
from protocol.environments import Grader, Problem, Tasks
from protocol.errors import DeadlineExceeded
from protocol.runspec import AnswerSpec
from protocol.tokenizer import Tokenizer
from trainer.rollouts.counts import names_of

_BATCH = 256
_SEED = hashlib.sha256(b"murmuration/evaluation/1").digest()


@dataclass(frozen=True)
class Scored:
    """One answer: its task reward in [0, 1], completion tokens, and the budget that was announced (0: none)."""

    score: float
    tokens: int
    budget: int
    off: int = 0
    """Tokens that it is off the budget, as far as they cost (protocol/length_rewards.py)."""


@dataclass(frozen=True)
class Evaluation:
    """Mean scores in [0, 1], over all `problems` and per environment."""

    score: float
    by_environment: dict[str, float]
    problems: int
    tokens: int
    length_error: float | None = None
    """Mean tokens off the budget; None where no budget was announced."""


class Evaluator:
    def __init__(
        self, spec: AnswerSpec, tasks: Tasks, grader: Grader, engine: Generator | EngineSettings | None = None
    ) -> None:
        """`engine`: one to generate with, in a process of its own perhaps; or the settings of one that is made here."""
        self._spec = spec
        self._tasks = tasks
        self._grader = grader
        made: CheckedEngine | Generator  # a process of its own checks itself
        if engine is None or isinstance(engine, EngineSettings):
            made = CheckedEngine.of_run(engine or EngineSettings(), spec.model)
            engine = made.engine
        else:
            made = engine
        self._engine: Generator = engine
        self._load = made.load
        names = names_of(tasks.datasets)
        self.names = [names[problem.environment] for problem in tasks.held_out]
        """The environment of each held-out problem."""

    def load(self, folder: Path) -> None:
        """Makes the engine's model of these weights and checks it, before the first evaluation: what cannot be computed here is found out
        at once."""
        self._load(folder)

    def evaluate(self, folder: Path, *, left: Callable[[], float] = lambda: float("inf")) -> Evaluation:
        """Scores the weights in `folder`, one sample per problem.

        `left`: seconds that there are; looked at between batches. Raises DeadlineExceeded when they are over.
        """

        def in_time(done: int) -> None:
            if left() <= 0:
                raise DeadlineExceeded(f"the time was over after {done} of {len(self.names)} problems")

        scored = [samples[0] for samples in self._score(folder, 1, in_time)]
        by_environment = {
            name: _mean([one.score for one, of in zip(scored, self.names, strict=True) if of == name])
            for name in dict.fromkeys(self.names)
        }
        score, tokens = _mean([one.score for one in scored]), sum(one.tokens for one in scored)
        return Evaluation(score, by_environment, len(scored), tokens, length_error(scored))

    def scores(
        self, folder: Path, samples: int, progress: Callable[[int], object] = lambda _: None
    ) -> list[list[Scored]]:
        """`samples` answers to each held-out problem; `progress` is told how many problems are done."""
        return self._score(folder, samples, progress)

    def _score(self, folder: Path, samples: int, progress: Callable[[int], object]) -> list[list[Scored]]:
        self.load(folder)
        sampler = Sampler(self._spec, self._engine, Tokenizer(folder), self._grader)
        scored: list[list[Scored]] = []
        size = max(1, _BATCH // samples)
        for start in range(0, len(self._tasks.held_out), size):
            scored += sampler.try_problems(self._tasks.held_out[start : start + size], samples, _SEED, held_out=True)
            progress(len(scored))
        return scored


class Sampler:
    """Scored answers of a loaded engine, with keys and budgets derived from a seed, the problem's number and the sample's."""

    def __init__(self, spec: AnswerSpec, engine: Generator, tokenizer: Tokenizer, grader: Grader) -> None:
        self._spec = spec
        self._engine = engine
        self._tokenizer = tokenizer
        self._grader = grader

    def try_problems(
        self, problems: Sequence[Problem], samples: int, seed: bytes, *, held_out: bool = False
    ) -> list[list[Scored]]:
        """`samples` answers to each of these problems, held-out ones or of the training. Each announces a budget, as in training."""
        rewards = [self._spec.reward_of(problem.environment) for problem in problems]
        budgets = [length_rewards.draw(of, seed, p.index) for p, of in zip(problems, rewards, strict=True)]
        asked = [
            Prompt(
                self._tokenizer.prompt(self._spec, problem, budget),
                tuple(_key(seed, problem.index, k) for k in range(samples)),
            )
            for problem, budget in zip(problems, budgets, strict=True)
        ]
        if not asked:
            return []
        generated, _ = completed(
            self._spec, self._engine, self._tokenizer, self._grader, asked, problems, prove=False, held_out=held_out
        )
        made = [(i, completion) for i, of in enumerate(generated) for completion in of]
        answers = [(problems[i].index, answer(self._tokenizer, self._grader, one)) for i, one in made]
        scores = self._grader.score(answers, held_out=held_out)
        flat = [
            Scored(score, len(one.tokens), budgets[i], length_rewards.off(rewards[i], budgets[i], len(one.tokens)))
            for (i, one), score in zip(made, scores, strict=True)
        ]
        return [flat[i : i + samples] for i in range(0, len(flat), samples)]


def length_error(scored: Iterable[Scored]) -> float | None:
    """Mean tokens off the budget of the answers that had one; None where none had."""
    errors = [float(one.off) for one in scored if one.budget]
    return _mean(errors) if errors else None


def _key(seed: bytes, problem: int, sample: int) -> int:
    indices = (problem, sample) if sample else (problem,)
    return seeds.sampling_key(seeds.derive(seed, "sample", *indices))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
