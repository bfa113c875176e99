"""What every training does, wherever its rollouts come from: learn, checkpoint, hand the weights over, evaluate; again.

train.py learns from a run's swarm, solo.py from rollouts that this process makes itself. Writing a version and evaluating it go on
beside the next steps; answers are generated for it in a process of their own (node/engine/separate_engine.py), on the device that
[evaluation.engine] names. Order within a step: checkpoint before outbox, so that no step is ever handed over from weights that a crash
could change. Every phase has a deadline (phases.py), and a watchdog that ends the process when one is overrun. An evaluation that
fails, for its deadline, its process or its weights, is a missing point, and nothing else.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from node.engine import EngineSettings
from node.engine.separate_engine import SeparateEngine
from protocol import metrics
from protocol.clock import SYSTEM, Clock
from protocol.environments.assignment import mixture
from protocol.errors import DeadlineExceeded, IntegrityError, MurmurationError, Unavailable, UsageError
from protocol.exporter import Exporter
from protocol.runspec import AnswerSpec
from protocol.shell.signals import Ending
from protocol.tokenizer import Tokenizer
from trainer.config import Outputs, TrainSettings
from trainer.engines import EvaluationSettings
from trainer.evaluation.evaluate import Evaluation, Evaluator
from trainer.hub.outbox import Outbox
from trainer.learning import base, lora, randomness
from trainer.learning.checkpoint import Checkpoints
from trainer.learning.learner import Learner, StepMetrics, operations
from trainer.learning.ranks import Ranks
from trainer.loop.background import Job, Line
from trainer.loop.followers import Lead
from trainer.rollouts.counts import DataCounts
from trainer.rollouts.pool import TrainingGroup
from trainer.telemetry.phases import Phases
from trainer.telemetry.report import Report
from trainer.telemetry.watchdog import Watchdog

log = logging.getLogger("trainer")

_MISSED = metrics.counter(
    "murmur_trainer_evaluations_missed_total", "Evaluations that gave no result; the log says why."
)

_ENDING_SECONDS = 45.0  # for an evaluation whose deadline is over to end the process that computes
_STOPPING_SECONDS = 20.0  # for an evaluation that is under way when the trainer is told to stop


class Supply(Protocol):
    """Where batches come from, as far as the steps care."""

    counts: DataCounts
    trained_nodes: Counter[str]

    @property
    def cursor(self) -> list[list[object]]: ...

    def restore(self, cursor: list[list[object]]) -> None: ...

    def forget_before(self, step: int) -> None: ...


class Training(ABC):
    """One training, from `run` to the last step. On rank 0 of several; what the others do stands in followers.py."""

    _source: Supply
    _evaluator: Evaluator | None
    """None where nothing is held out."""

    def __init__(
        self, settings: TrainSettings, engine: EngineSettings, evaluation: EvaluationSettings, layout: Outputs, spec: AnswerSpec,
        stop: Ending, ranks: Ranks, *, exporter: Exporter | None = None, page_url: str | None = None, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        """`exporter` shows the trainer's metrics and is told of every change of phase; `page_url`: where its page is served."""
        settings.loss.require_logprobs(spec.sampling.logprobs)
        self._t = settings
        self._engine = engine
        self._layout = layout
        self._spec = spec
        self._stop = stop
        self._ranks = ranks
        self._clock = clock
        self._phases = Phases(clock) if exporter is None else Phases(clock, exporter.progress)
        metrics_url = None if exporter is None else exporter.url
        self._report = Report(self._t, layout, self._phases, metrics_url, clock, page_url=page_url)
        deadlines = self._t.deadlines
        self._publishing: Line[Path] = Line("publishing", self._phases, deadlines.publishing)
        self._evaluating: Line[tuple[int, Evaluation | None]] = Line(
            "evaluating", self._phases, deadlines.evaluating + _ENDING_SECONDS, fatal=False
        )
        self._separate = SeparateEngine(
            spec.model.compute_dtype, evaluation.engine.over(engine).of_run(spec.model), clock=clock
        )
        self._version: Job[Path] | None = None  # the newest that was handed over
        self._base = ""  # digest of the weights that the training began with
        self._step = 0
        self._saved = -1  # the step of the newest checkpoint that was written or restored
        self._mid_step = False  # the weights are those of no step

    @property
    def step(self) -> int:
        """Steps that were trained."""
        return self._step

    @property
    def saved(self) -> int | None:
        """The step of the newest checkpoint; None before the first."""
        return None if self._saved < 0 else self._saved

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Each with its `step` and `score`."""
        return self._report.evaluations

    def run(self, *, resume: bool | None) -> None:
        """Trains to the last step. Raises UsageError when `resume` does not fit what is on disk; None goes on with what is there, and begins where nothing is.

        A signal ends the start where it is, since nothing is lost by it; a training finishes its step, and saves it.
        """
        with (
            Watchdog(self._phases, self._layout.stacks, self._report.overrun, again=self._beginning[1]),
            metrics.REGISTRY.looking(self._phases.measure),
            closing(self._separate),
        ):
            with self._phases("starting", self._t.deadlines.starting):
                self._open(resume)
            with self._stop.finish_first():
                try:
                    self._train()
                    self._finish()
                except BaseException as error:  # whatever ends it: versions that are out should not have to be given up
                    if self._stop.is_set() and isinstance(error, Exception):  # the signal goes first
                        _tell_of(error, f"step {self._step} failed while the training was being stopped")
                    self._save_what_can_be(error)
                    raise
                finally:
                    self._lead.end()
                    self._report.close()

    def _train(self) -> None:
        while self._step < self._t.steps and not self._stop.is_set():
            self._phases.step = self._step
            batch = self._wait_for_batch()
            if batch is None:
                break
            with self._phases("training", self._t.deadlines.training):
                self._say("training")
                self._mid_step = True
                metrics = self._lead.learn([group.samples for group in batch], self._step)
            self._advance(batch, metrics)

    # ---- what differs ------------------------------------------------------------------------------------------------------

    _beginning: tuple[str, str]
    """The commands that begin, and that go on: for hints."""

    @abstractmethod
    def _open_world(self, *, begins: bool) -> None:
        """Whatever there is besides model and folders, before the model is loaded."""

    @abstractmethod
    def _open_rollouts(self) -> None:
        """Sets `_source` and `_evaluator`."""

    @abstractmethod
    def _next_step(self, saved: int) -> int:
        """The step that the weights of checkpoint `saved` go on with."""

    @abstractmethod
    def _wait_for_batch(self) -> list[TrainingGroup] | None:
        """The next batch; None when stopped."""

    @abstractmethod
    def _close_world(self) -> None: ...

    # ---- beginning and end ---------------------------------------------------------------------------------------------

    def _open(self, resume: bool | None) -> None:
        self._checkpoints = Checkpoints(
            self._layout.checkpoints, self._t.checkpoints_kept, keep_every=self._t.checkpoint_keep_every
        )
        found = self._checkpoints.newest()
        begin, go_on = self._beginning
        if found and resume is False:
            raise UsageError(f"{self._layout.checkpoints} holds a run in progress", hint=go_on)
        if resume and not found:
            raise UsageError(f"there is no checkpoint in {self._layout.checkpoints}", hint=begin)
        self._say("starting")
        if self._spec.environments:
            log.info("problems are drawn by the sizes of environments: %s", mixture(self._spec.environments))
        self._outbox = Outbox(self._layout.outgoing, self._layout.model)
        self._open_world(begins=not found)
        learner = Learner(self._layout.model, self._t, self._ranks, threads=self._engine.thread_count)
        learner.require_right()
        self._lead = Lead(learner)
        self._report.operations = operations(self._lead.model)
        self._open_rollouts()
        self._prepare_evaluation()
        if found:
            self._restore(*found)
        else:
            randomness.begin(self._t.seed)
            self._base = base.digest_of(self._layout.model)
            self._save()  # the first one too: what is handed over can always be made again
        self._report.open(self._saved, Tokenizer(self._layout.model))
        self._publish()
        if self._lacks_evaluation():
            self._evaluate()
        log.info("training from step %d to %d", self._step, self._t.steps)

    def _prepare_evaluation(self) -> None:
        """Raises what says that evaluation cannot work here with these settings. A process that is lost may not be, later on."""
        until = self._clock.monotonic() + self._t.deadlines.starting / 2
        try:
            with self._separate.within(lambda: until - self._clock.monotonic()):
                if self._evaluator is not None:
                    self._evaluator.load(self._layout.model)
        except Unavailable as error:
            log.warning("what evaluates is not ready: %s", _with_hint(error))

    def _restore(self, folder: Path, state: dict[str, Any]) -> None:
        if state["spec"] != self._spec.digest.hex():
            raise IntegrityError(f"{folder} belongs to a run with another spec or other tasks")
        lora.require_same(state["lora"], lora.identity(self._t), folder)
        self._base = state["base"]
        base.require_same(self._base, self._layout.model, self._t, folder)
        self._lead.restore(folder)
        self._source.restore(state["consumed"])
        self._saved = int(state["step"])
        self._step = self._next_step(self._saved)
        self._source.forget_before(self._step)
        self._source.counts.go_on_from(state["counts"])
        self._report.restore(state["evaluations"], int(state["trained_tokens"]), self._source.counts)
        log.info("resumed from %s", folder)

    def _lacks_evaluation(self) -> bool:
        """Whether the weights that a process begins with should have been evaluated: a checkpoint is older than its evaluation."""
        due = self._saved % self._t.evaluate_every == 0 or self._saved == self._t.steps
        return due and all(one["step"] != self._saved for one in self.evaluations)

    def _finish(self) -> None:
        finished = self._step >= self._t.steps
        if self._saved != self._step:
            self._save()
        self._publishing.finish()
        if finished:
            self._finish_evaluation()
        else:
            self._stop_evaluating()
        self._say("finished" if finished else "stopped")
        self._close_world()
        log.info("%s at step %d", "finished" if finished else "stopped", self._step)

    def _stop_evaluating(self) -> None:
        """Takes the result of an evaluation that is nearly done; one that is not is given up."""
        until = self._clock.monotonic() + _STOPPING_SECONDS
        while self._evaluating.is_busy and self._clock.monotonic() < until:
            self._clock.sleep(0.05)
        self._note_evaluation(self._evaluating.take())

    def _save_what_can_be(self, told: BaseException) -> None:
        """Saves the present step on the way out of `told`, which stays the error that ends the training."""
        try:
            self._publishing.finish()
            if not self._mid_step and self._saved != self._step:
                self._save()
        except Exception as error:  # noqa: BLE001
            if str(error) != str(told):  # a disk that is full is so once more
                _tell_of(error, f"step {self._step} could not be saved")

    # ---- a step --------------------------------------------------------------------------------------------------------

    def _advance(self, batch: list[TrainingGroup], metrics: StepMetrics) -> None:
        consumed_step, self._step, self._mid_step = self._step, self._step + 1, False
        self._report.step(consumed_step, batch, metrics, self._source.counts)
        self._hand_on()
        self._evaluate_if_due()

    def _hand_on(self) -> None:
        """The present weights become the version of the present step, and its checkpoint where one is due."""
        self._source.forget_before(self._step)
        self._publishing.finish()  # a checkpoint without all versions before it would leave a gap that nothing could fill
        if self._step % self._t.checkpoint_every == 0 or self._step == self._t.steps:
            self._save()
        self._publish()

    def _save(self) -> None:
        state = {
            "spec": self._spec.digest.hex(), "base": self._base, "lora": lora.identity(self._t), "consumed": self._source.cursor,
            "trained_tokens": self._report.trained_tokens, "evaluations": self._report.evaluations,
            "counts": self._report.counts.for_checkpoint(),
        }  # fmt: skip
        with self._phases("saving", self._t.deadlines.saving):
            self._say("saving")
            self._checkpoints.save(self._step, state, self._write_checkpoint)
        self._saved = self._step

    def _write_checkpoint(self, folder: Path) -> None:
        self._lead.save(folder)

    def _publish(self) -> None:
        """Hands the present weights over; they are written beside the next step."""
        with self._phases("snapshot", self._t.deadlines.publishing):
            step, weights = self._step, self._lead.snapshot()
        self._version = self._publishing.start(lambda: self._outbox.write(weights, step))

    def _evaluate_if_due(self) -> None:
        if self._step % self._t.evaluate_every == 0 or self._step == self._t.steps:
            self._evaluate()

    def _evaluate(self) -> None:
        """Starts evaluating the version that was handed over last; waits for the evaluation before it, up to its deadline."""
        evaluator = self._evaluator
        if evaluator is None:
            return
        assert self._version is not None
        self._finish_evaluation()
        step, version = self._step, self._version
        if self._evaluating.is_busy:
            _MISSED.add()
            log.warning("step %d is not evaluated: the evaluation before it does not end", step)
            return
        until = self._clock.monotonic() + self._t.deadlines.evaluating

        def left() -> float:
            return until - self._clock.monotonic()

        def score() -> tuple[int, Evaluation | None]:
            try:
                weights = version.result(self._t.deadlines.publishing)
                with self._separate.within(left):
                    return step, evaluator.evaluate(weights, left=left)
            except (MurmurationError, ValueError) as error:
                # No time, a process or a verifier that was lost, a version that retention has removed, weights that compute NaN.
                _MISSED.add()
                log.warning("step %d could not be evaluated: %s", step, _with_hint(error))
                return step, None

        self._evaluating.start(score)

    def _finish_evaluation(self) -> None:
        """Waits for the evaluation that runs; one that overruns its deadline is a missing point and ends nothing."""
        try:
            self._note_evaluation(self._evaluating.finish())
        except DeadlineExceeded as error:
            log.warning("%s; the training goes on without it", error)

    def _note_evaluation(self, found: tuple[int, Evaluation | None] | None) -> None:
        if found is not None and found[1] is not None:
            self._report.evaluated(found[0], found[1])

    def _say(self, state: str, **waiting: Any) -> None:
        self._report.say(state, self._step, getattr(self, "_source", None), **waiting)


def _tell_of(error: Exception, what: str) -> None:
    """Logs an error that does not end the training. Those of our own say what to do; of others one wants to see the place."""
    if isinstance(error, MurmurationError):
        log.error("%s: %s", what, _with_hint(error))
    else:
        log.error("%s", what, exc_info=error)


def _with_hint(error: Exception) -> str:
    hint = getattr(error, "hint", "")
    return f"{error} ({hint})" if hint else str(error)
