"""Cases against this node: it judges the disputed submissions once more, and appeals where it still finds nothing wrong.

Every case is answered by itself: several may be open about the same submission. The bond of an appeal comes out of what the seat has
locked, so no money is needed at hand. Silence convicts; what this node itself finds false is left to its operator
(`node appeal`), and what it cannot look at is tried again for as long as an appeal is possible.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from node.contributor import standing
from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from node.engine import memory
from node.judging.candidate import uncovered
from protocol.calibration_notice import in_force
from protocol.chain import Sender, cases
from protocol.chain.types import Case, Seat
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError, TransactionReverted, Unavailable
from protocol.notice_book import NoticeBook
from protocol.retry import Backoff
from protocol.shell import machine
from protocol.shell.connection import Connection, is_fatal
from protocol.submission import SubmissionRef
from protocol.verdict import HISTORY, Finding, Outcome, Receipt

log = logging.getLogger("node")

_REFUSED_SECONDS = 60.0  # until an appeal that the contract refused is tried again: perhaps that endpoint lagged


class Defence:
    def __init__(
        self,
        connection: Connection,
        submissions: SubmissionLog,
        sender: Sender,
        judge: Callable[[LoggedSubmission], Finding | None],
        retry_seconds: float,
        clock: Clock = SYSTEM,
        *,
        notices: NoticeBook | None = None,
    ) -> None:
        """`notices`: what this node has seen of the run's calibration. `judge` judges a submission in full and raises what keeps it from doing so: it is asked again after `retry_seconds`."""
        self._c = connection
        self._submissions = submissions
        self._sender = sender
        self._judge = judge
        self._notices = notices
        self._done: set[int] = set()
        self._backoff = Backoff(retry_seconds, clock=clock)

    def turn(self, seat: Seat) -> None:
        """Answers the seat's open cases, newest first."""
        name = self._c.chain.seat_name(self._c.run, self._c.key.address)
        for number, case in cases.unanswered(self._c.chain, self._c.run, name, seat):
            if number in self._done or number in self._backoff or self._c.block_time() >= case.deadline:
                continue
            try:
                self._answer(name, number, case)
            except Exception as error:  # the supervisor of one case: the others, and the work, go on
                refused = isinstance(error, TransactionReverted)
                if machine.trouble(error) or (isinstance(error, MurmurationError) and is_fatal(error) and not refused):
                    raise
                why = memory.exhausted(error) or error
                log.warning(
                    "case %d against this seat is not appealed yet: %s", number, why,
                    exc_info=not isinstance(why, MurmurationError),
                )  # fmt: skip
                if refused:
                    self._backoff.hold(number, _REFUSED_SECONDS)
                else:
                    self._backoff.failed(number)

    def _answer(self, name: str, number: int, case: Case) -> None:
        """Appeals unless every submission of the case is found false: jurors throw a case out that has one submission which passes."""
        refs = cases.submissions(self._c.chain, self._c.run, name, number, case)
        reason = self._against(refs, case)
        if reason:
            log.error("case %d against this seat is not appealed: %s; see `node submissions`", number, reason)
        else:
            self._sender.send(self._c.chain.appeal(self._c.run, name, number), name=f"appeal/{name}/{number}")
            log.warning("appealed case %d about %d submissions: judged again, they do not all fail", number, len(refs))
        self._done.add(number)

    def _against(self, refs: Sequence[SubmissionRef], case: Case) -> str:
        """Why the node stands by none of these submissions; empty where it stands by one. Raises what keeps it from finding out."""
        reason, unknown = "", None
        for ref in refs:
            try:
                finding = self._judge_again(ref, case)
            except Unavailable as error:
                unknown = error
                continue
            if finding is None:
                return ""
            reason = f"the rule {finding.rule} finds {finding.measured} against {finding.threshold} ({finding.detail})"
        if unknown is not None:
            raise unknown
        return reason

    def _judge_again(self, ref: SubmissionRef, case: Case) -> Finding | None:
        submission = self._submissions.get(ref.submission_id(self._c.run))
        if submission is None:
            raise Unavailable(f"step {ref.step}, sequence {ref.sequence} is not in this node's log")
        return self._judge(submission) or self._by_sums(submission, case)

    def _by_sums(self, submission: LoggedSubmission, case: Case) -> Finding | None:
        """What the sums of all receipts say, where they are what the verdict stands on: this machine makes the same rounding errors again, and
        finds nothing by itself. By validators that are no party to the case: an accuser's own receipts are no reason not to appeal.
        None where the case is graver than they are."""
        notice = None if self._notices is None else self._notices.of(submission.ref.step)
        budget = in_force(self._c.spec.verification, notice).history
        if (
            budget is None
            or submission.receipt is None
            or Receipt.stored(submission.receipt.encode()).details.rule != HISTORY
        ):
            return None
        parties = (case.challenger, case.co_signer)
        version = None if self._c.spec.verification.recalibration is None else 0 if notice is None else notice.since
        found = standing.up_to(self._submissions, submission, budget, without=parties, version=version)
        hardware = self._c.chain.seat(self._c.run, submission.ref.node).hardware
        outcome, share = (Outcome.HARD, found.hard_share) if case.hard else (Outcome.SOFT, found.soft_share)
        if share < 1 or (case.hard and uncovered(self._c.spec, hardware)):
            return None
        detail = f"sums of {found.submissions} submissions, by validators that are no party to the case"
        return Finding(HISTORY, outcome, f"{share:.0%} of the bound", "100%", detail)
