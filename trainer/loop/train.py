"""The training loop: wait for validated rollouts, learn, checkpoint, hand the weights over, evaluate; again.

    murmur trainer run @run.toml          murmur trainer resume @run.toml

This process holds no key. Writing a version for the hub's process (trainer/hub/service.py), which signs, broadcasts and
publishes it, and evaluating it go on beside the next steps; the bound on staleness is what stops the trainer, not the network.
Order within a step: checkpoint before outbox, so that no step is ever published from weights that a crash could change.
Every phase has a deadline (phases.py), and a watchdog that ends the process when one is overrun. An evaluation that overruns
its own is a missing point, and nothing else.
"""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Event
from typing import Any

from protocol.chain.sync import Book
from protocol.clock import SYSTEM, Clock
from protocol.environments import TaskSet
from protocol.errors import DeadlineExceeded, IntegrityError, MurmurationError, UsageError
from protocol.exporter import Exporter
from protocol.hub.client import HubClient
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from protocol.shell.connection import is_fatal
from trainer.config import Layout, RunSettings
from trainer.evaluation.evaluate import Evaluation, Evaluator
from trainer.hub.outbox import Outbox
from trainer.hub.process import HubProcess
from trainer.learning import randomness
from trainer.learning.checkpoint import Checkpoints
from trainer.learning.learner import Learner, StepMetrics
from trainer.learning.ranks import Ranks
from trainer.loop.background import Job, Line
from trainer.loop.followers import Lead
from trainer.rollouts.data import RolloutSource
from trainer.rollouts.files import Bounds
from trainer.rollouts.pool import TrainingGroup
from trainer.telemetry.phases import Phases
from trainer.telemetry.report import Report
from trainer.telemetry.watchdog import Watchdog

log = logging.getLogger("trainer")

_STOPPING_SECONDS = 20.0  # for an evaluation that is under way when the trainer is told to stop


