"""Evaluation on held-out problems, through the same engine as the nodes generate with.

One sample per problem from the run's distribution, with sampling keys that never change: differences between versions are the
weights', not the dice's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.engine import EngineSettings, Generator, Prompt, make_engine
from protocol import seeds
from protocol.environments import TaskSet
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from protocol.tokenizer import Tokenizer
from trainer.rollouts.counts import names_of

_BATCH = 256
_SEED = hashlib.sha256(b"murmuration/evaluation/1").digest()


@dataclass(frozen=True)
class Evaluation:
    """Mean scores in [0, 1], over all `problems` and per environment."""

    score: float
    by_environment: dict[str, float]
    problems: int
    tokens: int


class Evaluator:
    def __init__(self, spec: RunSpec, tasks: TaskSet, sandbox: Sandbox, engine: EngineSettings | None = None) -> None:
        self._spec = spec
        self._tasks = tasks
        self._sandbox = sandbox
        self._engine = make_engine(engine or EngineSettings(), spec.model.compute_dtype)
        names = names_of(environment.dataset for environment in tasks.specs)
        self.names = [names[problem.environment] for problem in tasks.held_out]
        """The environment of each held-out problem."""

    def evaluate(self, folder: Path) -> Evaluation:
        """Scores the weights in `folder`, one sample per problem."""
        scored, tokens = self._score(folder, 1, None)
        scores = [samples[0] for samples in scored]
        by_environment = {
            name: _mean([score for score, of in zip(scores, self.names, strict=True) if of == name])
            for name in dict.fromkeys(self.names)
        }
        return Evaluation(_mean(scores), by_environment, len(scores), tokens)

    def scores(self, folder: Path, samples: int, progress: Callable[[int], object] | None = None) -> list[list[float]]:
        """`samples` scores for each held-out problem; `progress` is told how many problems are done."""
        return self._score(folder, samples, progress)[0]

    def _score(
        self, folder: Path, samples: int, progress: Callable[[int], object] | None
    ) -> tuple[list[list[float]], int]:
        self._engine.load(folder)
        sampler = Sampler(self._spec, self._engine, Tokenizer(folder))
        scores: list[list[float]] = []
        total = 0
        size = max(1, _BATCH // samples)
        for start in range(0, len(self._tasks.held_out), size):
            problems = self._tasks.held_out[start : start + size]
            prompts = [(start + i, problem.prompt) for i, problem in enumerate(problems)]
            answers, tokens = sampler.answers_to(prompts, samples, _SEED)
            flat = [(start + i, answer) for i, of in enumerate(answers) for answer in of]
            rewards = self._sandbox.score(flat, held_out=True)
            scores += [rewards[i : i + samples] for i in range(0, len(rewards), samples)]
            total += tokens
            if progress is not None:
                progress(len(scores))
        return scores, total


class Sampler:
    """Answers of a loaded engine to prompts, with keys derived from a seed, the prompt's number and the sample's."""

    def __init__(self, spec: RunSpec, engine: Generator, tokenizer: Tokenizer) -> None:
        self._spec = spec
        self._engine = engine
        self._tokenizer = tokenizer

    def answers_to(
        self, prompts: Sequence[tuple[int, str]], samples: int, seed: bytes
    ) -> tuple[list[list[str | None]], int]:
        """`samples` answers to each (number, prompt), and the tokens of all of them."""
        asked = [
            Prompt(self._tokenizer.prompt(self._spec, text, 0), tuple(_key(seed, number, k) for k in range(samples)))
            for number, text in prompts
        ]
        generated = self._engine.generate(
            asked, **self._spec.sampling.distribution,
            max_new_tokens=self._spec.sampling.max_new_tokens, end_tokens=self._tokenizer.end_tokens, prove=False,
        )  # fmt: skip
        answers = [[self._tokenizer.answer(completion.tokens) for completion in of] for of in generated]
        return answers, sum(len(completion.tokens) for of in generated for completion in of)


def _key(seed: bytes, problem: int, sample: int) -> int:
    indices = (problem, sample) if sample else (problem,)
    return seeds.sampling_key(seeds.derive(seed, "sample", *indices))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
