"""The training loop of a run: wait for validated rollouts, learn, checkpoint, hand the weights over, evaluate; again.

    murmur trainer run @run.toml          murmur trainer resume @run.toml

This process holds no key. The hub's process (trainer/hub/service.py) signs, broadcasts and publishes what is handed over; the bound on
staleness is what stops the trainer, not the network. What a step consists of is training.py's.

A version is worked on by seats that were there before it, and each makes only so many submissions of it. Where no more can come and the
batch has too few groups, the same weights become the next version: whoever took a seat since and whoever was done may work on it, and
groups of the versions before still count, up to the run's `max_lag`. Each costs a step and its work its wages. So there are `max_lag` + 1 of
them in a row at most while no group comes, `rollout_quiet_seconds` apart, and one for each seat that nobody has waited for; never the last.
"""

from __future__ import annotations

import logging

from node.engine import lengths
from protocol.chain.sync import Book
from protocol.clock import SYSTEM, Clock
from protocol.environments import TaskSet
from protocol.errors import DeadlineExceeded, IntegrityError, MurmurationError
from protocol.exporter import Exporter
from protocol.hub.client import HubClient
from protocol.hub.need import RENEWED_SECONDS
from protocol.hub.wire import TryAgain
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from protocol.shell.connection import is_fatal
from protocol.shell.home import write_json
from protocol.shell.signals import Ending
from protocol.tokenizer import Tokenizer
from trainer.config import Layout, RunSettings
from trainer.evaluation.evaluate import Evaluator
from trainer.hub.process import HubProcess
from trainer.learning.ranks import Ranks
from trainer.loop.repetition import Repetition
from trainer.loop.training import Training
from trainer.rollouts.data import RolloutSource
from trainer.rollouts.files import Bounds
from trainer.rollouts.pool import TrainingGroup
from trainer.rollouts.workforce import Workforce

log = logging.getLogger("trainer")


