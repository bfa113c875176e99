"""What a juror finds in a submission: a judgement in full, with what the case stands on looked for by itself.

A case may stand on the seat's sums, which one juror has seen little of, or on bits that only a machine of the same build can compare: then this says
so, rather than call the case wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from node.judging.bitwise import OTHER_BITS
from node.judging.candidate import uncovered
from node.judging.equipment import Unfit
from node.judging.history import NOWHERE, History, suspected
from node.judging.judge import capped, details
from node.validator.attempt import Attempts, Judged
from node.validator.bench import Bench
from node.validator.history import Histories
from node.validator.jury import Opinion
from node.validator.queue import JudgementTask
from node.validator.recount import Recount
from protocol import statistics
from protocol.chain.sync import Book
from protocol.chain.types import Case
from protocol.chain.view import Submission
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError
from protocol.logs import SaidOnce, about
from protocol.shell import machine
from protocol.shell.connection import Connection
from protocol.submission import SubmissionRef
from protocol.verdict import HISTORY, Outcome, Receipt

log = logging.getLogger("validator")


class Opinions:
    def __init__(
        self,
        connection: Connection,
        book: Book,
        bench: Bench,
        attempts: Attempts,
        histories: Histories | None,
        recount: Recount,
        receipts: Callable[[bytes], Mapping[str, Receipt]],
        clock: Clock = SYSTEM,
    ) -> None:
        """`receipts`: what validators have said of a submission, by validator."""
        self._c = connection
        self._book = book
        self._bench = bench
        self._attempts = attempts
        self._histories = histories
        self._recount = recount
        self._receipts = receipts
        self._clock = clock
        self._said = SaidOnce(log, clock)

    def of(self, ref: SubmissionRef, case: Case) -> Opinion | None:
        """A judgement in full, whoever's it was to make; None for what keeps it from being made now, which may pass."""
        submission = self._book.submission(ref.submission_id(self._c.run))
        if submission is None:
            return None
        try:
            task = JudgementTask(submission, self._book.time(submission), self._clock.monotonic())
            with about(submission.id):
                named = self._suspected_by(submission, case)
                judged = self._attempts.judge(task, in_full=True, suspected=named)
        except Exception as error:  # the supervisor of one judgement: all others go on
            if machine.trouble(error) or isinstance(error, Unfit):
                raise
            known = isinstance(error, MurmurationError)
            text = f"no verdict on {ref.root.hex()[:12]} for the jury yet: {error}"
            self._said.say(logging.WARNING, submission.id, text, exc_info=not known)
            return None
        if judged is None:
            return None
        by_sums = judged.history is not None and self._is_by_sums(submission.id, case)
        if judged.history is not None and by_sums and judged.details.outcome == Outcome.ACCEPT:
            judged = self._recounted(judged, judged.history, named)
        self._bench.discard(ref.root)
        other_bits = bool(judged.other_build) and not case.hard and self._is_by_bits(submission.id, case)
        return Opinion(judged.details, judged.near, (by_sums and not judged.clears) or other_bits)

    def _is_by_sums(self, submission_id: bytes, case: Case) -> bool:
        """Whether a case stands on the sums over the seat's work."""
        if case.hard:
            return case.samples == NOWHERE
        said = self._receipts(submission_id).get(case.challenger)
        return said is not None and said.details.rule == HISTORY

    def _is_by_bits(self, submission_id: bytes, case: Case) -> bool:
        """Whether a case stands on bits that only a machine of the same build can compare."""
        said = self._receipts(submission_id).get(case.challenger)
        return said is not None and said.details.measured == OTHER_BITS

    def _suspected_by(self, submission: Submission, case: Case) -> tuple[str, ...]:
        """The named alternatives that the challenger's own receipts speak of, up to a submission: a juror that has not looked for them could call it wrong."""
        if self._histories is None or not self._is_by_sums(submission.id, case):
            return ()
        before = self._histories.before(submission, self._bench.notice(submission.step))
        earlier = [bytes.fromhex(one.submission) for one in before.counted]
        said = [self._receipts(one).get(case.challenger) for one in (*earlier, submission.id)]
        sums = statistics.total(statistics.decode(one.details.sums) for one in said if one is not None)
        return suspected(sums, before.budget)

    def _recounted(self, judged: Judged, history: History, suspected: tuple[str, ...] = ()) -> Judged:
        """The same after a look of one's own at more of what the seat did, as these alternatives too."""
        history, d = self._recount.of(history, suspected), judged.details
        this = statistics.decode(d.sums)
        finding = capped(history.finding(this, d.tokens_checked), uncovered(self._c.spec, judged.commitment.hardware))
        if finding is None:
            return replace(judged, history=history, clears=history.weigh(this, d.tokens_checked, suspected).clears)
        context, secret = self._bench.context, judged.plan.secret
        found = details(context, judged.commitment, finding, d.time, secret=secret, history=history)
        return replace(judged, details=found, history=history)
