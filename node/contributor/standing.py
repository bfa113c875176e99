"""How this node stands in the sums that validators keep over its work (docs/rules.md): before it costs anything, and where it did.

Made of the receipts that the node was told of its own submissions. Validators may know others, and weigh their own more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from node.judging.history import CountedReceipt, counted
from protocol import history, statistics
from protocol.history import LogEvidence
from protocol.runspec import HistoryBudget
from protocol.verdict import Receipt

WARN = 0.5
"""Share of the soft bound from which on a node should look for the cause."""
CAUSES = (
    "another temperature or sampler than the run's; another device, driver, kernel or attention implementation than the run was calibrated with; reduced precision (TF32, FP8) switched on;"
    " quantised weights or cache; faulty or overclocked memory"
)


@dataclass(frozen=True)
class SeatStanding:
    """`evidence` and `bound` are logarithms of e-values."""

    submissions: int
    tokens: int
    evidence: LogEvidence
    bound: LogEvidence

    @property
    def soft_share(self) -> float:
        """Of the soft bound, 0 where the work speaks for the node."""
        return max(0.0, self.evidence.soft / self.bound.soft)

    @property
    def hard_share(self) -> float:
        return max(0.0, self.evidence.hard / self.bound.hard)


def standing(log: SubmissionLog, budget: HistoryBudget, now: int) -> SeatStanding:
    """Of all work since the sums began; `now` in block time."""
    found = _counted(log.judged_since(history.begins(now, budget)))
    evidence = history.evidence(statistics.total(one.sums for one in found))
    return SeatStanding(len(found), sum(one.tokens for one in found), evidence, history.bounds(budget))


def up_to(
    log: SubmissionLog, submission: LoggedSubmission, budget: HistoryBudget, without: Collection[str] = ()
) -> SeatStanding:
    """The same up to and with a submission, by what validators `without` these have measured: who accuses is no witness."""
    since = history.begins(submission.made_at, budget)
    found = _counted([one for one in log.judged_since(since) if _place(one) <= _place(submission)])
    found = [one for one in found if one.validator not in without]
    evidence = history.evidence(statistics.total(one.sums for one in found))
    return SeatStanding(len(found), sum(one.tokens for one in found), evidence, history.bounds(budget))


def _place(one: LoggedSubmission) -> tuple[int, int, int]:
    return one.made_at, one.ref.step, one.ref.sequence


def _counted(submissions: list[LoggedSubmission]) -> list[CountedReceipt]:
    found = []
    for one in submissions:
        receipt = Receipt.stored(one.receipt.encode()) if one.receipt else None
        if receipt is not None and receipt.details.tokens_checked:
            found.append(counted(receipt, own=True))
    return found
