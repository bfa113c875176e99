"""What became of the submissions: verdict receipts, as the hub lists them for this node, taken into the submission log.

Each receipt is read once. How far the listing was read lies beside the log, so that a restart, or a hub that failed for a while,
costs what is new and not what is old. A hub that lost its database is read from the start; what it tells again costs no look at
the chain. The same poll brings the node's other news (mail.py). Work goes on without verdicts: nothing here ends the node.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque

from node.contributor import submission_log
from node.contributor.mail import Mail
from node.contributor.standing import WARN, standing
from node.contributor.submission_log import SubmissionLog
from protocol.calibration_notice import in_force
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError, ProtocolViolation, Unavailable
from protocol.hub.listing import Listing
from protocol.hub.wire import TryAgain
from protocol.logs import SaidOnce, about
from protocol.notice_book import NoticeBook
from protocol.retry import Backoff
from protocol.shell import machine
from protocol.shell.connection import Connection
from protocol.verdict import Outcome, Receipt, compared

log = logging.getLogger("node")

_LISTING = "receipts"  # its name in the log
_REST_MOST = 12  # times the first pause after a failure
_SUBMISSION = re.compile(rb'"submission":"([0-9a-f]{64})"')  # in canonical JSON; no text within a value matches it
_STRANGERS_MAX = 64
_STANDING, _STANDING_SECONDS = "standing", 600.0  # between looks at the sums over this node's work
_LOOKS = 4  # at the chain for a validator's seat: endpoints may be some blocks apart
_STATES = {
    Outcome.ACCEPT: submission_log.ACCEPTED,
    Outcome.SOFT: submission_log.SOFT,
    Outcome.HARD: submission_log.HARD,
}


class Verdicts:
    """For one thread."""

    def __init__(
        self,
        connection: Connection,
        submissions: SubmissionLog,
        retry_seconds: float,
        clock: Clock = SYSTEM,
        *,
        notices: NoticeBook | None = None,
    ) -> None:
        """`notices`: what this node has seen of the run's calibration."""
        self.mail = Mail(connection.key.address, lambda: connection.trainer, clock)
        self._c = connection
        self._submissions = submissions
        self._clock = clock
        self._notices = notices
        self._noted = submissions.mark(_LISTING)
        self._listing = Listing(self._noted)
        self._backoff = Backoff(retry_seconds, _REST_MOST * retry_seconds, clock=clock)
        self._has_learned = False
        self._said = SaidOnce(log, clock)
        self._told = Backoff(_STANDING_SECONDS, clock=clock)
        self._strangers: deque[tuple[Receipt, int]] = deque(maxlen=_STRANGERS_MAX)
        self._seats: dict[str, bool] = {}  # who may judge, as of this turn

    def follow(self, stop: threading.Event) -> None:
        """Takes in what comes until `stop` is set."""
        while not stop.is_set():
            try:
                self.turn()
                self._backoff.succeeded()
                self._said.over(None)
                self._clock.wait(stop, self._c.settings.poll_seconds)
            except Exception as error:  # noqa: BLE001  logged below
                known = error if isinstance(error, MurmurationError) else machine.trouble(error)
                level = logging.ERROR if known is None else logging.INFO
                self._said.say(level, None, f"verdicts: {known or repr(error)}; trying again", exc_info=known is None)
                pause = self._backoff.failed()
                if isinstance(error, TryAgain):  # it is there, and has too much to do
                    pause = max(pause, error.pause)
                elif isinstance(error, Unavailable):
                    self._c.forget_hub()  # it may have moved
                self.mail.lost()
                self._clock.wait(stop, pause)

    def turn(self) -> None:
        """Takes in what is new. Raises what reading it raises; what was taken in by then stays."""
        self._seats.clear()
        self._has_learned = False
        earlier = self._submissions.earlier_keys(self._c.key.address)
        try:
            for data in self._listing.news(lambda mark: self.mail.fetch(self._c.hub, mark, earlier)):
                self._hear(data)
            for _ in range(len(self._strangers)):
                self._look_again()
        finally:
            # Strangers are in memory only: a later life has to read them again.
            if not self._strangers and self._listing.mark != self._noted:
                self._noted = self._listing.mark
                self._submissions.set_mark(_LISTING, self._noted)
        if self._has_learned and _STANDING not in self._told:
            self._tell_standing()

    def _tell_standing(self) -> None:
        """Warns before the sums over this node's work cost anything."""
        notice = None if self._notices is None else self._notices.newest
        budget = in_force(self._c.spec.verification, notice).history
        if budget is None:
            return
        self._told.hold(_STANDING, _STANDING_SECONDS)
        version = 0 if notice is None else notice.since
        found = standing(self._submissions, budget, self._c.block_time(), version)
        if found.soft_share >= WARN:
            log.warning(
                "this node's work is noisier than the run's calibration: %.0f %% of the evidence that costs pay, %.0f %% of what costs"
                " stake, after %d submissions; possible causes: %s",
                100 * found.soft_share, 100 * found.hard_share, found.submissions, found.causes,
            )  # fmt: skip

    def _look_again(self) -> None:
        receipt, looks = self._strangers.popleft()
        try:
            self._learn(receipt, looks)
        except BaseException:
            self._strangers.appendleft((receipt, looks))
            raise

    def _hear(self, data: bytes) -> None:
        named = _SUBMISSION.search(data)
        if named is None or self._submissions.get(bytes.fromhex(named[1].decode())) is None:
            return  # of another node; not worth checking its signature
        try:
            receipt = Receipt.parse(data, self._c.chain.domain, self._c.run)
        except ProtocolViolation as error:
            log.warning("the hub lists a receipt that is none: %s", error)
        else:
            self._learn(receipt, _LOOKS)

    def _learn(self, receipt: Receipt, looks: int) -> None:
        """Notes a receipt that says more than is known; `looks` times at most the chain is asked whether its signer may judge."""
        known = self._submissions.get(receipt.submission)
        state = _STATES[receipt.outcome]
        if known is None or not submission_log.is_before(known.state, state):
            return
        if not self._may_judge(receipt.validator):
            if looks > 1:
                self._strangers.append((receipt, looks - 1))
            return
        self._has_learned = True
        self._submissions.advance(receipt.submission, state, receipt=receipt.encode().decode())
        if receipt.outcome != Outcome.ACCEPT:
            _tell(receipt)

    def _may_judge(self, validator: str) -> bool:
        if validator not in self._seats:
            seat = self._c.chain.validator(self._c.run, validator)
            self._seats[validator] = seat.serves(self._c.block_time())
        return self._seats[validator]


def _tell(receipt: Receipt) -> None:
    d = receipt.details
    with about(receipt.submission):
        log.warning(
            "step %d, sequence %d judged %s by %s: rule %s: %s (%s)",
            d.step, d.sequence, receipt.outcome.name.lower(), receipt.validator, d.rule, compared(d.rule, d.measured, d.threshold), d.detail,
        )  # fmt: skip
