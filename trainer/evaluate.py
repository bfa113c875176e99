"""Evaluation on held-out problems, through the same engine as the nodes generate with.

One sample per problem from the run's distribution, with sampling keys that never change: differences between versions are the
weights', not the dice's.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from node.engine import Prompt, TorchEngine
from protocol import seeds
from protocol.environments import TaskSet
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from protocol.tokens import Tokens

_BATCH = 256


@dataclass(frozen=True)
class Evaluation:
    """Mean scores in [0, 1], over all `problems` and per environment (by dataset name)."""

    score: float
    by_environment: dict[str, float]
    problems: int
    tokens: int


class Evaluator:
    def __init__(self, spec: RunSpec, tasks: TaskSet, sandbox: Sandbox, *, threads: int) -> None:
        self._spec = spec
        self._tasks = tasks
        self._sandbox = sandbox
        self._engine = TorchEngine(spec.model.compute_dtype, threads=threads)

    def evaluate(self, folder: Path) -> Evaluation:
        """Scores the weights in `folder`."""
        self._engine.load(folder)
        tokens = Tokens(folder)
        seed = hashlib.sha256(b"murmuration/evaluation/1").digest()
        prompts = [
            Prompt(tokens.prompt(self._spec, problem.prompt, 0), (seeds.sampling_key(seeds.derive(seed, "sample", i)),))
            for i, problem in enumerate(self._tasks.held_out)
        ]
        completions = []
        for start in range(0, len(prompts), _BATCH):
            generated = self._engine.generate(
                prompts[start : start + _BATCH], **self._spec.sampling.distribution,
                max_new_tokens=self._spec.sampling.max_new_tokens, end_tokens=tokens.end_tokens, prove=False,
            )  # fmt: skip
            completions += [samples[0] for samples in generated]
        answers = [(i, tokens.answer(completion.tokens)) for i, completion in enumerate(completions)]
        scores = self._sandbox.score(answers, held_out=True)
        names = [self._tasks.specs[problem.environment].dataset for problem in self._tasks.held_out]
        by_environment = {
            name: _mean([score for score, of in zip(scores, names, strict=True) if of == name])
            for name in dict.fromkeys(names)
        }
        return Evaluation(_mean(scores), by_environment, len(scores), sum(len(c.tokens) for c in completions))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