class Trainer(Training):
    """One run's training. `hub` is the child process that faces the world."""

    _beginning = "murmur trainer run", "murmur trainer resume"
    _spec: RunSpec
    _layout: Layout
    _source: RolloutSource

    def __init__(
        self, settings: RunSettings, layout: Layout, spec: RunSpec, hub: HubProcess, stop: Ending, ranks: Ranks,
        *, exporter: Exporter | None = None, page_url: str | None = None, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        super().__init__(
            settings.trainer, settings.engine, settings.evaluation, layout, spec, stop, ranks, exporter=exporter,
            page_url=page_url, clock=clock,
        )  # fmt: skip
        self._settings = settings
        self._hub = hub
        self._run = settings.chain.run
        self._told: dict[str, int] = {}
        self._told_at = 0.0
        self._again: Repetition | None = None  # while a batch is waited for

    # ---- beginning and end ---------------------------------------------------------------------------------------------

    def _open_world(self, *, begins: bool) -> None:
        self._open_chain()
        self._separate.begin()
        if begins and (self._outbox.waiting() or self._published()):
            raise IntegrityError(
                f"run {self._run} has published weights already, and no checkpoint of them is here",
                hint="bring the checkpoints back, or create a new run",
            )
        self._layout.need.unlink(missing_ok=True)  # what an earlier life needed
        self._hub.start()
        self._sandbox = Sandbox(self._spec)
        self._scoring = Sandbox(self._spec)  # of its own: while it scores, rollouts must go on being read
        self._tasks = TaskSet(self._spec.environments, self._scoring)
        self._tasks.require_same_problems()

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

    def _open_rollouts(self) -> None:
        self._evaluator = Evaluator(self._spec, self._tasks, self._scoring, self._separate)
        self._source = self._open_source()

    def _open_source(self) -> RolloutSource:
        config = self._lead.model.config
        bounds = Bounds(int(config.vocab_size), lengths.positions(config))
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
            end_tokens=Tokenizer(self._layout.model).end_tokens,
            node_share=self._t.node_share,
            online_filter=self._t.online_filter,
            poll_seconds=self._settings.chain.poll_seconds,
            clock=self._clock,
        )

    def _hub_client(self, url: str) -> HubClient:
        return HubClient(url, self._run, self._chain.domain)

    def _next_step(self, saved: int) -> int:
        # Versions after the checkpoint are on chain or on their way there, for good: these weights come after them.
        step = max([saved, self._published() - 1, *self._outbox.waiting()])
        if step > saved:
            log.warning("%d versions later than the checkpoint are given up", step - saved)
            step += 1
        return step

    def _close_world(self) -> None:
        self._sandbox.close()
        self._book.close()

    # ---- a step --------------------------------------------------------------------------------------------------------

    def _wait_for_batch(self) -> list[TrainingGroup] | None:
        """The next batch; None when stopped. Raises DeadlineExceeded when it does not fill in time; while nobody has a seat, no time passes."""
        needed, started = self._t.groups_per_step, self._clock.monotonic()
        until = started + self._t.rollout_wait_seconds
        before, risen = 0, started  # groups at the last look, and when they last grew more
        withheld: float | None = None  # since when a batch is full but for the cap per node
        again = self._again = Repetition(self._spec.max_lag + 1)
        with self._phases("waiting for rollouts", self._t.rollout_wait_seconds + self._t.deadlines.polling) as phase:
            while not self._stop.is_set():
                self._note_evaluation(self._evaluating.take())
                self._poll()
                now, have = self._clock.monotonic(), self._source.ready(self._step)
                seats = self._source.workforce(self._step)
                risen = now if have > before else risen
                before = have
                if not self._source.has_seats:
                    until = now + self._t.rollout_wait_seconds
                    phase.deadline = until - phase.started + self._t.deadlines.polling
                again.look(self._step, have, seats, now)
                is_quiet = now >= risen + self._t.rollout_quiet_seconds
                is_spent = seats is not None and seats.is_spent
                if self._t.fewest_groups <= have < needed and (is_quiet or is_spent):
                    why = f"no more can come of it: {seats}" if is_spent else f"no new group for {now - risen:.0f} s"
                    log.warning("step %d: %s; goes on with %d groups", self._step, why, have)
                    needed = have
                patient = not is_spent and (withheld is None or now < withheld + self._t.node_share_wait_seconds)
                batch = self._source.take(self._step, needed, uncapped=not patient)
                self._tell_need(self._step + (batch is not None))
                if batch is not None:
                    return batch
                withheld = (withheld or now) if have >= needed else None
                self._say(self._what_it_waits_for(withheld), have=have, need=needed, seconds=round(now - started, 1))
                if now > until:
                    raise self._in_vain(have, needed)
                is_due = now >= max(risen, again.since) + self._t.rollout_quiet_seconds
                if (
                    have < needed
                    and self._step + 1 < self._t.steps
                    and seats is not None
                    and again.may(seats, is_due=is_due)
                ):
                    again.note(self._step, seats)
                    self._publish_again(seats, have)
                    risen = self._clock.monotonic()
        return None

    def _publish_again(self, seats: Workforce, have: int) -> None:
        """The present weights become the next version too."""
        log.warning(
            "no more can come of version %d (%s), with %d groups where %d are the fewest: the same weights are published as version %d",
            self._step, seats, have, self._t.fewest_groups, self._step + 1,
        )  # fmt: skip
        self._step += 1
        self._phases.step = self._step
        self._hand_on()
        if not self._evaluating.is_busy:  # the wait for rollouts is no time to wait for another
            self._evaluate_if_due()

    def _what_it_waits_for(self, withheld: float | None) -> str:
        if withheld is not None:
            return "waiting for other nodes"
        if not self._source.has_seats:
            return "waiting for a node to take a seat"
        if self._again is not None and self._again.version is not None:
            return f"no more can come of version {self._again.version}: waiting for rollouts of the same weights as version {self._step}"
        return "waiting for rollouts"

    def _in_vain(self, have: int, needed: int) -> DeadlineExceeded:
        hint = "are nodes and validators working? see the hub's status"
        if self._again is not None and self._again.version is not None:
            hint = "nodes make all they may, and too little of it teaches: see dropped groups in `murmur trainer status`; lower trainer.groups_least, or begin a run with other tasks or a higher max_per_step"
        return DeadlineExceeded(f"only {have} of {needed} groups in {self._t.rollout_wait_seconds:g} s", hint=hint)

    def _tell_need(self, step: int) -> None:
        """What the batches from `step` on want, for the hub to sign (protocol/hub/need.py)."""
        told = {
            "step": step, "last": self._t.steps, "groups": self._t.groups_per_step, "ahead": round(100 * self._t.rollouts_ahead),
            "ready": self._source.ready(step), "settled": self._source.settled(step), "usable": round(1000 * self._source.usable),
        }  # fmt: skip
        now = self._clock.monotonic()
        if told != self._told or now >= self._told_at + RENEWED_SECONDS:
            write_json(self._layout.need, told)
            self._told, self._told_at = told, now

    def _poll(self) -> None:
        """One look at chain and hub. What may pass is waited for."""
        try:
            if url := self._hub.require_running():
                self._source.hub = self._hub_client(url)
            try:
                self._source.poll(wait=1)
            except TryAgain:  # too many wait there for news: what there is can still be asked for
                self._clock.wait(self._stop, 1.0)
                self._source.poll(wait=0)
        except MurmurationError as error:
            if is_fatal(error):
                raise
            log.warning("%s; trying again", error)
            self._clock.wait(self._stop, 1.0)
