"""One attempt at a judgement: file and weights as far as they are here, the plan, and all rules.

No judgement is no verdict: what is missing may still arrive. Only a file that its node did not hand in by the end of the time for it is found missing,
and where no endpoint but one has a commitment, nothing false is said of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from node.judging.candidate import Checked, Commitment, PrefillPlan
from node.judging.history import History
from node.judging.judge import details
from node.judging.rules import available
from node.validator.bench import Bench
from node.validator.history import Histories
from node.validator.queue import JudgementTask
from protocol.chain.sync import Book
from protocol.constants import UPLOAD_SECONDS_MAX
from protocol.shell.connection import Connection
from protocol.verdict import Details, Outcome


@dataclass(frozen=True)
class Judged:
    """A judgement, and what it was made of."""

    commitment: Commitment
    plan: PrefillPlan
    details: Details
    near: int = 0
    """Rows of which something lies nearer to its hard limit than to its soft one (bits)."""
    history: History | None = None
    clears: bool = False
    """Whether the seat's sums, as far as this validator took them itself, speak for it (node/judging/history.py)."""
    other_build: str = ""
    """As Checked has it."""


class Attempts:
    def __init__(
        self, connection: Connection, book: Book, bench: Bench, histories: Histories | None, now: Callable[[], int]
    ) -> None:
        """`now` gives block time."""
        self._c = connection
        self._book = book
        self._bench = bench
        self._histories = histories
        self._now = now

    def judge(self, task: JudgementTask, *, in_full: bool = False, suspected: tuple[str, ...] = ()) -> Judged | None:
        """The judgement; None while file or weights may still arrive, or the commitment of a false one is one endpoint's word.
        Raises what keeps a rule from running."""
        is_sure = self._book.is_sure(task.submission)
        if task.is_doubtful and not is_sure:
            return None
        found = self._found(task, in_full=in_full, suspected=suspected)
        task.is_doubtful = found is not None and found.details.outcome != Outcome.ACCEPT and not is_sure
        return None if task.is_doubtful else found

    def _found(self, task: JudgementTask, *, in_full: bool, suspected: tuple[str, ...]) -> Judged | None:
        now, path = self._now(), self._bench.fetch(task.submission.root)
        if path is not None:
            commitment = self._bench.commitment(task.submission)
            histories = self._histories
            before = None if histories is None else partial(histories.before, task.submission)
            plan = self._bench.plan(in_full=in_full or self._in_full(task), time=now, alternatives=suspected)
            plan, checked = replace(plan, examined=task.unexamined), Checked()
            try:
                found = self._bench.judge(commitment, path, plan, now, checked, before)
            finally:
                task.unexamined = tuple(dict.fromkeys((*task.unexamined, *checked.unexamined)))
            if found is None:
                return None
            done = replace(plan, examined=tuple(checked.examined), alternatives=tuple(checked.alternatives))
            return Judged(commitment, done, found, checked.near, checked.history, other_build=checked.other_build)
        grace = self._c.spec.upload_grace_seconds
        is_due = now > task.committed_at + grace + UPLOAD_SECONDS_MAX  # one that began in time may still go on
        if not is_due or self._c.hub.stored(task.id, self._c.trainer) is not None:
            return None
        commitment = self._bench.commitment(task.submission)
        plan = self._bench.plan(in_full=in_full or self._in_full(task), time=now)
        missing = available.missing(grace)
        return Judged(commitment, plan, details(self._bench.context, commitment, missing, now, secret=plan.secret))

    def _in_full(self, task: JudgementTask) -> bool:
        newcomer = self._c.spec.verification.newcomer_submissions
        return task.asked or self._book.earlier(task.submission, newcomer) < newcomer
