"""The worker: follows the head, generates, checks its own work, commits, uploads, and learns what became of it.

One loop serves demo, tests and production. Peers and endpoints that fail are waited for; what is this node's own trouble
(no stake, banned, a broken file) ends it with one clear error. It never submits what its own check would reject.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from node import generation, journal
from node.engine import TorchEngine
from node.generation import Made, Place
from node.journal import Journal
from node.settings import WorkSettings
from node.validator.candidate import Candidate, PrefillPlan, RunContext
from node.validator.judge import judge
from node.versions import Versions
from protocol.chain import Sender
from protocol.chain.reverts import banned
from protocol.chain.types import Publication, Role, Seat, State
from protocol.environments import TaskSet
from protocol.errors import IntegrityError, MurmurationError, ProtocolViolation, TransactionReverted
from protocol.home import Home
from protocol.hub import Refused
from protocol.role import Connection, is_fatal
from protocol.sandbox import Sandbox
from protocol.tokens import Tokens
from protocol.verdict import Outcome, Receipt

log = logging.getLogger("node")

_MOVED_ON = ("WrongStep", "WrongBeacon", "WrongSequence", "SeatTooYoung", "CaseOpen", "RunPaused")
"""Refusals of a submission that say: look at the chain again. None is a fault."""
_VERDICT_STATES = {Outcome.ACCEPT: journal.ACCEPTED, Outcome.SOFT: journal.SOFT, Outcome.HARD: journal.HARD}


class Worker:
    def __init__(
        self,
        connection: Connection,
        home: Home,
        settings: WorkSettings,
        engine: Callable[[str], TorchEngine] | None = None,
    ) -> None:
        """`engine` makes the engine for a compute dtype; the default is TorchEngine."""
        self._c = connection
        self._home = home
        self._settings = settings
        self._address = connection.key.address
        self._sender = Sender(connection.chain, connection.key)
        self.journal = Journal(home.data / "journal.sqlite")
        spec = connection.spec
        tasks = TaskSet(spec.environments)
        tasks.require_same_problems()
        self._context = RunContext(spec, connection.chain.domain, connection.run, tasks, Sandbox(spec))
        self._context.sandbox.warm_up()
        self._versions = Versions(connection, home.data / "weights")
        make_engine = engine or (lambda dtype: TorchEngine(dtype, threads=settings.threads))
        self._engine = make_engine(spec.model.compute_dtype)
        self._tokens: Tokens | None = None
        self._loaded: int | None = None
        self._stop = threading.Event()

    def stop(self) -> None:
        """Asks the loop to end after what it is doing; safe from signal handlers and other threads."""
        self._stop.set()

    def run(self) -> None:
        """Works until stopped. Raises Banned, InsufficientFunds and the like when this node cannot go on."""
        listener = threading.Thread(target=self._follow_verdicts, name="verdicts", daemon=True)
        listener.start()
        while not self._stop.is_set():
            try:
                self._recover()
                self._work()
            except MurmurationError as error:
                if is_fatal(error):
                    raise
                log.warning("%s; trying again", error)
                self._say("waiting", reason=str(error))
                self._c.forget_hub()
                self._stop.wait(self._settings.retry_seconds)

    def close(self) -> None:
        self.stop()
        self._context.sandbox.close()

    # ---- the loop ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.is_set():
            seat = self._seat()
            head = self._c.chain.head(self._c.run)
            sequence = None if head is None else self._next_sequence(seat, head)
            if head is None or sequence is None:
                self._stop.wait(self._c.settings.poll_seconds)
                continue
            self._load(head)
            self._submit(head, seat, sequence)

    def _seat(self) -> Seat:
        seat = self._c.chain.seat(self._c.run, self._address)
        if seat.role == Role.BANNED:
            raise banned(self._address)
        if seat.role != Role.ACTIVE:
            raise IntegrityError(
                f"{self._address} holds no seat in run {self._c.run}", hint="take one with `node stake`"
            )
        return seat

    def _next_sequence(self, seat: Seat, head: Publication) -> int | None:
        """The next sequence for the head, or None (said to the status) when there is nothing to do for it."""
        sequence = seat.next_sequence(head.step)
        if seat.open_hard:
            self._say("waiting", reason="a hard case is open against this seat", step=head.step)
        elif seat.since >= head.block:
            self._say("waiting", reason="the seat works from the next version on", step=head.step)
        elif sequence is None or sequence >= self._c.policy.max_per_step:
            self._say("waiting", reason="done for this version; waiting for the next one", step=head.step)
        else:
            return sequence
        return None

    def _load(self, head: Publication) -> None:
        if self._loaded == head.step:
            return
        self._say("fetching weights", step=head.step)
        folder = self._versions.folder(head)
        with self._versions.store.lease(head.step):
            self._engine.load(folder)
            if self._tokens is None:
                self._tokens = Tokens(folder)
        self._loaded = head.step

    def _submit(self, head: Publication, seat: Seat, sequence: int) -> None:
        assert self._tokens is not None
        self._say("generating", step=head.step, sequence=sequence)
        place = Place(self._address, head.step, sequence, head.beacon, seat.hardware)
        made = generation.make(self._context, self._engine, self._tokens, place, self._home.data / "rollouts")
        self._check(made)
        work = made.ref.work_id(self._c.run)
        self.journal.add(made.ref, work, made.units, int(time.time()))
        self._say("submitting", step=head.step, sequence=sequence)
        try:
            self._sender.send(self._c.chain.submit(self._c.run, made.ref, made.units, head.beacon))
        except TransactionReverted as error:
            self.journal.set_state(work, journal.LOST)
            made.path.unlink(missing_ok=True)
            if error.reason not in _MOVED_ON:
                raise
            log.info("step %d, sequence %d was not taken: %s", head.step, sequence, error)
            return
        self.journal.set_state(work, journal.COMMITTED)
        self._upload(work, made.ref.root, made.path)
        log.info("step %d, sequence %d: %d tokens committed and uploaded", head.step, sequence, made.units)

    def _check(self, made: Made) -> None:
        """Judges the file as a validator would. A finding is a fault of this machine: better no work than false work."""
        assert self._tokens is not None
        plan = PrefillPlan(self._settings.self_check_share, made.ref.root)
        candidate = Candidate(self._context, made.commitment(), made.path, self._engine, self._tokens, plan)
        finding = judge(candidate)
        if finding is not None:
            raise IntegrityError(
                f"this machine's own work fails the rule {finding.rule}: {finding.measured} against {finding.threshold}"
                f" ({finding.detail}); nothing was submitted",
                hint="run `node doctor`; faulty memory, overclocking or a modified engine can be the cause",
            )

    def _upload(self, work: bytes, root: bytes, path: Path) -> None:
        """Uploads a committed file, again and again while the hub is only unavailable and the grace time lasts."""
        until = time.monotonic() + self._c.spec.upload_grace_seconds
        while True:
            try:
                self._c.hub.upload(work, root, path, self._c.policy.trainer)
                self.journal.set_state(work, journal.STORED)
                return
            except Refused as error:
                log.warning("the hub refused an upload: %s", error)
                self.journal.set_state(work, journal.LOST)
                return
            except MurmurationError as error:
                if is_fatal(error) or time.monotonic() > until or self._stop.is_set():
                    raise
                log.warning("upload failed: %s; trying again", error)
                self._c.forget_hub()
                self._stop.wait(min(1.0, self._settings.retry_seconds))

    def _recover(self) -> None:
        """Finishes what an earlier life of this node began: committed files are uploaded, the rest is given up."""
        for submission in self.journal.all(journal.MADE, journal.COMMITTED):
            path = self._home.data / "rollouts" / f"{submission.ref.root.hex()}.parquet"
            state = self._c.chain.work(self._c.run, submission.ref).state
            if state == State.NONE or not path.exists():
                self.journal.set_state(submission.work, journal.LOST)
            else:
                self._upload(submission.work, submission.ref.root, path)

    # ---- verdicts ------------------------------------------------------------------------------------------------------

    def _follow_verdicts(self) -> None:
        cursor = 0  # receipts are few and the hub may renumber them; the journal ignores what it knows
        while not self._stop.is_set():
            try:
                for position, data in self._c.hub.receipts(cursor, wait=10):
                    cursor = position
                    self._learn(data)
            except MurmurationError as error:
                log.debug("verdicts: %s", error)
                self._stop.wait(self._settings.retry_seconds)

    def _learn(self, data: bytes) -> None:
        if self._address.encode() not in data:
            return  # another node's; not worth checking its signature
        try:
            receipt = Receipt.parse(data, self._c.chain.domain, self._c.run)
        except ProtocolViolation as error:
            log.warning("the hub lists a receipt that is none: %s", error)
            return
        submission = self.journal.get(receipt.work)
        if submission is None or submission.state in (journal.SOFT, journal.HARD):
            return
        if self._c.chain.validator(self._c.run, receipt.validator) != Role.ACTIVE:
            return
        self.journal.set_state(receipt.work, _VERDICT_STATES[receipt.outcome], data.decode())
        if receipt.outcome != Outcome.ACCEPT:
            d = receipt.details
            log.warning(
                "step %d, sequence %d judged %s by %s: rule %s measured %s, threshold %s (%s)",
                d.step, d.sequence, receipt.outcome.name.lower(), receipt.validator, d.rule, d.measured, d.threshold, d.detail,
            )  # fmt: skip

    def _say(self, state: str, **more: object) -> None:
        self._home.write_status(state=state, **more)
