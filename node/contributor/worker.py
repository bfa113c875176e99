"""The worker: follows the head, generates, checks its own work, commits, uploads, and learns what became of it.

One loop serves demo, tests and production. Peers and endpoints that fail are waited for; what is this node's own trouble
(no stake, banned, a broken file) ends it with one clear error. It never submits what its own check would reject.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from node.contributor import generation, submission_log
from node.contributor.alone import Alone
from node.contributor.defence import Defence
from node.contributor.generation import Made, Place
from node.contributor.settings import WorkSettings
from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from node.contributor.verdicts import Verdicts
from node.engine import Engine, EngineSettings, make_engine
from node.judging.candidate import Candidate, Commitment, PrefillPlan, RunContext
from node.judging.judge import judge
from node.judging.rules import CHEAP, RULES, available
from node.signals import Ending
from node.versions import Versions
from protocol import metrics
from protocol.chain.reverts import banned
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.types import Publication, Role, Seat, SubmissionState
from protocol.clock import SYSTEM, Clock
from protocol.environments import TaskSet
from protocol.errors import (
    InsufficientFunds,
    IntegrityError,
    Malformed,
    MurmurationError,
    PreflightError,
    TransactionReverted,
    Unavailable,
)
from protocol.hub.wire import Refused
from protocol.logs import about
from protocol.sandbox import Sandbox
from protocol.shell.connection import Connection, is_fatal
from protocol.shell.home import Home
from protocol.shell.money import duration
from protocol.submission import SubmissionRef
from protocol.tokenizer import Tokenizer
from protocol.verdict import Finding, Outcome

log = logging.getLogger("node")

_TOKENS = metrics.counter("murmur_node_generated_tokens_total", "Completion tokens that were generated.")
_GENERATION = metrics.histogram("murmur_node_generation_seconds", "Time to generate one submission and score it.")
_SECONDS = metrics.counter(
    "murmur_node_seconds_total",
    "Time spent, by phase: starting, waiting, fetching weights, generating, checking, submitting.",
    "phase",
)
_STEP = metrics.gauge("murmur_node_step", "Step of the weights that are loaded.")
_AT_RISK = metrics.gauge("murmur_node_unvested_units", "Units that wait for the window or for a case.")
_MOVED_ON = (
    "WrongStep",
    "WrongBeacon",
    "WrongSequence",
    "SeatTooYoung",
    "CaseOpen",
    "RunPaused",
    "Suspended",
    "Overexposed",
)
"""Refusals of a submission that say: look at the chain again. None is a fault."""


class Worker:
    def __init__(
        self,
        connection: Connection,
        home: Home,
        settings: WorkSettings,
        engine: Callable[[str], Engine] | None = None,
        stop: Ending | None = None,
        *,
        adopt: bool = False,
        progress: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`engine` makes the engine for a compute dtype, by default that of unset settings; `stop` ends the loop when it is set;
        `progress` is called at every turn of it.

        `adopt`: the seat's last submission counts as made here, though this home knows nothing of it (alone.py).
        """
        self._c = connection
        self._home = home
        self._settings = settings
        self._address = connection.key.address
        self._stop = stop or Ending()
        self._progress = progress
        self._clock = clock
        self._transactions = TransactionLog(home.data / "transactions.sqlite")
        self._sender = connection.sender(self._transactions)
        self._versions = Versions(connection, home.data / "weights", clock=clock)
        self._rollouts = home.data / "rollouts"
        self.submissions = SubmissionLog(home.data / submission_log.FILE)
        self._alone = Alone(connection.chain, connection.run, self._address, self.submissions)
        if adopt:
            self._alone.adopt(connection.chain.seat(connection.run, self._address))
        spec = connection.spec
        sandbox = Sandbox(spec)
        connection.fetch_tasks(sandbox)
        tasks = TaskSet(spec.environments, sandbox)
        tasks.require_same_problems()
        self._context = RunContext(spec, connection.chain.domain, connection.run, tasks, sandbox)
        self._context.sandbox.warm_up()
        self._engine = (engine or partial(make_engine, EngineSettings()))(spec.model.compute_dtype)
        self._tokenizer: Tokenizer | None = None
        self._loaded: bytes | None = None
        self._phase, self._since = "starting", clock.monotonic()  # what it does, and since when
        self._defence = Defence(
            connection, self.submissions, self._sender, self._judge_again, settings.retry_seconds, clock
        )

        self._verdicts = Verdicts(connection, self.submissions, settings.retry_seconds, clock)

    def stop(self) -> None:
        """Asks the loop to end after what it is doing; safe from other threads."""
        self._stop.set()

    def run(self) -> None:
        """Works until stopped. Raises Banned, InsufficientFunds and the like when this node cannot go on."""
        threading.Thread(target=self._verdicts.follow, args=(self._stop,), name="verdicts", daemon=True).start()
        while not self._stop.is_set():
            try:
                self._work()
            except MurmurationError as error:
                if is_fatal(error):
                    raise
                log.warning("%s; trying again", error)
                self._say("waiting", reason=str(error))
                self._c.forget_hub()
                self._clock.wait(self._stop, self._settings.retry_seconds)

    def close(self) -> None:
        self.stop()
        self._context.sandbox.close()
        self._versions.close()
        self._transactions.close()

    # ---- the loop ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.is_set():
            seat = self._seat()
            if seat.open_cases:
                self._defence.turn(seat)
            self._context.spec.require_hardware(seat.hardware)
            head = self._c.chain.head(self._c.run)
            sequence = self._next_sequence(seat, head) if self._delivered_all(head) else None
            if head is None or sequence is None:
                self._progress()
                self._clock.wait(self._stop, self._c.settings.poll_seconds)
                continue
            self._alone.require(seat, self._stop, self._c.settings.poll_seconds)
            self._load(head)
            self._submit(head, seat, sequence)
            self._progress()

    def _seat(self) -> Seat:
        seat = self._c.chain.seat(self._c.run, self._address)
        now = self._c.block_time()
        if seat.role == Role.BANNED and not seat.serves(now):
            raise banned(self._address)
        if not seat.serves(now):
            raise PreflightError(
                f"{self._address} holds no seat in run {self._c.run}", hint="take one with `node stake`"
            )
        return seat

    def _next_sequence(self, seat: Seat, head: Publication | None) -> int | None:
        """The next sequence for the head, or None (said to the status) when there is nothing to do for it."""
        if head is None:
            self._say("waiting", reason="no weights are published yet")
            return None
        sequence = seat.next_sequence(head.step)
        reason, now = "", self._c.block_time()
        suspended = seat.suspended_until(self._c.policy, now)
        if seat.open_hard:
            reason = "a hard case is open against this seat"
        elif suspended is not None:
            reason = f"suspended for {duration(suspended - now)} more, after {seat.strikes} rejected submissions"
        elif self._c.chain.paused(self._c.run):
            reason = "the run is paused by its owner"
        elif seat.since >= head.block:
            reason = "the seat works from the next version on"
        elif sequence is None or sequence >= self._c.policy.max_per_step:
            reason = "done for this version; waiting for the next one"
        elif self._at_risk + self._most_units > seat.most:
            reason = "unclaimed rewards are all that the stake answers for; `node claim`, or wait until they mature"
        elif not self._can_be_paid(self._most_units):
            reason = "the run's budget cannot pay another submission; its owner can add to it"
        if reason:
            self._say("waiting", reason=reason, step=head.step)
            return None
        return sequence

    @property
    def _most_units(self) -> int:
        """What one submission may claim at most."""
        spec = self._c.spec
        return min(self._c.policy.max_units, spec.samples * spec.sampling.max_new_tokens)

    @property
    def _at_risk(self) -> int:
        """Units that wait for the window or for a case."""
        units = self._c.chain.claimable(self._c.run, self._address)[1]
        _AT_RISK.set(units)
        return units

    def _can_be_paid(self, units: int) -> bool:
        return self._c.chain.available(self._c.run) >= units * self._c.policy.reward

    def _load(self, head: Publication) -> None:
        if self._loaded == head.manifest:
            return
        self._say("fetching weights", step=head.step)
        folder = self._versions.folder(head)
        with self._versions.store.lease(head.step):
            try:
                self._engine.load(folder)
            except IntegrityError as error:
                # The bytes are those of the chain: nobody's fault here, and the next version may be right.
                raise Unavailable(f"version {head.step} of the weights cannot be used: {error}") from error
            if self._tokenizer is None:
                self._tokenizer = Tokenizer(folder)
        self._loaded = head.manifest
        _STEP.set(head.step)
        self._tidy()

    def _submit(self, head: Publication, seat: Seat, sequence: int) -> None:
        assert self._tokenizer is not None
        self._say("generating", step=head.step, sequence=sequence)
        place = Place(self._address, head.step, sequence, head.beacon, seat.hardware)
        with _GENERATION.time():
            made = generation.make(self._context, self._engine, self._tokenizer, place, self._rollouts)
        _TOKENS.add(made.units)
        self._say("checking", step=head.step, sequence=sequence)
        self._check(made)
        submission_id = made.ref.submission_id(self._c.run)
        self.submissions.add(made.ref, submission_id, made.units, int(self._clock.wall()))
        self._say("submitting", step=head.step, sequence=sequence)
        with self._stop.finish_first():
            with about(submission_id):
                self._commit(made, submission_id, head)
            self._delivered_all(head)

    def _commit(self, made: Made, submission_id: bytes, head: Publication) -> None:
        try:
            call = self._c.chain.submit(self._c.run, made.ref, made.units, head.beacon)
            self._sender.send(call, name=f"submit/{submission_id.hex()}")
        except (TransactionReverted, InsufficientFunds) as error:
            found = self._c.chain.submission(self._c.run, made.ref)
            if not found.time:  # else an earlier attempt was taken after all
                self._give_up(submission_id, made.path)
                self._require_passing(error, made.units)
                log.info("step %d, sequence %d was not taken: %s", head.step, made.ref.sequence, error)
            return
        self.submissions.advance(submission_id, submission_log.COMMITTED)

    def _require_passing(self, error: MurmurationError, units: int) -> None:
        """Raises the refusal of a submission when it is this node's own trouble."""
        self._seat()  # says better why a seat that is gone was refused
        moved_on = isinstance(error, TransactionReverted) and error.reason in _MOVED_ON
        if not moved_on and (isinstance(error, TransactionReverted) or self._can_be_paid(units)):
            raise error

    def _check(self, made: Made) -> None:
        """Judges the file as a validator would. A finding is a fault of this machine: better no work than false work."""
        assert self._tokenizer is not None
        plan = PrefillPlan(self._settings.self_check_share, made.ref.root)
        candidate = Candidate(self._context, made.commitment(), made.path, self._engine, self._tokenizer, plan)
        finding = judge(candidate)
        if finding is not None:
            raise IntegrityError(
                f"this machine's own work fails the rule {finding.rule}: {finding.measured} against {finding.threshold}"
                f" ({finding.detail}); nothing was submitted",
                hint="look for faulty memory, overclocking or a modified engine before you start again",
            )

    def _judge_again(self, submission: LoggedSubmission) -> Finding | None:
        """Judges work of an earlier version in full; by the rules that need no model where nobody has those weights any more."""
        ref = submission.ref
        path = self._rollouts / f"{ref.root.hex()}.parquet"
        if not path.exists():
            return available.missing(self._c.spec.upload_grace_seconds)
        publication = self._c.chain.publication(self._c.run, ref.step)
        if not publication.block:
            raise Unavailable(f"the endpoint does not know the publication of step {ref.step}: it lags")
        try:
            hardware = self._context.sandbox.read(path).file.header.hardware  # the seat's class may have changed since
        except Malformed as error:
            return Finding("schema", Outcome.SOFT, "this node's own copy", "a rollout file", str(error))
        rules: tuple[str, ...] = tuple(RULES)
        try:
            self._load(publication)
        except Unavailable as error:
            log.info("judging step %d again without its weights: %s", ref.step, error)
            rules = CHEAP  # the rest passed before it was submitted
        if (
            self._tokenizer is None
        ):  # nothing was loaded in this life; a hard case keeps work, and so the head, from being loaded
            self._tokenizer = Tokenizer(self._versions.newest())
        commitment = Commitment(ref, submission.units, publication.beacon, hardware, block_hash=bytes(32))
        plan = PrefillPlan(1.0, ref.root)
        return judge(Candidate(self._context, commitment, path, self._engine, self._tokenizer, plan), rules)

    # ---- delivery ------------------------------------------------------------------------------------------------------

    def _delivered_all(self, head: Publication | None) -> bool:
        """Brings everything on chain to the hub, also what an earlier life of this node committed.

        False while the hub does not take something: no more is committed then, for it could come too late as well.
        """
        for submission in reversed(self.submissions.all(submission_log.MADE, submission_log.COMMITTED)):
            found = self._c.chain.submission(self._c.run, submission.ref)
            path = self._rollouts / f"{submission.ref.root.hex()}.parquet"
            if not found.time:
                if not self._may_be_taken(submission.ref, head):
                    self._give_up(submission.id, path)
            elif not path.exists():
                log.warning("the file of step %d, sequence %d is gone", submission.ref.step, submission.ref.sequence)
                self.submissions.advance(submission.id, submission_log.LOST)
            else:
                with about(submission.id):
                    delivered = self._upload(submission, found, path)
                if not delivered:
                    return False
        return True

    def _may_be_taken(self, ref: SubmissionRef, head: Publication | None) -> bool:
        """Whether a transaction that is still on its way could commit to this submission, as Runs.submit decides."""
        if head is None or head.step <= ref.step:
            return head is not None
        superseded = self._c.chain.publication(self._c.run, ref.step + 1).time
        return self._c.block_time() < superseded + self._c.policy.grace

    def _give_up(self, submission_id: bytes, path: Path) -> None:
        self.submissions.advance(submission_id, submission_log.LOST)
        path.unlink(missing_ok=True)

    def _upload(self, submission: LoggedSubmission, found: SubmissionState, path: Path) -> bool:
        """Uploads a committed file. False when it is to be tried again; raises Unavailable while the hub is."""
        ref, submission_id = submission.ref, submission.id
        try:
            stored = self._c.hub.upload(submission_id, ref.root, path, self._c.policy.trainer)
        except Refused as error:
            log.warning("the hub refused step %d, sequence %d: %s", ref.step, ref.sequence, error)
            if error.may_pass and self._c.block_time() <= found.time + self._c.spec.upload_grace_seconds:
                self._say("waiting", reason=str(error), step=ref.step, sequence=ref.sequence)
                return False
            self.submissions.advance(submission_id, submission_log.LOST)
            return True
        self.submissions.keep_storage_receipt(submission_id, json.dumps(stored.as_json()))
        self.submissions.advance(submission_id, submission_log.STORED)
        log.info("step %d, sequence %d: %d tokens committed and uploaded", ref.step, ref.sequence, submission.units)
        return True

    def _tidy(self) -> None:
        """Removes files whose submission can neither be disputed nor claimed for any more."""
        policy = self._c.policy
        oldest = self._clock.wall() - (2 * policy.window + policy.appeal + policy.vote)
        for path in self._rollouts.glob("*.parquet"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def _say(self, state: str, **more: object) -> None:
        now = self._clock.monotonic()
        _SECONDS.add(now - self._since, phase=self._phase)
        self._phase, self._since = state, now
        self._home.write_status(state=state, **more)
