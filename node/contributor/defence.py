"""Cases against this node: it judges the disputed submissions once more, and appeals where it still finds nothing wrong.

Every case is answered by itself: several may be open about the same submission. The bond of an appeal comes out of what the seat has
locked, so no money is needed at hand. Silence convicts; what this node itself finds false, or cheating where the case calls it that, is left to its operator
(`node appeal`), and what it cannot look at is tried again for as long as an appeal is possible. What the key's lost appeals cost comes out of the
seat's penalty; once that is spent, appeals are the operator's alone. A case whose vote found no majority in time keeps the seat's units until
somebody settles it: where its challenger does not, this node does.
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
from protocol.chain.types import Case, Seat, Stage
from protocol.clock import SYSTEM, Clock
from protocol.errors import InsufficientFunds, MurmurationError, TransactionReverted, Unavailable
from protocol.notice_book import NoticeBook
from protocol.retry import Backoff
from protocol.shell import machine
from protocol.shell.connection import Connection, is_fatal
from protocol.submission import SubmissionRef
from protocol.verdict import HISTORY, Finding, Outcome, Receipt

log = logging.getLogger("node")

_SETTLE_SECONDS = 600  # of block time, after which a case that others left lying is settled from here
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
        self._done: set[tuple[int, Stage, bool]] = set()
        self._backoff = Backoff(retry_seconds, clock=clock)

    def turn(self, seat: Seat) -> None:
        """Answers the seat's open cases, newest first."""
        name = self._c.chain.seat_name(self._c.run, self._c.key.address)
        for number, case in cases.still_open(self._c.chain, self._c.run, name, seat):
            deed = (number, case.stage, case.again)
            if deed in self._done or number in self._backoff:
                continue
            try:
                if case.stage != Stage.OPEN:
                    self._settle(name, number, case)
                elif self._c.block_time() < case.deadline:
                    self._answer(name, number, case, seat)
                    self._done.add(deed)
            except Exception as error:  # the supervisor of one case: the others, and the work, go on
                refused = isinstance(error, TransactionReverted | InsufficientFunds)
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

    def _settle(self, name: str, number: int, case: Case) -> None:
        """Ends the stage of a case that waits for votes or for another challenger no more. (One that nobody has appealed would convict.)"""
        if self._c.block_time() < case.deadline + _SETTLE_SECONDS:
            return
        call = self._c.chain.settle(self._c.run, name, number)
        self._sender.send(call, name=f"settle/{name}/{number}/{case.stage.name.lower()}/{case.again:d}")
        log.info("settled case %d against this seat, which others had left lying", number)

    def _answer(self, name: str, number: int, case: Case, seat: Seat) -> None:
        """Appeals unless every submission of the case is found false, as gravely as it is called so: jurors say of each whether it is."""
        if not self._may_appeal(seat):
            log.error(
                "case %d against this seat: its key has no penalty left to appeal with; its operator may: node appeal",
                number,
            )
            return
        refs = cases.submissions(self._c.chain, self._c.run, name, number, case)
        reason = self._against(refs, case)
        if reason:
            log.error("case %d against this seat is not appealed: %s; see `node submissions`", number, reason)
        else:
            call = self._c.chain.appeal(self._c.run, name, number)
            self._sender.send(call, name=f"appeal/{name}/{number}/{case.again:d}")
            log.warning(
                "appealed case %d about %d submissions: judged again, they do not all fail so", number, len(refs)
            )

    def _may_appeal(self, seat: Seat) -> bool:
        """Whether this key can still lose an appeal (Court.appeal)."""
        is_operator = seat.operator == self._c.key.address
        return seat.locked > 0 and (is_operator or seat.spent < self._c.policy.penalty)

    def _against(self, refs: Sequence[SubmissionRef], case: Case) -> str:
        """Why the node stands by none of these submissions, nor disputes that they are cheating where the case says so; empty where it does. Raises what keeps it from finding out."""
        reason, unknown = "", None
        for ref in refs:
            try:
                finding = self._judge_again(ref, case)
            except Unavailable as error:
                unknown = error
                continue
            if finding is None or (case.hard and finding.outcome != Outcome.HARD):
                return ""  # where work is false and no more, silence would convict, and an appeal costs no bond
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
