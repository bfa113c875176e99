"""The running validator: finds committed work, judges what is its to judge, and hands what it found to the court.

A judgement that cannot be made (no weights, a dead hub) is no verdict: it is tried again, and meanwhile the others go on.
Nothing a file, a hub or a peer does ends the service.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from node.judging.candidate import Commitment
from node.judging.evidence import EvidenceStore
from node.judging.judge import details
from node.judging.rules import available
from node.validator import judgement_log as states
from node.validator.bench import Bench
from node.validator.court import Court
from node.validator.impeachment import Impeachment
from node.validator.judgement_log import JudgementLog
from node.validator.jury import Jury
from node.validator.record import Record, work_id
from node.validator.settings import JudgeSettings
from protocol.chain.events import Event, Submitted
from protocol.chain.transaction_log import TransactionLog
from protocol.constants import UPLOAD_SECONDS_MAX
from protocol.errors import MurmurationError, PreflightError, ProtocolViolation
from protocol.shell import machine
from protocol.shell.connection import Connection, is_fatal
from protocol.shell.home import Home
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Outcome, Receipt

log = logging.getLogger("validator")

_REST_MOST = 60.0  # seconds between attempts at a judgement that cannot be made


@dataclass
class Task:
    """A work that is not judged yet. Times are of the monotonic clock unless said otherwise."""

    event: Event
    work: bytes
    committed_at: int
    """Block time."""
    seen_at: float
    not_before: float = 0.0
    failures: int = 0

    @property
    def step(self) -> int:
        return self.event.data.step


class ValidatorService:
    def __init__(
        self, connection: Connection, home: Home, settings: JudgeSettings, stop: threading.Event | None = None
    ) -> None:
        """`stop` ends the service when it is set."""
        self._c = connection
        self._home = home
        self._settings = settings
        self._address = connection.key.address
        self._stop = stop or threading.Event()
        self._journal = JudgementLog(home.data / "journal.sqlite")
        self._bench = Bench(connection, home.data, self._journal, threads=settings.threads)
        self._evidence = EvidenceStore(home.data / "evidence", settings.evidence_most, settings.evidence_days)
        self._transactions = TransactionLog(home.data / "transactions.sqlite")
        sender = connection.sender(self._transactions)
        self._court = Court(connection, self._journal, settings, sender)
        self._jury = Jury(connection, sender, self._judge_for_jury, settings.retry_seconds)
        self._impeachment = Impeachment(
            connection, sender, lambda work: self._receipts.get(work, {}), settings.retry_seconds
        )
        self._index = connection.index(home.data / "chain.sqlite")
        self._record = Record(self._index, connection.run)
        self._behind = True  # whether news of the chain may have been missed
        self._tasks: dict[bytes, Task] = {}
        self._receipts: dict[bytes, dict[str, Receipt]] = {}
        self._read: set[bytes] = set()
        self._requested: set[bytes] = set()
        self._cursor = {"receipts": 0, "opinions": 0}
        self._hub_rests_until = 0.0

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._bench.close()
        self._journal.close()
        self._transactions.close()
        self._index.close()

    def run(self) -> None:
        """Judges until stopped. Raises only what is this validator's own trouble."""
        while not self._stop.is_set():
            try:
                if self.turn():
                    continue
            except MurmurationError as error:
                if is_fatal(error):
                    raise
                log.warning("%s; trying again", error)
                self._stop.wait(self._settings.retry_seconds)
            except Exception as error:
                if machine.trouble(error):
                    raise
                log.exception("this should not happen; trying again")
                self._stop.wait(self._settings.retry_seconds)
            self._stop.wait(self._c.settings.poll_seconds)

    def turn(self) -> bool:
        """One round: news from chain and hub, at most one judgement and one for a jury, and whatever the court has to do.

        True when there was something to judge: then the next round may follow at once, and nobody who asks for an opinion
        waits for a long queue.
        """
        self._follow_chain()
        steps = self._open_steps()
        self._bench.hold(steps, fetch=False)
        now = self._now()
        validators = self._record.validators(now)
        reached = self._at_hub(self._follow_hub)
        judged = reached and self._judge(now)
        self._court.decide(self._told, validators, now)
        self._court.challenge(now)
        self._court.settle(now)
        self._impeachment.turn(self._record)
        if reached:
            self._at_hub(lambda: self._court.ask(self._requested)) and self._at_hub(self._court.post)
        if not judged:
            self._bench.hold(steps, fetch=True)
        totals = self._journal.totals()
        counts = {outcome.name.lower(): totals.get(int(outcome), 0) for outcome in Outcome}
        self._home.write_status(state="judging", pending=len(self._tasks), **counts)
        return judged

    # ---- news ----------------------------------------------------------------------------------------------------------

    def _follow_chain(self) -> None:
        """Takes in the chain's news. What a failure interrupts is read anew from the index the next time."""
        behind, self._behind = self._behind, True
        changes = self._index.poll()
        if behind or changes.removed:
            self._record.rebuild()
            self._find_tasks()
        else:
            for event in changes.added:
                self._record.add(event)
                if isinstance(event.data, Submitted) and event.data.run == self._c.run:
                    self._add(event, self._tasks)
        self._behind = False
        ended = self._now() - self._c.policy.window
        self._tasks = {work: task for work, task in self._tasks.items() if task.committed_at > ended}
        done = self._now() - 2 * self._c.policy.span  # no stake answers for what was signed before
        for work in [w for w, told in self._receipts.items() if all(r.details.time <= done for r in told.values())]:
            del self._receipts[work]

    def _find_tasks(self) -> None:
        """Works that were never judged and can still be challenged; those that a reorg took back are forgotten."""
        before, self._tasks = self._tasks, {}
        for event in reversed(self._record.works()):
            if not self._add(event, before):
                return  # all earlier ones are older still

    def _add(self, event: Event, before: dict[bytes, Task]) -> bool:
        """Makes a work a task unless it was judged. False when its window has passed."""
        work = work_id(event.data)
        if self._journal.get(work) is not None:
            return True
        known = before.get(work)
        if known is None or known.event != event:
            committed_at = self._c.chain.block(event.block).time
            if self._now() >= committed_at + self._c.policy.window:
                return False
            known = Task(event, work, committed_at, time.monotonic())
        self._tasks[work] = known
        return True

    def _at_hub(self, action: Callable[[], None]) -> bool:
        """Does something at the hub; False where that failed, and then the hub is left alone for a while."""
        if time.monotonic() < self._hub_rests_until:
            return False
        try:
            action()
        except MurmurationError as error:
            log.warning("hub: %s; trying again", error)
        except Exception as error:
            if machine.trouble(error):
                raise
            log.exception("hub: its answer made this fail; trying again")
        else:
            return True
        self._c.forget_hub()
        self._cursor = {"receipts": 0, "opinions": 0}  # it may have been rebuilt and number its listings anew
        self._hub_rests_until = time.monotonic() + self._settings.retry_seconds
        return False

    def _follow_hub(self) -> None:
        for cursor, work in self._c.hub.opinions(self._cursor["opinions"]):
            self._requested.add(work)
            self._cursor["opinions"] = cursor
        for cursor, data in self._c.hub.receipts(self._cursor["receipts"]):
            self._cursor["receipts"] = cursor
            digest = hashlib.sha256(data).digest()
            if digest in self._read:
                continue
            self._read.add(digest)
            try:
                receipt = Receipt.parse(data, self._c.chain.domain, self._c.run)
            except ProtocolViolation as error:
                log.warning("the hub lists a receipt that is none: %s", error)
                continue
            self._receipts.setdefault(receipt.work, {}).setdefault(receipt.validator, receipt)

    def _now(self) -> int:
        """Block time."""
        return self._index.head.time if self._index.head else 0

    # ---- judging -------------------------------------------------------------------------------------------------------

    def _judge(self, now: int) -> bool:
        """Judges the next work, and one for a jury besides: no queue shall keep a jury waiting. False when there was neither."""
        judged = self._judge_one()
        return self._jury.serve(self._record, now) or judged

    def _judge_one(self) -> bool:
        """Judges the next work that is this validator's to judge; False when there is none just now.

        Those go first that somebody has asked about, for a hard finding becomes soft where no opinion comes in time. The others
        follow in the order in which their windows end, or after an outage works would vest while later ones are judged.
        """
        order = sorted(self._tasks.values(), key=lambda t: (t.work not in self._requested, t.committed_at, t.step))
        return any(self._is_mine(task) and self._attempt(task) for task in order)

    def _is_mine(self, task: Task) -> bool:
        """Asked, assigned, or standing in for somebody silent."""
        if time.monotonic() < task.not_before or self._stop.is_set():
            return False
        if task.work in self._requested:
            return True
        line, needed = self._record.line(task.event, self._now()), self._c.spec.verification.validators_needed
        if self._address not in line:
            return False
        silent = line.index(self._address) + 1 - needed
        waited = time.monotonic() - task.seen_at
        return silent <= 0 or (self._is_open(task) and waited >= silent * self._settings.fallback_seconds)

    def _is_open(self, task: Task) -> bool:
        """Whether too few validators have spoken yet."""
        return len(self._told(task.work)) < self._c.spec.verification.validators_needed

    def _told(self, work: bytes) -> dict[str, Receipt]:
        """Receipts of a work, by validator; only those count who hold a seat now."""
        told, serving = self._receipts.get(work, {}), self._record.validators(self._now())
        return {validator: receipt for validator, receipt in told.items() if validator in serving}

    def _open_steps(self) -> set[int]:
        """Steps whose weights may be needed later: those that works wait to be judged for, and those of open cases, which may
        be appealed long after everybody has retired the version. Of each the newest, as many as may be kept besides the usual.
        """
        waiting = {task.step for task in self._tasks.values() if self._is_open(task)}
        accused = {ref.step for refs in self._record.cases.values() for ref in refs}
        most = 2 * self._c.spec.versions_kept
        return {*sorted(waiting)[-most:], *sorted(accused)[-most:]}

    def _attempt(self, task: Task) -> bool:
        """Whether there is a judgement now. Whatever keeps it from being made is logged and tried again, later and later."""
        try:
            found = self._judge_task(task)
        except Exception as error:  # the supervisor of one judgement: all others go on
            if machine.trouble(error):
                raise
            known = isinstance(error, MurmurationError)
            log.warning("no verdict on %s yet: %s", task.work.hex()[:12], error, exc_info=not known)
            task.not_before = time.monotonic() + min(self._settings.retry_seconds * 2**task.failures, _REST_MOST)
            task.failures += 1
            return False
        if found is None:
            task.not_before = time.monotonic() + self._c.settings.poll_seconds
            return False
        self._court.take(found, self._record.validators(self._now()), self._requested)
        del self._tasks[task.work]
        if found.outcome != Outcome.ACCEPT:
            self._keep_evidence(task, found)
        self._bench.discard(task.event.data.root)
        _log(found)
        return True

    def _keep_evidence(self, task: Task, found: Details) -> None:
        """Keeps what a rejection stands on. That it cannot be kept is logged: the verdict stands without it."""
        try:
            commitment = self._bench.commitment(task.event, self._record)
            rollout = self._bench.judged(commitment.ref.root)
            self._evidence.keep(
                Receipt.issue(found, self._c.key, self._c.chain.domain),
                commitment,
                self._c.spec,
                self._bench.plan(in_full=self._in_full(task, commitment), time=found.time),
                self._c.chain.domain,
                rollout=rollout,
                manifest=None if rollout is None else self._bench.manifest(task.step),
            )
            self._evidence.prune(self._is_closed, time.time())
        except (MurmurationError, OSError) as error:
            log.warning("no evidence of %s is kept: %s", task.work.hex()[:12], error)

    def _is_closed(self, work: bytes) -> bool:
        judgement = self._journal.get(work)
        return judgement is None or judgement.state == states.CLOSED

    def _in_full(self, task: Task, commitment: Commitment) -> bool:
        newcomer = len(commitment.earlier_roots) < self._c.spec.verification.newcomer_submissions
        return newcomer or task.work in self._requested

    def _judge_task(self, task: Task, *, in_full: bool = False) -> Details | None:
        """The judgement; None while the file may still arrive. Raises what keeps a rule from running."""
        commitment = self._bench.commitment(task.event, self._record)
        path = self._bench.fetch(commitment.ref.root)
        if path is not None:
            in_full = in_full or self._in_full(task, commitment)
            return self._bench.judge(commitment, path, in_full=in_full, time=self._now())
        grace = self._c.spec.upload_grace_seconds
        is_due = self._now() > task.committed_at + grace + UPLOAD_SECONDS_MAX  # one that began in time may still go on
        if not is_due or self._c.hub.stored(task.work, self._c.policy.trainer) is not None:
            return None
        return details(
            self._bench.context,
            commitment,
            available.missing(grace),
            self._now(),
            secret=self._bench.secret(self._now()),
        )

    def _judge_for_jury(self, record: Record, ref: SubmissionRef) -> Details | None:
        """A judgement in full, whoever's it was to make; None for what keeps it from being made now, which may pass."""
        event = record.submission(ref)
        if event is None:
            return None
        try:
            task = Task(event, ref.work_id(self._c.run), self._c.chain.block(event.block).time, time.monotonic())
            judged = self._judge_task(task, in_full=True)
        except Exception as error:  # the supervisor of one judgement: all others go on
            if machine.trouble(error):
                raise
            known = isinstance(error, MurmurationError)
            log.warning("no verdict on %s for the jury yet: %s", ref.root.hex()[:12], error, exc_info=not known)
            return None
        self._bench.discard(ref.root)
        return judged


def _log(d: Details) -> None:
    outcome = Outcome(d.outcome)
    why = f": rule {d.rule} measured {d.measured}, threshold {d.threshold} ({d.detail})" if d.rule else ""
    level = logging.INFO if outcome == Outcome.ACCEPT else logging.WARNING
    log.log(level, "%s step %d.%d of %s: %s%s", d.work[:12], d.step, d.sequence, d.node, outcome.name.lower(), why)


def require_seat(connection: Connection) -> None:
    """Raises PreflightError unless this validator holds a seat."""
    seat = connection.chain.validator(connection.run, connection.key.address)
    if not seat.serves(connection.block_time()):
        raise PreflightError(
            f"{connection.key.address} holds no validator seat in run {connection.run}", hint="murmur validator enlist"
        )