class Trainer:
    """One run's training, from `start` to the last step. `hub` is the child process that faces the world.

    On rank 0 of several; what the others do stands in followers.py.
    """

    def __init__(
        self, settings: RunSettings, layout: Layout, spec: RunSpec, hub: HubProcess, stop: Event, ranks: Ranks,
        *, exporter: Exporter | None = None, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        """`exporter` shows the trainer's metrics and is told of every change of phase."""
        settings.trainer.loss.require_logprobs(spec.sampling.logprobs)
        self._settings = settings
        self._t = settings.trainer
        self._layout = layout
        self._spec = spec
        self._hub = hub
        self._stop = stop
        self._ranks = ranks
        self._clock = clock
        self._phases = Phases(clock) if exporter is None else Phases(clock, exporter.progress)
        self._report = Report(self._t, layout, self._phases, None if exporter is None else exporter.url, clock)
        deadlines = self._t.deadlines
        self._publishing: Line[Path] = Line("publishing", self._phases, deadlines.publishing)
        self._evaluating: Line[tuple[int, Evaluation | None]] = Line(
            "evaluating", self._phases, deadlines.evaluating, fatal=False
        )
        self._version: Job[Path] | None = None  # the newest that was handed over
        self._run = settings.chain.run
        self._step = 0
        self._saved = -1  # the step of the newest checkpoint that was written or restored
        self._mid_step = False  # the weights are those of no step

    def run(self, *, resume: bool) -> None:
        """Trains to the last step. Raises UsageError when `resume` does not fit what is on disk."""
        with Watchdog(self._phases, self._layout.stacks, self._report.overrun):
            with self._phases("starting", self._t.deadlines.starting):
                self._open(resume)
            try:
                self._train()
                self._finish()
            except BaseException:  # whatever ends the training: versions that are out should not have to be given up
                self._save_what_can_be()
                raise
            finally:
                self._lead.end()
                self._report.close()

    def _train(self) -> None:
        while self._step < self._t.steps and not self._stop.is_set():
            batch = self._wait_for_batch()
            if batch is None:
                break
            with self._phases("training", self._t.deadlines.training):
                self._say("training")
                self._mid_step = True
                metrics = self._lead.learn([group.samples for group in batch], self._step)
            self._advance(batch, metrics)

    # ---- beginning and end ---------------------------------------------------------------------------------------------

    def _open(self, resume: bool) -> None:
        self._checkpoints = Checkpoints(
            self._layout.checkpoints, self._t.checkpoints_kept, keep_every=self._t.checkpoint_keep_every
        )
        found = self._checkpoints.newest()
        if found and not resume:
            raise UsageError(f"{self._layout.checkpoints} holds a run in progress", hint="murmur trainer resume")
        if resume and not found:
            raise UsageError(f"there is no checkpoint in {self._layout.checkpoints}", hint="murmur trainer run")
        self._say("starting")
        self._outbox = Outbox(self._layout.outgoing, self._layout.model)
        self._open_chain()
        if not found and (self._outbox.waiting() or self._published()):
            raise IntegrityError(
                f"run {self._run} has published weights already, and no checkpoint of them is here",
                hint="bring the checkpoints back, or create a new run",
            )
        self._hub.start()
        self._sandbox = Sandbox(self._spec)
        scoring = Sandbox(self._spec)  # of its own: while it scores, rollouts must go on being read
        tasks = TaskSet(self._spec.environments, scoring)
        tasks.require_same_problems()
        self._lead = Lead(Learner(self._layout.model, self._t, self._ranks, threads=self._settings.engine.thread_count))
        self._report.parameters = sum(p.numel() for p in self._lead.model.parameters())
        self._evaluator = Evaluator(self._spec, tasks, scoring, self._settings.engine)
        self._source = self._open_source()
        if found:
            self._restore(*found)
        else:
            randomness.begin(self._t.seed)
            self._save()  # the first one too: what is published can always be made again
        self._report.open(self._step)
        self._publish()
        if not found:
            self._evaluate()
        log.info("training from step %d to %d", self._step, self._t.steps)

    def _open_chain(self) -> None:
        c = self._settings.chain
        self._chain = c.open()
        if self._chain.spec_digest(self._run) != self._spec.digest:
            raise IntegrityError(
                f"spec.json is not the spec of run {self._run} on chain", hint="check chain.run in run.toml"
            )
        path = self._layout.output / "chain.sqlite"
        self._book = Book(self._chain, self._run, path, first_block=c.first_block, confirmations=c.confirmations)
        self._book.poll()

    def _published(self) -> int:
        """Versions on chain at the head, without confirmations; no single endpoint decides where the training goes on."""
        return self._book.ask(lambda one, at: one.published(self._run, at=at), "the number of versions")

    def _open_source(self) -> RolloutSource:
        config = self._lead.model.config
        bounds = Bounds(int(config.vocab_size), int(config.max_position_embeddings))
        incoming = self._layout.output / "incoming"
        hub = self._hub_client(self._hub.wait_for_url())
        return RolloutSource(
            self._chain,
            self._run,
            self._spec,
            self._book,
            hub,
            self._sandbox,
            incoming,
            bounds,
            node_share=self._t.node_share,
            online_filter=self._t.online_filter,
            clock=self._clock,
        )

    def _hub_client(self, url: str) -> HubClient:
        return HubClient(url, self._run, self._chain.domain)

    def _restore(self, folder: Path, state: dict[str, Any]) -> None:
        if state["spec"] != self._spec.digest.hex():
            raise IntegrityError(f"{folder} belongs to a run with another spec")
        self._lead.restore(folder)
        self._source.restore(state["consumed"])
        step = self._saved = int(state["step"])
        # Versions after the checkpoint are on chain or on their way there, for good: these weights come after them.
        self._step = max([step, self._published() - 1, *self._outbox.waiting()])
        if self._step > step:
            log.warning("%d versions later than the checkpoint are given up", self._step - step)
            self._step += 1
        self._source.forget_before(self._step)
        self._report.restore(state["evaluations"], int(state["trained_tokens"]))
        log.info("resumed from %s", folder)

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
        self._sandbox.close()
        self._book.close()
        log.info("%s at step %d", "finished" if finished else "stopped", self._step)

    def _stop_evaluating(self) -> None:
        """Takes the result of an evaluation that is nearly done; one that is not is given up."""
        until = self._clock.monotonic() + _STOPPING_SECONDS
        while self._evaluating.is_busy and self._clock.monotonic() < until:
            self._clock.sleep(0.05)
        self._note_evaluation(self._evaluating.take())

    def _save_what_can_be(self) -> None:
        """Saves the present step on the way out of an error, which stays the one that is told."""
        try:
            self._publishing.finish()
            if not self._mid_step and self._saved != self._step:
                self._save()
        except Exception:
            log.exception("step %d could not be saved", self._step)

    # ---- a step --------------------------------------------------------------------------------------------------------

    def _wait_for_batch(self) -> list[TrainingGroup] | None:
        """The next batch; None when stopped. Raises DeadlineExceeded when it does not fill in time."""
        needed, started = self._t.groups_per_step, self._clock.monotonic()
        until = started + self._t.rollout_wait_seconds
        before, risen = 0, started  # groups at the last look, and when they last grew more
        withheld: float | None = None  # since when a batch is full but for the cap per node
        with self._phases("waiting for rollouts", self._t.rollout_wait_seconds + self._t.deadlines.polling):
            while not self._stop.is_set():
                self._note_evaluation(self._evaluating.take())
                self._poll()
                now, have = self._clock.monotonic(), self._source.ready(self._step)
                risen = now if have > before else risen
                before = have
                if self._t.fewest_groups <= have < needed and now >= risen + self._t.rollout_quiet_seconds:
                    log.warning("step %d: no new group for %.0f s; goes on with %d", self._step, now - risen, have)
                    needed = have
                patient = withheld is None or now < withheld + self._t.node_share_wait_seconds
                batch = self._source.take(self._step, needed, uncapped=not patient)
                if batch is not None:
                    return batch
                withheld = (withheld or now) if have >= needed else None
                reason = "waiting for other nodes" if withheld else "waiting for rollouts"
                self._say(reason, have=have, need=needed, seconds=round(now - started, 1))
                if now > until:
                    raise DeadlineExceeded(
                        f"only {have} of {needed} groups in {self._t.rollout_wait_seconds:g} s",
                        hint="are nodes and validators working? see the hub's status",
                    )
        return None

    def _poll(self) -> None:
        """One look at chain and hub. What may pass is waited for."""
        try:
            if url := self._hub.require_running():
                self._source.hub = self._hub_client(url)
            self._source.poll(wait=1)
        except MurmurationError as error:
            if is_fatal(error):
                raise
            log.warning("%s; trying again", error)
            self._clock.wait(self._stop, 1.0)

    def _advance(self, batch: list[TrainingGroup], metrics: StepMetrics) -> None:
        consumed_step, self._step, self._mid_step = self._step, self._step + 1, False
        self._report.step(consumed_step, batch, metrics, self._source.counts)
        self._source.forget_before(self._step)
        self._publishing.finish()  # a checkpoint without all versions before it would leave a gap that nothing could fill
        last = self._step == self._t.steps
        if self._step % self._t.checkpoint_every == 0 or last:
            self._save()
        self._publish()
        if self._step % self._t.evaluate_every == 0 or last:
            self._evaluate()

    def _save(self) -> None:
        state = {
            "spec": self._spec.digest.hex(), "consumed": self._source.cursor,
            "trained_tokens": self._report.trained_tokens, "evaluations": self._report.evaluations,
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

    def _evaluate(self) -> None:
        """Starts evaluating the version that was handed over last; waits for the evaluation before it, up to its deadline."""
        assert self._version is not None
        self._finish_evaluation()
        step, version = self._step, self._version
        if self._evaluating.is_busy:
            log.warning("step %d is not evaluated: the evaluation before it does not end", step)
            return
        until = self._clock.monotonic() + self._t.deadlines.evaluating

        def score() -> tuple[int, Evaluation | None]:
            try:
                weights = version.result(self._t.deadlines.publishing)
                return step, self._evaluator.evaluate(weights, left=lambda: until - self._clock.monotonic())
            except (MurmurationError, ValueError) as error:  # no time, a verifier that hangs, weights that compute NaN
                log.warning("step %d could not be evaluated: %s", step, error)
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
