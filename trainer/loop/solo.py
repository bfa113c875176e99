"""A training on one machine: no chain, no keys, no hub, no validators.

    murmur trainer solo MODEL TASKS --reward my_file.py:reward          murmur trainer solo @run.toml

This process generates with the weights that were handed over `staleness` steps ago, grades, and learns; what a step consists of,
checkpoints, evaluation in a process of its own and metrics are those of every training (training.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from protocol.clock import SYSTEM, Clock
from protocol.exporter import Exporter
from protocol.rollout import Sample
from protocol.shell.signals import Ending
from protocol.tokenizer import Tokenizer
from trainer.config import Outputs, SoloSettings
from trainer.evaluation.evaluate import Evaluator
from trainer.learning.learner import StepMetrics
from trainer.learning.ranks import Ranks
from trainer.loop.training import Training
from trainer.rollouts.counts import DataCounts, names_of
from trainer.rollouts.local import Batches, LocalGeneration, version_for
from trainer.rollouts.pool import TrainingGroup
from trainer.rollouts.questions import Questions
from trainer.rollouts.reward_function import RewardError
from trainer.telemetry.samples import Shown

Look = Callable[[int, Sequence[Shown]], None]


class Solo(Training):
    _source: _Local

    def __init__(
        self, settings: SoloSettings, layout: Outputs, questions: Questions, stop: Ending, ranks: Ranks,
        *, look: Look = lambda *_: None, exporter: Exporter | None = None, page_url: str | None = None, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        """`look` is shown the samples of the first step and of every step that is evaluated."""
        spec, trainer = questions.spec, settings.trainer
        super().__init__(
            trainer, settings.engine, settings.evaluation, layout, spec, stop, ranks, exporter=exporter,
            page_url=page_url, clock=clock,
        )  # fmt: skip
        command = f"murmur trainer solo @{layout.file}"
        self._beginning = command, f"{command} --resume"
        self._questions = questions
        self._staleness = settings.solo.staleness
        self._look = look

    # ---- beginning and end ---------------------------------------------------------------------------------------------

    def _open_world(self, *, begins: bool) -> None:
        if begins:  # of a life that saved nothing
            self._outbox.remove_after(-1)
        if self._questions.tasks.held_out:
            self._separate.begin()

    def _open_rollouts(self) -> None:
        q, tokenizer = self._questions, Tokenizer(self._layout.model)
        self._generation = LocalGeneration(q.spec, q.tasks, q.grader, tokenizer, self._engine, self._t.seed)
        self._generation.load(self._layout.model)
        self._batches = Batches(
            self._generation, q.spec.sampling.group_size, tokenizer.end_tokens, online_filter=self._t.online_filter,
            names=names_of(q.tasks.datasets), environment=self._environment, reward_of=q.spec.reward_of,
        )  # fmt: skip
        self._source = _Local(self._batches.counts)
        self._evaluator = Evaluator(q.spec, q.tasks, q.grader, self._separate) if q.tasks.held_out else None

    def _environment(self, sample: Sample) -> int:
        return self._questions.tasks.problems([sample.problem])[0].environment

    def _next_step(self, saved: int) -> int:
        self._outbox.remove_after(saved)  # what a life that was not saved had handed over
        return saved

    def _close_world(self) -> None:
        """Whoever opened the questions closes them."""

    # ---- a step --------------------------------------------------------------------------------------------------------

    def _wait_for_batch(self) -> list[TrainingGroup] | None:
        """Makes the next batch; None when stopped. Raises NothingToLearn, RewardError."""
        self._note_evaluation(self._evaluating.take())
        self._publishing.finish()
        if not self._evaluating.is_busy:  # it may read any of them
            self._outbox.keep_only({*self._versions_for(self._step), *self._versions_for(self._saved)})
        version, needed = version_for(self._step, self._staleness, self._outbox.folder), self._t.groups_per_step
        with self._phases("generating", self._t.rollout_wait_seconds):
            self._generation.load(self._outbox.folder / str(version))
            try:
                found = self._batches.collect(
                    self._step, needed, version=version, least=self._t.fewest_groups, stop=self._stop,
                    progress=lambda have: self._say("generating", have=have, need=needed),
                )  # fmt: skip
            except RewardError as error:
                raise RewardError(f"step {self._step}: {error}", hint=f"mend it, then: {self._beginning[1]}") from error
        return None if found is None else found[0]

    def _versions_for(self, step: int) -> range:
        """Those that steps from `step` on are made with, as far as they are there by then."""
        return range(step - self._staleness, step + 1)

    def _advance(self, batch: list[TrainingGroup], metrics: StepMetrics) -> None:
        super()._advance(batch, metrics)
        if self._step == 1 or self._step % self._t.evaluate_every == 0 or self._step == self._t.steps:
            self._look(self._step - 1, self._report.shown)


class _Local:
    """A `Supply`: nothing is left over from one step to the next."""

    def __init__(self, counts: DataCounts) -> None:
        self.counts = counts
        self.trained_nodes: Counter[str] = Counter()
        self.cursor: list[list[object]] = []

    def restore(self, cursor: list[list[object]]) -> None:
        """The seed and the step say which problems come next."""

    def forget_before(self, step: int) -> None:
        """No rollout is kept."""


def result(evaluations: Sequence[dict[str, Any]], layout: Outputs, step: int) -> list[str]:
    """What a person reads at the end: how it went, and the commands that go on from there."""
    checkpoint = _from_here(layout.checkpoints / f"step_{step}")
    lines = []
    if len(evaluations) > 1:
        first, last = evaluations[0], evaluations[-1]
        lines.append(
            f"held-out score {first['score']:.3f} at step {first['step']}, {last['score']:.3f} at step {last['step']}"
        )
    return [
        *lines,
        f"checkpoint       {checkpoint}",
        f"compare          murmur trainer eval {checkpoint}",
        f"take away        murmur trainer export {checkpoint} my-model",
    ]


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
