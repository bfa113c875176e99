"""The worker: follows the head, generates, checks its own work, commits, uploads, and answers what is held against it.

One loop serves demo, tests and production. Its parts: what work is made with (workbench.py), how it gets to chain and hub
(delivery.py), what is still wanted (demand.py), cases (defence.py), verdicts (verdicts.py), and what a failure means (failures.py). It never submits what its own
check would reject.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial

from node.contributor import alerts, submission_log
from node.contributor.alerts import Alerts
from node.contributor.alone import Alone, last_place
from node.contributor.beacons import Beacons
from node.contributor.challenged import ChallengedSeat
from node.contributor.defence import Defence
from node.contributor.delivery import Delivery
from node.contributor.demand import Demand
from node.contributor.failures import Failures
from node.contributor.generation import Made, Place
from node.contributor.next_submission import NextSubmission
from node.contributor.room import DiskRoom
from node.contributor.seat_class import SeatClass
from node.contributor.settings import SeederSettings, WorkSettings
from node.contributor.submission_log import SubmissionLog
from node.contributor.verdicts import Verdicts
from node.contributor.wanted import AT_AN_END
from node.contributor.watchdog import NoProgress, ProgressWatch
from node.contributor.workbench import NotRepeated, Workbench
from node.engine import Engine, EngineSettings
from node.engine.hardware import Measurement, measure_of
from protocol import challenge, metrics
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.types import Publication, Seat
from protocol.challenge import Int8, Int32
from protocol.clock import SYSTEM, Clock
from protocol.errors import DiskFull, MurmurationError, TransactionReverted
from protocol.gossip.messages import HEAD, NEED
from protocol.history import kept_seconds
from protocol.hub.wire import TryAgain
from protocol.logs import about
from protocol.shell import machine
from protocol.shell.connection import Connection
from protocol.shell.home import LAST_STEP, Home
from protocol.shell.notify import Notifier
from protocol.shell.signals import Ending

log = logging.getLogger("node")

_TOKENS = metrics.counter("murmur_node_generated_tokens_total", "Completion tokens that were generated.")
_HEAD = metrics.gauge("murmur_node_head_step", "Step of the newest version that the chain knows.")
_GENERATION = metrics.histogram("murmur_node_generation_seconds", "Time to generate one submission and score it.")
_SECONDS = metrics.counter(
    "murmur_node_seconds_total",
    "Time spent, by phase: starting, waiting, fetching weights, loading, probing, generating, checking, submitting.",
    "phase",
)
_BEACON_SECONDS = (
    4.0  # until a beacon is looked for again: two blocks of Base, one for its hash and one that can look back
)
_TRIES = 3  # at work that an environment does not repeat
_MOVED_ON = (
    "WrongStep",
    "StaleStep",
    "BeaconPending",
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
        engine: Callable[[str], Engine] | EngineSettings | None = None,
        stop: Ending | None = None,
        *,
        adopt: bool = False,
        serve: SeederSettings | None = None,
        progress: Callable[[], None] = lambda: None,
        measure: Callable[[], Measurement] | None = None,
        product: Callable[[Int8, Int8], Int32] = challenge.product,
        clock: Clock = SYSTEM,
        end: Callable[[NoProgress], None] = lambda why: None,
        notifier: Notifier | None = None,
        rewards_from: float = 1.0,
    ) -> None:
        """`engine` is as an Equipment's, by default that of unset settings; `measure` makes the measurement of its device, by default
        that of unset settings; `stop` ends the loop when it is set; `progress` is called at every turn of it and for every chunk of weights; `product` answers challenges;
        `end` is called from a thread where the loop hangs in one piece of work. `notifier` tells its operator what happens, of rewards from so many tokens on.

        `serve` says how this node serves weights to others, if it does.
        `adopt`: the seat's last submission counts as made here, though this home knows nothing of it (alone.py).
        """
        self._c = connection
        self._home = home
        self._address = connection.key.address
        self._stop = stop or Ending()
        self._progress = progress
        self._clock = clock
        self._phase, self._since = "starting", clock.monotonic()  # what it does, and since when
        retry = settings.retry_seconds
        self._transactions = TransactionLog(home.data / "transactions.sqlite")
        sender = connection.sender(self._transactions)
        self.submissions = SubmissionLog(home.data / submission_log.FILE)
        self._watchdog = ProgressWatch(self.submissions, 60 * settings.progress_minutes, clock)
        self._end = end
        self._alerts = Alerts(notifier, home.data / alerts.FILE, rewards_from)
        self._room = DiskRoom(home.data, int(settings.disk_low_gb * 1e9), clock)
        self._alone = Alone(connection.chain, connection.run, self._address, self.submissions)
        if adopt:
            self._alone.adopt(connection.chain.seat(connection.run, self._address))
        engine = engine or EngineSettings()
        measure = measure or partial(measure_of, EngineSettings())
        self._seat_class = SeatClass(connection.spec, measure, self._stop, clock)
        share = settings.self_check_share
        self._workbench = Workbench(connection, home.data, engine, share, self._say, progress, clock)
        self._delivery = Delivery(connection, self.submissions, sender, self._workbench.rollouts, self._say)
        bench, notices = self._workbench, self._workbench.notices
        self._beacons = Beacons(connection, sender)
        self._next = NextSubmission(
            connection, self._say, lambda units: self._alerts.claimable(units, connection.policy)
        )
        self._looks = connection.chain.turns()
        self._together = settings.commit_seconds
        self._made: list[Made] = []  # checked, and not committed yet: of one version, in order
        self._made_at = 0.0  # when the first of them was
        self._took = 0.0  # seconds for the last one
        self._pace: dict[str, float] = {}  # part of every status, once something was made
        self._defence = Defence(connection, self.submissions, sender, bench.judge_again, retry, clock, notices=notices)
        self._verdicts = Verdicts(connection, self.submissions, retry, clock, notices=notices)
        answers = settings.answer_matrix_challenges
        self._challenged = ChallengedSeat(connection, home.challenges, product, clock) if answers else None
        self._demand = Demand(connection, self._address, self._verdicts.mail, clock) if settings.only_wanted else None
        self._failures = Failures(retry, clock)
        self._serve = serve if serve is not None and serve.enabled else None
        self._not_repeated = 0
        self._news = connection.news(HEAD, NEED, clock=clock)
        if connection.gossip is not None:
            connection.gossip.heard_words.on(NEED, self._verdicts.mail.overhear)

    def stop(self) -> None:
        """Asks the loop to end after what it is doing; safe from other threads."""
        self._stop.set()

    def run(self) -> None:
        """Works until stopped. Raises what this node cannot go on with; failures.py says what that is."""
        threading.Thread(target=self._verdicts.follow, args=(self._stop,), name="verdicts", daemon=True).start()
        if self._challenged is not None:
            asked = self._stop, self._verdicts.mail.challenged
            threading.Thread(target=self._challenged.follow, args=asked, name="challenges", daemon=True).start()
        watched = self._stop, self._end
        threading.Thread(target=self._watchdog.watch, args=watched, name="watchdog", daemon=True).start()
        with nullcontext() if self._serve is None else self._workbench.serving(self._serve):
            try:
                while not self._stop.is_set():
                    self._try_turn()
                    self._watchdog.look()
                if self._made:
                    self._commit(None)
            except Exception as error:
                self._delivery.deliver_rest()
                if isinstance(error, MurmurationError) and not isinstance(
                    error, NoProgress
                ):  # who may start afresh tells of it
                    self._alerts.ended(error)
                raise

    def close(self) -> None:
        self.stop()
        self._workbench.close()
        self._transactions.close()

    # ---- the loop ------------------------------------------------------------------------------------------------------

    def _try_turn(self) -> None:
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001  logged there
            reason, pause = self._failures.failed(error)
            with suppress(DiskFull):
                self._say("waiting", reason=reason)
            if machine.full_disk(error):
                self._alerts.disk(reason)
            if not isinstance(error, MurmurationError):
                self._watchdog.says("waiting", trouble=reason)
            if isinstance(error, TryAgain):
                pause = max(pause, error.pause)
            else:
                self._c.forget_hub()
            self._clock.wait(self._stop, pause)
        else:
            self._failures.succeeded()
            self._progress()

    def _turn(self) -> None:
        """At most one submission; where there is nothing to do, a pause. What was made before is committed first, where it cannot wait."""
        with self._looks.turn(*(self._demand.requests() if self._demand is not None else ())):
            seat, head, beacon, sequence, is_delivered = self._look()
        if (head is None or sequence is None or beacon is None) and self._made:
            self._commit(head)
            return
        if head is None or sequence is None or beacon is None:
            lacks_beacon_alone = head is not None and beacon is None and is_delivered
            pause = (
                min(self._c.settings.poll_seconds, _BEACON_SECONDS)
                if lacks_beacon_alone
                else self._c.settings.poll_seconds
            )
            self._news.wait(self._stop, pause, seldom=is_delivered and not lacks_beacon_alone)
            return
        reason = self._room.reason_to_wait()
        if reason and self._made:
            self._commit(head)
            return
        if reason:
            self._say("waiting", reason=reason)
            self._alerts.disk(reason)
            self._news.wait(self._stop, self._c.settings.poll_seconds)
            return
        self._alone.require(seat, self._stop, self._c.settings.poll_seconds)
        self._workbench.require_reference(head)
        if self._workbench.load(head):
            self._tidy(seat)
        with self._looks.again():
            reason = "" if self._demand is None else self._demand.reason_to_wait(head)
        if reason and self._made:
            self._commit(head)
            return
        if reason:
            self._say("waiting", reason=reason, step=head.step, **({"over": True} if reason == AT_AN_END else {}))
            self._news.wait(self._stop, self._c.settings.poll_seconds)
            return
        self._submit(head, Place(self._address, head.step, sequence, beacon, seat.hardware))

    def _look(self) -> tuple[Seat, Publication | None, bytes | None, int | None, bool]:
        """(the seat, the newest version, its beacon, the next sequence for it, whether nothing is left to be delivered)"""
        seat = self._next.seat()
        self._alerts.saw(seat, self._c.policy, self._c.block_time())
        if seat.open_cases:
            self._defence.turn(seat)
        self._c.spec.require_hardware(seat.hardware)
        self._seat_class.require(seat.hardware)
        head = self._c.chain.head(self._c.run)
        if head is not None:
            _HEAD.set(head.step)
        is_delivered = self._delivery.deliver_all(head)
        if self._made and (head is None or head.step != self._made[0].place.step):
            self._commit(head)
        beacon = None if head is None else self._beacons.of(head)
        made = sum(made.units for made in self._made)
        sequence = self._next.sequence(seat, head, beacon, len(self._made), made) if is_delivered else None
        return seat, head, beacon, sequence, is_delivered

    def _tidy(self, seat: Seat) -> None:
        """Forgets what can neither be disputed nor claimed for any more; while a case is open, nothing."""
        if seat.open_cases:
            return
        policy, now = self._c.policy, self._c.block_time()
        kept = kept_seconds(policy.window, self._c.spec.verification.history)  # receipts too: the sums are of them
        self.submissions.prune(now - (kept + policy.span), last_place(seat))
        # Their ages are this machine's to say, deadlines are the chain's: a chain that stood still has moved none of them.
        before = int(min(self._clock.wall(), now)) - (policy.window + policy.span)
        self._delivery.remove_files(before)
        self._transactions.prune(before)

    def _submit(self, head: Publication, place: Place) -> None:
        at, began = {"step": place.step, "sequence": place.sequence}, self._clock.monotonic()
        self._say("generating", **at)
        with _GENERATION.time():
            made = self._workbench.make(place)
        self._pace = {"tokens_per_second": round(made.units / max(self._clock.monotonic() - began, 1e-3), 1)}
        _TOKENS.add(made.units)
        self._say("checking", **at)
        self._check(made)
        self._took = self._clock.monotonic() - began
        self._watchdog.took(self._took)
        if not self._made:
            self._made_at = self._clock.monotonic()
        self._made.append(made)
        self._alerts.disk("")
        if (
            self._clock.monotonic() - self._made_at + self._took > self._together
        ):  # the next one would keep it waiting for longer
            self._commit(head)

    def _commit(self, head: Publication | None) -> None:
        """Commits what was made, and uploads it."""
        made = self._made
        place = made[0].place
        self._say("submitting", step=place.step, sequence=place.sequence)
        with self._stop.finish_first():
            with (
                about(made[0].ref.submission_id(self._c.run)),
                self._delivery.ahead(made, place.beacon),
            ):
                self._delivery.note(made)
                self._made = []  # only now: what is in no log would be lost where an endpoint fails
                refusal = self._delivery.commit(made, place.beacon)
                if refusal is not None:
                    self._require_bearable(refusal, sum(each.units for each in made))
                    log.info("step %d, sequence %d was not taken: %s", place.step, place.sequence, refusal)
            if self._demand is not None:
                self._demand.took(self._took)
            self._delivery.deliver_all(head if head is not None else self._c.chain.head(self._c.run))

    def _check(self, made: Made) -> None:
        """Raises NotRepeated the first times that an environment says something else when it is asked again. What says so each time is
        handed in: it may go unpaid, but the run may be waiting for it."""
        try:
            self._workbench.require_passing(made)
        except NotRepeated as error:
            self._not_repeated += 1
            if self._not_repeated < _TRIES:
                raise
            log.warning("%s; handed in all the same, and it may not be paid", error)
        self._not_repeated = 0

    def _require_bearable(self, refusal: MurmurationError, units: int) -> None:
        """Raises the refusal of a submission when it is this node's own trouble."""
        self._next.seat()  # says better why a seat that is gone was refused
        moved_on = isinstance(refusal, TransactionReverted) and refusal.reason in _MOVED_ON
        if not moved_on and (isinstance(refusal, TransactionReverted) or self._next.can_be_paid(units)):
            raise refusal

    def _say(self, state: str, **more: object) -> None:
        now = self._clock.monotonic()
        _SECONDS.add(now - self._since, phase=self._phase)
        self._phase, self._since = state, now
        self._watchdog.says(state)
        last = self._demand.last if self._demand is not None else None
        self._home.write_status(state=state, **self._pace, **({LAST_STEP: last} if last is not None else {}), **more)
