"""The training loop: wait for validated rollouts, learn, checkpoint, hand the weights over, evaluate; again.

    murmur trainer run @run.toml          murmur trainer resume @run.toml

This process holds no key. The hub's process (trainer/hub/service.py) signs, broadcasts and publishes what is put into the
outbox, while the next step trains already; the bound on staleness is what stops the trainer, not the network.
Order within a step: checkpoint before outbox, so that no step is ever published from weights that a crash could change.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

from protocol.chain import Chain
from protocol.chain.index import EventIndex
from protocol.environments import TaskSet
from protocol.errors import DeadlineExceeded, IntegrityError, MurmurationError, Unavailable, UsageError
from protocol.home import read_json, write_json
from protocol.hub import HubClient
from protocol.role import is_fatal
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from trainer.broadcast import Outbox
from trainer.checkpoint import Checkpoints
from trainer.config import Layout, RunSettings
from trainer.data import Bounds, Group, RolloutSource
from trainer.evaluate import Evaluator
from trainer.hub.process import HubProcess
from trainer.learner import Learner, StepMetrics

log = logging.getLogger("trainer")


class Trainer:
    """One run's training, from `start` to the last step. `hub` is the child process that faces the world."""

    def __init__(self, settings: RunSettings, layout: Layout, spec: RunSpec, hub: HubProcess, stop: Event) -> None:
        self._settings = settings
        self._t = settings.trainer
        self._layout = layout
        self._spec = spec
        self._hub = hub
        self._stop = stop
        self._status: dict[str, Any] = {"state": "starting", "evaluations": []}
        self._phases: Counter[str] = Counter()
        self._trained_tokens = 0
        self._run = settings.chain.run
        self._step = 0
        self._saved = -1  # the step of the newest checkpoint that was written or restored
        self._mid_step = False  # the weights are those of no step

    def run(self, *, resume: bool) -> None:
        """Trains to the last step. Raises UsageError when `resume` does not fit what is on disk."""
        with self._phase("starting"):
            self._open(resume)
        try:
            self._train()
        except BaseException:  # whatever ends the training: versions that are out should not have to be given up
            self._save_what_can_be()
            raise
        self._finish()

    def _train(self) -> None:
        while self._step < self._t.steps and not self._stop.is_set():
            batch = self._wait_for_batch()
            if batch is None:
                break
            with self._phase("training"):
                self._say("training")
                self._mid_step = True
                metrics = self._learner.learn([group.samples for group in batch], self._step)
            self._trained_tokens += metrics.tokens
            self._advance(batch, metrics)
            if self._step % self._t.evaluate_every == 0 or self._step == self._t.steps:
                self._evaluate()

    # ---- beginning and end ---------------------------------------------------------------------------------------------

    def _open(self, resume: bool) -> None:
        self._checkpoints = Checkpoints(self._layout.checkpoints, self._t.checkpoints_kept)
        found = self._checkpoints.newest()
        if found and not resume:
            raise UsageError(f"{self._layout.checkpoints} holds a run in progress", hint="murmur trainer resume")
        if resume and not found:
            raise UsageError(f"there is no checkpoint in {self._layout.checkpoints}", hint="murmur trainer run")
        self._say("starting")
        self._outbox = Outbox(self._layout.outgoing, self._layout.model)
        self._open_chain()
        if not found and (self._outbox.waiting() or self._chain.published(self._run)):
            raise IntegrityError(
                f"run {self._run} has published weights already, and no checkpoint of them is here",
                hint="bring the checkpoints back, or create a new run",
            )
        self._hub.start()
        tasks = TaskSet(self._spec.environments)
        tasks.require_same_problems()
        self._sandbox = Sandbox(self._spec)
        self._learner = Learner(self._layout.model, self._t)
        self._evaluator = Evaluator(self._spec, tasks, self._sandbox, threads=self._t.threads)
        self._source = self._open_source()
        if found:
            self._restore(*found)
        else:
            self._save()  # the first one too: what is published can always be made again
        self._outbox.put(self._learner.model, self._step)
        if not found:
            self._evaluate()
        log.info("training from step %d to %d", self._step, self._t.steps)

    def _open_chain(self) -> None:
        c = self._settings.chain
        self._chain = Chain(c.rpc, c.contract, timeout=c.timeout_seconds)
        self._chain.check(c.chain_id)
        if self._chain.spec_digest(self._run) != self._spec.digest:
            raise IntegrityError(
                f"spec.json is not the spec of run {self._run} on chain", hint="check chain.run in run.toml"
            )

    def _open_source(self) -> RolloutSource:
        c, config = self._settings.chain, self._learner.model.config
        index = EventIndex(self._chain, first_block=c.first_block, confirmations=c.confirmations)
        bounds = Bounds(int(config.vocab_size), int(config.max_position_embeddings))
        incoming = self._layout.output / "incoming"
        hub = self._hub_client(self._hub.wait_for_url())
        return RolloutSource(self._chain, self._run, self._spec, index, hub, self._sandbox, incoming, bounds)

    def _hub_client(self, url: str) -> HubClient:
        return HubClient(url, self._run, self._chain.domain)

    def _restore(self, folder: Path, state: dict[str, Any]) -> None:
        if state["spec"] != self._spec.digest.hex():
            raise IntegrityError(f"{folder} belongs to a run with another spec")
        self._learner.restore(folder)
        self._source.restore(state["consumed"])
        step = self._saved = int(state["step"])
        # Versions after the checkpoint are on chain or on their way there, for good: these weights come after them.
        self._step = max([step, self._chain.published(self._run) - 1, *self._outbox.waiting()])
        if self._step > step:
            log.warning("%d versions later than the checkpoint are given up", self._step - step)
            self._step += 1
        self._source.forget_before(self._step)
        self._trained_tokens = int(state["trained_tokens"])
        self._status["evaluations"] = state["evaluations"]
        log.info("resumed from %s", folder)

    def _finish(self) -> None:
        finished = self._step >= self._t.steps
        if self._saved != self._step:
            self._save()
        self._say("finished" if finished else "stopped")
        self._sandbox.close()
        log.info("%s at step %d", "finished" if finished else "stopped", self._step)

    def _save_what_can_be(self) -> None:
        """Saves the present step on the way out of an error, which stays the one that is told."""
        if self._mid_step or self._saved == self._step:
            return
        try:
            self._save()
        except Exception:
            log.exception("step %d could not be saved", self._step)

    # ---- a step --------------------------------------------------------------------------------------------------------

    def _wait_for_batch(self) -> list[Group] | None:
        """The next batch; None when stopped. Raises DeadlineExceeded when it does not fill in time."""
        needed, until = self._t.groups_per_step, time.monotonic() + self._t.rollout_wait_seconds
        with self._phase("waiting for rollouts"):
            while not self._stop.is_set():
                if url := self._hub.require_running():
                    self._source.hub = self._hub_client(url)
                try:
                    self._source.poll(wait=1)
                except MurmurationError as error:
                    if is_fatal(error):
                        raise
                    log.warning("%s; trying again", error)
                    self._stop.wait(1.0)
                batch = self._source.take(self._step, needed)
                if batch is not None:
                    return batch
                have = self._source.ready(self._step)
                self._say("waiting for rollouts", have=have, need=needed)
                if time.monotonic() > until:
                    raise DeadlineExceeded(
                        f"only {have} of {needed} groups in {self._t.rollout_wait_seconds:g} s",
                        hint="are nodes and validators working? see the hub's status",
                    )
        return None

    def _advance(self, batch: list[Group], metrics: StepMetrics) -> None:
        consumed_step, self._step, self._mid_step = self._step, self._step + 1, False
        self._write_metrics(consumed_step, batch, metrics)
        self._source.forget_before(self._step)
        with self._phase("saving"):
            self._say("saving")
            if self._step % self._t.checkpoint_every == 0 or self._step == self._t.steps:
                self._save()
            self._outbox.put(self._learner.model, self._step)

    def _save(self) -> None:
        state = {
            "spec": self._spec.digest.hex(), "consumed": self._source.cursor, "trained_tokens": self._trained_tokens,
            "evaluations": self._status["evaluations"],
        }  # fmt: skip
        self._checkpoints.save(self._step, state, self._learner.save)
        self._saved = self._step

    def _evaluate(self) -> None:
        with self._phase("evaluating"):
            self._say("evaluating")
            try:
                result = self._evaluator.evaluate(self._outbox.folder / str(self._step))
            except Unavailable as error:  # a verifier that hangs on some answer must not end the training
                log.warning("step %d could not be evaluated: %s", self._step, error)
                return
        self._status["evaluations"].append({"step": self._step, **asdict(result)})
        log.info("step %d: held-out score %.3f on %d problems", self._step, result.score, result.problems)

    # ---- telling -------------------------------------------------------------------------------------------------------

    def _write_metrics(self, step: int, batch: list[Group], metrics: StepMetrics) -> None:
        counts = self._source.counts
        recent = {
            "step": step, "time": time.time(), **asdict(metrics), "samples": counts.samples, "generated_tokens": counts.tokens,
            "reward": counts.reward / max(1, counts.samples), "groups": counts.groups, "equal_groups": counts.equal_groups,
            "stale_groups": counts.stale_groups, "staleness": sum(step - g.step for g in batch) / len(batch),
        }  # fmt: skip
        last = self._status.get("metrics", {})
        fresh = recent["samples"] - last.get("samples", 0)
        total = counts.reward - self._status.get("reward_sum", 0.0)
        recent["reward"] = total / fresh if fresh else last.get("reward", 0.0)
        self._status |= {"metrics": recent, "reward_sum": counts.reward}
        try:
            with self._layout.metrics.open("a") as file:
                file.write(json.dumps(recent) + "\n")
        except OSError as error:
            log.warning("the metrics of step %d could not be written: %s", step, error.strerror)
        if metrics.skipped:
            log.warning("step %d: %d optimizer steps had no finite gradient and were left out", step, metrics.skipped)
        log.info(
            "step %d: reward %.3f, entropy %.3f, gradient %.3f",
            step,
            recent["reward"],
            metrics.entropy,
            metrics.gradient_norm,
        )

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._phases[name] += time.monotonic() - started  # type: ignore[assignment]

    def _say(self, state: str, **more: Any) -> None:
        source = getattr(self, "_source", None)
        self._status |= {
            "state": state,
            "waiting": more or None,
            "step": self._step,
            "steps": self._t.steps,
        }
        self._status |= {"seconds": dict(self._phases), "trained_tokens": self._trained_tokens, "at": time.time()}
        if source is not None:
            c = source.counts
            self._status["data"] = {
                "samples": c.samples, "tokens": c.tokens, "groups": c.groups, "equal_groups": c.equal_groups,
                "stale_groups": c.stale_groups, "bad_receipts": c.bad_receipts, "bad_files": c.bad_files,
                "staleness": dict(c.staleness), "trained_nodes": dict(source.trained_nodes),
            }  # fmt: skip
        write_json(self._layout.status, self._status)


def read_status(layout: Layout) -> dict[str, Any]:
    """What the trainer last said; empty before its first word."""
    return read_json(layout.status) or {}
