"""The running validator: finds submissions, judges what is its to judge, and hands what it found to the court.

A judgement that cannot be made (no weights, a dead hub) is no verdict: it is tried again, and meanwhile the others go on.
Weights are fetched beside the turn (fetches.py).
Nothing a file, a hub or a peer does ends the service.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from node.engine import EngineSettings
from node.judging.equipment import Unfit
from node.judging.evidence import EvidenceStore
from node.validator import judgement_log as states
from node.validator.attempt import Attempts, Judged
from node.validator.bench import Bench
from node.validator.challenger import Challenger
from node.validator.court import Court
from node.validator.doorbell import Doorbell
from node.validator.findings import Findings
from node.validator.history import Histories
from node.validator.impeachment import Impeachment
from node.validator.judgement_log import JudgementLog
from node.validator.jury import Jury
from node.validator.left_alone import LeftAlone
from node.validator.only_copy import OnlyCopy
from node.validator.opinions import Opinions
from node.validator.queue import JudgementTask
from node.validator.receipt_log import ReceiptLog
from node.validator.recount import Recount
from node.validator.settings import JudgeSettings
from node.validator.standing_by import StandingBy
from node.validator.undecided import Undecided
from node.validator.workload import Workload
from protocol import metrics
from protocol.chain.events import Appealed, Challenged, ChallengedAgain, Settled
from protocol.chain.transaction_log import TransactionLog
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError, PreflightError, Retired
from protocol.gossip.messages import VERDICT
from protocol.history import kept_seconds
from protocol.hub.wire import TryAgain
from protocol.logs import SaidOnce, about
from protocol.retry import Backoff
from protocol.shell import machine
from protocol.shell.connection import Connection, is_fatal
from protocol.shell.home import Home
from protocol.verdict import Details, Outcome, Receipt

log = logging.getLogger("validator")

_TURN = metrics.histogram(
    "murmur_validator_turn_seconds", "Duration of a turn: news, at most one judgement, the court."
)
_JUDGING = metrics.histogram("murmur_validator_judging_seconds", "Duration of an attempt at a judgement.")
_JUDGED = metrics.counter(
    "murmur_validator_judgements_total",
    "Judgements, by outcome and the rule that was broken (none).",
    "outcome",
    "rule",
)
_FAILED = metrics.counter("murmur_validator_failed_judgements_total", "Attempts at a judgement that gave no verdict.")
_SPOKE_AT = metrics.gauge(
    "murmur_validator_judged_timestamp_seconds",
    "Unix time of the last verdict; before the first, at which the validator started.",
)
_CASES = metrics.gauge("murmur_validator_open_cases", "Cases of the run that are not closed.")
_PENDING = metrics.gauge("murmur_validator_pending", "Submissions that wait to be judged.")
_PATIENCE = 16  # a file or weights that have been missing for so many seconds is asked for again after one more
_TURN_SECONDS = 10.0  # of attempts that fail, before court and jury have their turn
_REST_MOST = 60.0  # seconds between attempts at a judgement that cannot be made


class ValidatorService:
    def __init__(
        self,
        connection: Connection,
        home: Home,
        settings: JudgeSettings,
        stop: threading.Event | None = None,
        engine: EngineSettings | None = None,
        *,
        adopt: bool = False,
        progress: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`stop` ends the service when it is set; `progress` is called after every turn that succeeded; `adopt` takes what was
        done with this key until now for its own."""
        self._c = connection
        self._home = home
        self._settings = settings
        self._clock = clock
        self._address = connection.key.address
        self._stop = stop or threading.Event()
        self._progress = progress
        spec, policy = connection.spec, connection.policy
        self._judgements = JudgementLog(home.data / "judgements.sqlite")
        self._book = connection.book(home.data / "chain.sqlite")
        self._bench = Bench(
            connection, self._book, home.data, self._judgements, engine or EngineSettings(), clock=clock
        )
        self._evidence = EvidenceStore(home.data / "evidence", settings.evidence_most, settings.evidence_days)
        self._kept_seconds = policy.span + kept_seconds(policy.span, spec.verification.history)
        self._transactions = TransactionLog(home.data / "transactions.sqlite")
        sender = connection.sender(self._transactions)
        self._receipts = ReceiptLog(
            home.data / "receipts.sqlite",
            lambda data: Receipt.parse(data, connection.chain.domain, connection.run),
            lambda validator: validator in self._book.ever_validated(),
            self._kept_seconds,
        )
        budget = spec.verification.history
        self._histories = (
            None
            if budget is None
            else Histories(self._book, spec.verification, self._address, self._receipts.stored, self._own_receipt)
        )
        self._attempts = Attempts(connection, self._book, self._bench, self._histories, self._now)
        recount = Recount(self._bench, self._book, self._address, self._now)
        self._opinions = Opinions(
            connection, self._book, self._bench, self._attempts, self._histories, recount, self._receipts.stored, clock
        )
        self._workload = Workload(
            self._book, self._judgements, self._receipts, self._address, needed=spec.verification.validators_needed,
            window=policy.window, fallback_seconds=settings.fallback_seconds, clock=clock,
        )  # fmt: skip
        self._findings = Findings(connection, self._book, self._judgements, settings, clock=clock)
        self._court = Court(connection, self._book, self._judgements, self._findings, settings, sender, clock=clock)
        self._only_copy = OnlyCopy(
            self._address, self._judgements, self._transactions, self._take_up, policy.span, self._book.time
        )
        self._adopt, self._is_sure = adopt, False  # whether what was heard in an earlier life was looked at
        self._jury = Jury(
            connection, self._book, sender, self._judgements, self._opinions.of, settings.retry_seconds, clock
        )
        self._standing_by = StandingBy(
            connection, self._book, sender, self._judgements, self._opinions.of, settings.retry_seconds, clock
        )
        self._undecided = Undecided(connection, self._book, sender, self._judgements, settings.retry_seconds, clock)
        self._impeachment = Impeachment(
            connection, sender, self._book, self._receipts.of, settings.retry_seconds, clock
        )
        self._cases = self._book.open_cases()
        self._challenger = Challenger(connection, self._book, home.challenges, settings, clock)
        self._doorbell = Doorbell(connection, self._receipts.marks, settings.retry_seconds, clock)
        if connection.gossip is not None:
            connection.gossip.heard_words.on(VERDICT, self._doorbell.overhear)
        self._away = Backoff(settings.retry_seconds, clock=clock)  # the hub, after it failed
        self._left_alone, self._said = LeftAlone(), SaidOnce(log, clock)

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._bench.close()
        self._judgements.close()
        self._receipts.close()
        self._transactions.close()
        self._book.close()

    def run(self) -> None:
        """Judges until stopped. Raises only what is this validator's own trouble, LockHeld where another copy of it runs."""
        _SPOKE_AT.set(self._clock.wall())
        if self._settings.matrix_challenge_hours:
            challenges = self._challenger.follow
            threading.Thread(target=challenges, args=(self._stop,), name="challenges", daemon=True).start()
        threading.Thread(target=self._doorbell.follow, args=(self._stop,), name="doorbell", daemon=True).start()
        while not self._stop.is_set():
            try:
                with _TURN.time():
                    more = self.turn()
                self._progress()
                if more:
                    continue
            except MurmurationError as error:
                if is_fatal(error) and not machine.full_disk(error):
                    raise
                log.warning("%s; trying again", error)
                self._clock.wait(self._stop, self._settings.retry_seconds)
            except Exception as error:
                if (full := machine.full_disk(error)) is not None:
                    log.warning("%s; %s; trying again", full, full.hint)
                elif machine.trouble(error):
                    raise
                else:
                    log.exception("this should not happen; trying again")
                self._clock.wait(self._stop, self._settings.retry_seconds)
            self._clock.wait(self._stop, self._c.settings.poll_seconds)

    def turn(self) -> bool:
        """One round: news from chain and hub, at most one judgement and one for a jury, and whatever the court has to do.

        True when there was something to judge: then the next round may follow at once, and nobody who asks for an opinion
        waits for a long queue.
        """
        now = self._follow_chain()
        steps = self._open_steps()
        self._bench.hold(steps, fetch=False)
        reached = self._listen(now)
        self._hear(now)
        has_heard = reached and self._receipts.is_complete
        judged = has_heard and self._judge_one()  # or it would contradict what it has not heard
        judged = self._serve_court(now, has_heard=has_heard) or judged
        self._findings.decide(self._of_serving, self._book.validators(now), now, has_heard=has_heard)
        self._court.challenge(now, self._receipts.of)
        self._undecided.turn(self._cases, now)
        self._court.settle(now, self._cases)
        self._impeachment.turn()
        self._jury.hand_over(self._cases)
        if reached:
            said_at = self._book.poll().time if judged else now  # nobody could answer while a long judgement was made
            self._at_hub(lambda: self._findings.ask(self._receipts, said_at)) and self._at_hub(
                lambda: self._findings.post(said_at)
            )
        if not judged:
            self._bench.hold(steps, fetch=True)
        self._prune(now)
        totals = self._judgements.totals()
        counts = {outcome.name.lower(): totals.get(int(outcome), 0) for outcome in Outcome}
        _PENDING.set(len(self._workload))
        _CASES.set(len(self._cases))
        self._home.write_status(state="judging", pending=len(self._workload), **counts)
        return judged

    # ---- news ----------------------------------------------------------------------------------------------------------

    def _follow_chain(self) -> int:
        """Takes in the chain's news; returns block time. What a failure interrupts is taken in again the next time."""
        head = self._book.poll()
        if self._adopt:
            self._only_copy.adopt(head)
            self._adopt = False
        now, changed = head.time, False
        for event in self._workload.follow(now):
            self._only_copy.see(event, now)
            if isinstance(event.data, Challenged | ChallengedAgain | Appealed | Settled):
                changed = True
                name = event.data.seat, event.data.number
                self._court.heard_of(name)
                self._impeachment.heard_of(name)
        if changed:
            self._cases = self._book.open_cases()
        self._workload.expire(now)
        self._bench.sweep(self._awaited)
        return now

    def _awaited(self) -> set[bytes]:
        """Roots of the files that may still be judged, for this validator's own verdict or for a jury."""
        cases = (case for case in self._cases if case.is_appealed or self._standing_by.concerns(case))
        return self._workload.roots | {ref.root for case in cases for ref in case.refs}

    def _listen(self, now: int) -> bool:
        """Takes in what the hub has to tell; False where it cannot be asked. Where nothing here waits for others' words, the doorbell says
        whether there is anything."""
        waits = len(self._workload) or self._judgements.waiting() or not self._receipts.is_complete
        if not waits and self._doorbell.is_quiet and not self._away.left():
            return True
        reached = self._at_hub(lambda: self._receipts.follow(self._c.hub, now))
        if reached:
            self._doorbell.heard()
        return reached

    def _hear(self, now: int) -> None:
        """What others have said since the last turn."""
        asked, receipts = self._receipts.news()
        self._require_only_copy(receipts, now)
        self._workload.heard(asked, receipts, now)
        for receipt in receipts:
            self._impeachment.heard(receipt)
            if self._histories:
                self._histories.heard(receipt.submission)
        self._receipts.forget_news(len(asked), len(receipts))  # only now: an endpoint may have failed meanwhile

    def _require_only_copy(self, news: list[Receipt], now: int) -> None:
        """Raises LockHeld where a receipt of this key was signed elsewhere."""
        own = [receipt for receipt in news if receipt.validator == self._address]
        if not self._is_sure:  # the log of judgements may be lost or restored, and the one of receipts not
            earlier = [s for s in self._receipts.by(self._address) if self._judgements.get(s) is None]
            own += [self._receipts.of(submission)[self._address] for submission in earlier]
        for receipt in own:
            self._only_copy.hear(receipt, now)
        self._is_sure = True

    def _take_up(self, receipt: Receipt) -> None:
        """Makes a receipt of a log that was lost a judgement again."""
        self._findings.take_up(receipt, self._book.validators(self._now()))
        self._workload.drop(receipt.submission)

    def _prune(self, now: int) -> None:
        """Forgets what nobody can come back to: no stake answers any more for what was signed so long ago."""
        self._judgements.prune(now - self._kept_seconds)
        # Dated by this machine, whose clock may be behind the chain's.
        self._transactions.prune(min(self._clock.wall(), now) - 2 * self._c.policy.span)
        self._receipts.prune(now, now - self._c.policy.span)

    def _at_hub(self, action: Callable[[], None]) -> bool:
        """Does something at the hub; False where that failed, and then the hub is left alone for a while."""
        if self._away.left():
            return False
        try:
            action()
        except TryAgain as error:  # it is there, and has too much to do
            self._said.say(logging.INFO, "hub", f"hub: {error}")
            self._away.hold(None, error.pause)
            return False
        except MurmurationError as error:
            self._said.say(logging.WARNING, "hub", f"hub: {error}; trying again")
        except Exception as error:
            if machine.trouble(error):
                raise
            log.exception("hub: its answer made this fail; trying again")
        else:
            self._said.over("hub")
            return True
        self._c.forget_hub()
        self._away.failed()
        return False

    # ---- judging -------------------------------------------------------------------------------------------------------

    def _serve_court(self, now: int, *, has_heard: bool) -> bool:
        """Judges what a case waits for, whatever else waits: one submission for a jury, and one that this validator answers for. False when there was neither."""
        appealed = [case for case in self._cases if case.is_appealed]
        served = self._jury.serve(appealed, now, has_heard=has_heard)
        return self._standing_by.turn(self._cases, now) or served

    def _judge_one(self) -> bool:
        """Judges the next submission that is this validator's to judge; False when there is none just now.

        Attempts that fail end after _TURN_SECONDS: what cannot be had must keep nobody from court and jury.
        """
        ends = self._clock.monotonic() + _TURN_SECONDS
        while not self._stop.is_set() and (task := self._workload.next()) is not None:
            if self._attempt(task) or self._clock.monotonic() > ends:
                return True
        self._left_alone.tell()
        return False

    def _of_serving(self, submission_id: bytes) -> dict[str, Receipt]:
        """Receipts of a submission, by validator; only those count who hold a seat now."""
        serving = self._book.validators(self._now())
        return {
            validator: receipt
            for validator, receipt in self._receipts.of(submission_id).items()
            if validator in serving
        }

    def _open_steps(self) -> set[int]:
        """Steps whose weights may be needed later: those of what waits to be judged, and those of open cases, which may be
        appealed long after everybody has retired the version. Of each as many as there is room for, and twice `versions_kept` at least: the
        oldest, which nobody else keeps any more. Who uploads last of all would choose what is never judged.
        """
        accused = {ref.step for case in self._cases for ref in case.refs}
        most = max(2 * self._c.spec.versions_kept, self._bench.room())
        return {*sorted(self._workload.steps)[:most], *sorted(accused)[:most]}

    def _attempt(self, task: JudgementTask) -> bool:
        """Whether there is a judgement now. Whatever keeps it from being made is logged and tried again, later and later."""
        with about(task.id):
            return self._try(task)

    def _try(self, task: JudgementTask) -> bool:
        try:
            with _JUDGING.time():
                judged = self._attempts.judge(task)
            if judged is not None:
                self._findings.take(judged.details, self._book.validators(self._now()), self._receipts)
                if self._histories:
                    self._histories.heard(task.id)
        except Retired:
            is_ours = self._workload.was_seated_before(task.submission)
            self._left_alone.note(task.step, is_ours=is_ours)
            if is_ours:
                _FAILED.add()
            self._forget(task)
            return False
        except Exception as error:  # the supervisor of one judgement: all others go on
            if machine.trouble(error) or isinstance(error, Unfit):
                raise
            known = isinstance(error, MurmurationError)
            self._said.say(logging.WARNING, task.id, f"no verdict yet: {error}", exc_info=not known)
            _FAILED.add()
            self._workload.put_off(task, min(self._settings.retry_seconds * 2 ** min(task.failures, 16), _REST_MOST))
            task.failures += 1
            return False
        if judged is None:
            missed = (self._clock.monotonic() - task.seen_at) / _PATIENCE
            self._workload.put_off(task, min(max(self._c.settings.poll_seconds, missed), _REST_MOST))
            return False
        if judged.details.outcome != Outcome.ACCEPT:
            self._keep_evidence(judged)
        self._forget(task)
        _SPOKE_AT.set(self._clock.wall())
        _log(judged.details)
        return True

    def _forget(self, task: JudgementTask) -> None:
        """Nothing is left to do for it here."""
        self._workload.drop(task.id)
        self._said.over(task.id)
        self._bench.discard(task.submission.root)

    def _keep_evidence(self, judged: Judged) -> None:
        """Keeps what a rejection stands on. That it cannot be kept is logged: the verdict stands without it."""
        try:
            ref = judged.commitment.ref
            rollout = self._bench.judged(ref.root)
            self._evidence.keep(
                Receipt.issue(judged.details, self._c.key, self._c.chain.domain),
                judged.commitment,
                self._c.spec,
                judged.plan,
                self._c.chain.domain,
                rollout=rollout,
                manifest=None if rollout is None else self._bench.manifest(ref.step),
                history=judged.history,
            )
            self._evidence.prune(self._is_closed, self._clock.wall())
        except (MurmurationError, OSError) as error:
            log.warning("no evidence is kept: %s", error)

    def _own_receipt(self, submission_id: bytes) -> Receipt | None:
        """This validator's own word on a submission, shown or not."""
        judgement = self._judgements.get(submission_id)
        if judgement is not None:
            return Receipt.stored(judgement.receipt)
        return self._receipts.stored(submission_id).get(self._address)

    def _is_closed(self, submission_id: bytes) -> bool:
        judgement = self._judgements.get(submission_id)
        return judgement is None or judgement.state == states.CLOSED

    def _now(self) -> int:
        """Block time."""
        head = self._book.head
        return head.time if head else 0


def _log(d: Details) -> None:
    outcome = Outcome(d.outcome)
    why = f": rule {d.rule} measured {d.measured}, threshold {d.threshold} ({d.detail})" if d.rule else ""
    level = logging.INFO if outcome == Outcome.ACCEPT else logging.WARNING
    _JUDGED.add(outcome=outcome.name.lower(), rule=d.rule or "none")
    log.log(level, "step %d.%d of %s: %s%s", d.step, d.sequence, d.node, outcome.name.lower(), why)


def require_seat(connection: Connection) -> None:
    """Raises PreflightError unless this validator holds a seat."""
    seat = connection.chain.validator(connection.run, connection.key.address)
    if not seat.serves(connection.block_time()):
        raise PreflightError(
            f"{connection.key.address} holds no validator seat in run {connection.run}", hint="murmur validator enlist"
        )
