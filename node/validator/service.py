"""The running validator: finds committed work, judges what is its to judge, tells the hub, and takes false work to court.

A hard finding stays secret until a second validator has judged the work without knowing it; only when both say hard does it
go on chain as hard, otherwise as soft. A judgement that cannot be made (no weights, a dead hub) is no verdict: it is tried
again. Nothing a file or a peer does ends the service.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace

from node.validator import journal as states
from node.validator.bench import Bench
from node.validator.candidate import Commitment
from node.validator.journal import Journal, Judgement
from node.validator.rules import available
from node.validator.settings import JudgeSettings
from protocol import rendezvous
from protocol.chain import Sender
from protocol.chain.events import Event, Submitted, ValidatorApproved, ValidatorSeated
from protocol.chain.types import Ref, Role, State
from protocol.constants import PROTOCOL_VERSION
from protocol.errors import InsufficientFunds, MurmurationError, ProtocolViolation, TransactionReverted
from protocol.home import Home
from protocol.role import Connection, is_fatal
from protocol.verdict import Details, Finding, Outcome, Receipt

log = logging.getLogger("validator")


@dataclass
class Task:
    """A work that is not judged yet. Times are of the monotonic clock unless said otherwise."""

    event: Event
    work: bytes
    committed_at: int
    """Block time."""
    seen_at: float
    not_before: float = 0.0
    wanted: bool = False
    """Another validator asked for an opinion."""

    @property
    def submitted(self) -> Submitted:
        return self.event.data

    @property
    def ref(self) -> Ref:
        s = self.submitted
        return Ref(s.node, s.step, s.sequence, s.root)


class ValidatorService:
    def __init__(self, connection: Connection, home: Home, settings: JudgeSettings) -> None:
        self._c = connection
        self._home = home
        self._settings = settings
        self._address = connection.key.address
        self._sender = Sender(connection.chain, connection.key)
        self._index = connection.index(home.data / "chain.sqlite")
        self._journal = Journal(home.data / "journal.sqlite")
        self._bench = Bench(connection, home.data, self._journal, threads=settings.threads)
        self._tasks: dict[bytes, Task] = {}
        self._validators: set[str] = set()
        self._receipts: dict[bytes, dict[str, Receipt]] = {}
        self._roots: dict[str, list[tuple[int, int, bytes]]] = {}
        self._asked: set[bytes] = set()
        self._cursor = {"receipts": 0, "opinions": 0}
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._bench.close()
        self._journal.close()
        self._index.close()

    def run(self) -> None:
        """Judges until stopped. Raises only what is this validator's own trouble."""
        self._load_known()
        while not self._stop.is_set():
            try:
                self.turn()
            except MurmurationError as error:
                if is_fatal(error):
                    raise
                log.warning("%s; trying again", error)
                self._c.forget_hub()
                self._stop.wait(self._settings.retry_seconds)
            self._stop.wait(self._c.settings.poll_seconds)

    def turn(self) -> None:
        """One round: news from chain and hub, then whatever there is to do about it."""
        self._follow_chain()
        self._follow_hub()
        for task in sorted(self._tasks.values(), key=lambda task: task.committed_at):
            if self._is_mine(task):
                self._attempt(task)
            if self._stop.is_set():
                return
        self._decide_hard()
        self._publish()
        self._settle()
        totals = self._journal.totals()
        counts = {outcome.name.lower(): totals.get(int(outcome), 0) for outcome in Outcome}
        self._home.write_status(state="judging", pending=len(self._tasks), **counts)

    # ---- news ----------------------------------------------------------------------------------------------------------

    def _load_known(self) -> None:
        """Works from before this start that were never judged and can still be challenged."""
        self._index.poll()
        for _, seated in self._index.events(ValidatorSeated):
            self._note_validator(seated.run, seated.validator, seated.seated)
        judged = self._journal.judged()
        for event, submitted in self._index.events(Submitted):
            if submitted.run == self._c.run:
                self._add(event, known=_work(submitted) in judged)

    def _follow_chain(self) -> None:
        changes = self._index.poll()
        for event in changes.removed:
            if isinstance(event.data, Submitted):
                self._forget(event)
        for event in changes.added:
            match event.data:
                case Submitted() as s if s.run == self._c.run:
                    self._add(event)
                case ValidatorSeated() as v:
                    self._note_validator(v.run, v.validator, v.seated)
                case ValidatorApproved(approved=False) as v:
                    self._note_validator(v.run, v.validator, False)

    def _forget(self, event: Event) -> None:
        """A commitment that a reorg took back."""
        s = event.data
        self._tasks.pop(_work(s), None)
        gone = (event.block, event.log_index, s.root)
        self._roots[s.node] = [entry for entry in self._roots.get(s.node, []) if entry != gone]

    def _note_validator(self, run: int, validator: str, seated: bool) -> None:
        if run == self._c.run:
            (self._validators.add if seated else self._validators.discard)(validator)

    def _add(self, event: Event, *, known: bool = False) -> None:
        s = event.data
        self._roots.setdefault(s.node, []).append((event.block, event.log_index, s.root))
        if known:
            return
        committed_at = self._c.chain.block(event.block).time
        if self._now() < committed_at + self._c.policy.window:
            work = _work(event.data)
            self._tasks[work] = Task(event, work, committed_at, time.monotonic())

    def _follow_hub(self) -> None:
        for cursor, work in self._c.hub.opinions(self._cursor["opinions"]):
            self._cursor["opinions"] = cursor
            if work in self._tasks:
                self._tasks[work].wanted = True
        for cursor, data in self._c.hub.receipts(self._cursor["receipts"]):
            self._cursor["receipts"] = cursor
            try:
                receipt = Receipt.parse(data, self._c.chain.domain, self._c.run)
            except ProtocolViolation as error:
                log.warning("the hub lists a receipt that is none: %s", error)
                continue
            if receipt.validator in self._validators:
                self._receipts.setdefault(receipt.work, {})[receipt.validator] = receipt

    def _now(self) -> int:
        """Block time."""
        return self._index.head.time if self._index.head else 0

    # ---- judging -------------------------------------------------------------------------------------------------------

    def _is_mine(self, task: Task) -> bool:
        """Assigned, standing in for somebody silent, or asked."""
        if time.monotonic() < task.not_before:
            return False
        if task.wanted:
            return True
        order = rendezvous.order(task.work, task.event.block_hash, self._validators)
        if self._address not in order:
            return False
        needed = self._c.spec.verification.validators_needed
        silent = order.index(self._address) + 1 - needed
        if silent <= 0:
            return True
        spoken = len(self._receipts.get(task.work, {}))
        return spoken < needed and time.monotonic() >= task.seen_at + silent * self._settings.fallback_seconds

    def _attempt(self, task: Task) -> None:
        try:
            details = self._judge(task)
        except MurmurationError as error:
            if is_fatal(error):
                raise
            log.warning("no verdict on %s yet: %s", task.work.hex()[:12], error)
            task.not_before = time.monotonic() + self._settings.retry_seconds
            return
        if details is None:
            return  # the file is still on its way
        receipt = Receipt.issue(details, self._c.key, self._c.chain.domain)
        if task.wanted:
            state = states.OPINION
        elif receipt.outcome == Outcome.HARD and len(self._validators) > 1:
            state = states.WAITING
        else:
            state = states.JUDGED
        self._journal.add(Judgement(task.work, details.outcome, receipt.encode(), state, time.time()))
        del self._tasks[task.work]
        self._bench.discard(task.ref.root)
        _log(details)

    def _judge(self, task: Task) -> Details | None:
        """The judgement; None while the file may still arrive. Raises what keeps a rule from running."""
        commitment = self._commitment(task)
        path = self._bench.fetch(task.ref.root)
        if path is not None:
            newcomer = len(commitment.earlier_roots) < self._c.spec.verification.newcomer_submissions
            return self._bench.judge(commitment, path, newcomer=newcomer or task.wanted, time=self._now())
        grace = self._c.spec.upload_grace_seconds
        if (
            self._now() <= task.committed_at + grace
            or self._c.hub.stored(task.work, self._c.policy.trainer) is not None
        ):
            return None
        return self._without_file(task, available.missing(grace))

    def _commitment(self, task: Task) -> Commitment:
        s = task.submitted
        place = (task.event.block, task.event.log_index)
        earlier = {root for *where, root in self._roots[s.node] if tuple(where) < place}
        seat = self._c.chain.seat(self._c.run, s.node)
        beacon = self._c.chain.publication(self._c.run, s.step).beacon
        return Commitment(task.ref, s.units, beacon, seat.hardware, task.event.block_hash, frozenset(earlier))

    def _without_file(self, task: Task, finding: Finding) -> Details:
        s, domain = task.submitted, self._c.chain.domain
        return Details(
            protocol=PROTOCOL_VERSION, chain_id=domain.chain_id, contract=domain.contract, run=self._c.run,
            work=task.work.hex(), node=s.node, step=s.step, sequence=s.sequence, root=s.root.hex(), units=s.units,
            spec=self._c.spec.digest.hex(), outcome=int(finding.outcome), rule=finding.rule, measured=finding.measured,
            threshold=finding.threshold, detail=finding.detail, sequences_checked=0, proofs_checked=0, tokens_checked=0,
            time=self._now(),
        )  # fmt: skip

    # ---- court ---------------------------------------------------------------------------------------------------------

    def _decide_hard(self) -> None:
        """Hard findings: asks for a second opinion, and decides when it has come or is overdue."""
        for judgement in self._journal.in_state(states.WAITING):
            others = [r for v, r in self._receipts.get(judgement.work, {}).items() if v != self._address]
            overdue = time.time() > judgement.judged_at + self._settings.opinion_seconds
            if not others and not overdue:
                if judgement.work not in self._asked:
                    self._c.hub.ask_opinion(judgement.work)
                    self._asked.add(judgement.work)
                continue
            if not any(other.outcome == Outcome.HARD for other in others):
                reason = "the second validator did not find it" if others else "no second validator answered"
                log.warning("hard finding on %s becomes soft: %s", judgement.work.hex()[:12], reason)
                details = replace(self._receipt(judgement).details, outcome=int(Outcome.SOFT))
                receipt = Receipt.issue(details, self._c.key, self._c.chain.domain)
                judgement = replace(judgement, outcome=int(Outcome.SOFT), receipt=receipt.encode())  # noqa: PLW2901
            self._journal.add(replace(judgement, state=states.JUDGED))

    def _publish(self) -> None:
        """Posts receipts, and challenges what is not accepted. Both may be repeated: hub and chain take the first."""
        for judgement in self._journal.in_state(states.OPINION):
            self._c.hub.post_receipt(judgement.receipt)
            self._journal.set_state(judgement.work, states.POSTED)
        for judgement in self._journal.in_state(states.JUDGED):
            self._c.hub.post_receipt(judgement.receipt)
            try:
                challenged = judgement.outcome != Outcome.ACCEPT and self._challenge(self._receipt(judgement))
            except InsufficientFunds as error:
                log.error("cannot challenge %s now: %s (%s)", judgement.work.hex()[:12], error, error.hint)
                continue  # tried again in the next round; the window is long
            self._journal.set_state(judgement.work, states.CHALLENGED if challenged else states.POSTED)

    def _challenge(self, receipt: Receipt) -> bool:
        """Takes a work to court; False when there is nothing to gain: somebody else did, it is too late, or a hard case
        is open against the seat already and will take all its work in the window."""
        hard = receipt.outcome == Outcome.HARD
        if hard and self._c.chain.seat(self._c.run, receipt.details.node).open_hard:
            return False
        evidence = receipt.evidence(self._c.chain.domain)
        try:
            self._sender.send(self._c.chain.challenge(self._c.run, receipt.details.ref, hard, evidence))
        except TransactionReverted as error:
            if error.reason not in ("WrongState", "TooLate"):
                raise
            log.info("no case on %s: %s", receipt.details.work[:12], error)
            return False
        log.warning(
            "challenged %s as %s: rule %s", receipt.details.work[:12], "hard" if hard else "soft", receipt.details.rule
        )
        return True

    def _receipt(self, judgement: Judgement) -> Receipt:
        return Receipt.parse(judgement.receipt, self._c.chain.domain, self._c.run)

    def _settle(self) -> None:
        """Closes this validator's cases whose time is up."""
        for judgement in self._journal.in_state(states.CHALLENGED):
            ref = self._receipt(judgement).details.ref
            state = self._c.chain.work(self._c.run, ref).state
            if state in (State.CHALLENGED, State.APPEALED):
                if self._now() < self._c.chain.case(self._c.run, ref).deadline:
                    continue
                try:
                    self._sender.send(self._c.chain.settle(self._c.run, ref))
                except TransactionReverted as error:
                    log.info("case %s not settled yet: %s", judgement.work.hex()[:12], error)
                    continue
            self._journal.set_state(judgement.work, states.CLOSED)
            log.info("case %s is closed", judgement.work.hex()[:12])


def _work(submitted: Submitted) -> bytes:
    return Ref(submitted.node, submitted.step, submitted.sequence, submitted.root).work_id(submitted.run)


def _log(d: Details) -> None:
    outcome = Outcome(d.outcome)
    why = f": rule {d.rule} measured {d.measured}, threshold {d.threshold} ({d.detail})" if d.rule else ""
    level = logging.INFO if outcome == Outcome.ACCEPT else logging.WARNING
    log.log(level, "%s step %d.%d of %s: %s%s", d.work[:12], d.step, d.sequence, d.node, outcome.name.lower(), why)


def require_seat(connection: Connection) -> None:
    """Raises PreflightError unless this validator holds a seat."""
    from protocol.errors import PreflightError

    if connection.chain.validator(connection.run, connection.key.address) != Role.ACTIVE:
        raise PreflightError(
            f"{connection.key.address} holds no validator seat in run {connection.run}", hint="murmur validator enlist"
        )
