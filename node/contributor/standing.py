"""How this node stands in the sums that validators keep over its work (docs/rules.md): before it costs anything, and where it did.

Made of the receipts that the node was told of its own submissions. Validators may know others, and weigh their own more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
"""Of margins, which tell no cause."""
_CAUSES = {
    "temperature": "another temperature or sampler than the run's",
    "colder": "a lower temperature than the run's", "warmer": "a higher temperature than the run's",
    "bfloat16": "computing in bfloat16, where the run computes in float32",
    "int8": "weights rounded to 8 bits", "fp8": "weights rounded to float8", "int4": "weights rounded to 4 bits",
    "kv_int8": "a cache of keys and values in 8 bits", "kv_fp8": "a cache of keys and values in float8",
    "before_1": "the weights of an earlier version", "before_2": "the weights of an earlier version", "before_4": "the weights of an earlier version",
}  # fmt: skip


@dataclass(frozen=True)
class SeatStanding:
    """`evidence` and `bound` are logarithms of e-values."""

    submissions: int
    tokens: int
    evidence: LogEvidence
    bound: LogEvidence
    by_statistic: Mapping[str, float]
    """What each statistic adds to the evidence against the soft null."""

    @property
    def shares(self) -> dict[str, float]:
        """Of the soft bound, by statistic."""
        return {name: max(0.0, value / self.bound.soft) for name, value in self.by_statistic.items()}

    @property
    def causes(self) -> str | None:
        """What may be wrong, by the statistic with the largest share; None below WARN."""
        if self.soft_share < WARN:
            return None
        worst = max(self.by_statistic, key=lambda name: self.by_statistic[name])
        return _CAUSES.get(worst, CAUSES)

    @property
    def soft_share(self) -> float:
        """Of the soft bound, 0 where the work speaks for the node."""
        return _share(self.evidence.soft, self.bound.soft)

    @property
    def hard_share(self) -> float:
        return _share(self.evidence.hard, self.bound.hard)


def _share(evidence: float, bound: float) -> float:
    return max(0.0, round(evidence / bound, 9))  # of nothing it is 1e-17, for parts of a mixture are rounded


def standing(log: SubmissionLog, budget: HistoryBudget, now: int, version: int = 0) -> SeatStanding:
    """Of all work since the sums began, by time or with the first `version` that the calibration holds for; `now` in block time."""
    return _standing(_counted(_since(log, history.begins(now, budget), version)), budget)


def up_to(
    log: SubmissionLog,
    submission: LoggedSubmission,
    budget: HistoryBudget,
    without: Collection[str] = (),
    version: int | None = None,
) -> SeatStanding:
    """The same up to and with a submission, by what validators `without` these have measured: who accuses is no witness. `version` None: the run has one
    calibration for good."""
    begun = _since(log, history.begins(submission.made_at, budget), version or 0)
    if version is not None:  # of later versions another calibration may be
        begun = [one for one in begun if one.ref.step <= submission.ref.step]
    found = _counted([one for one in begun if _place(one) <= _place(submission)])
    return _standing([one for one in found if one.validator not in without], budget)


def _since(log: SubmissionLog, time: int, version: int) -> list[LoggedSubmission]:
    return [one for one in log.judged_since(time) if one.ref.step >= version]


def _standing(found: Sequence[CountedReceipt], budget: HistoryBudget) -> SeatStanding:
    sums = statistics.total(one.sums for one in found)
    tokens = sum(one.tokens for one in found)
    return SeatStanding(len(found), tokens, history.evidence(sums), history.bounds(budget), history.by_statistic(sums))


def _place(one: LoggedSubmission) -> tuple[int, int, int]:
    return one.made_at, one.ref.step, one.ref.sequence


def _counted(submissions: list[LoggedSubmission]) -> list[CountedReceipt]:
    found = []
    for one in submissions:
        receipt = Receipt.stored(one.receipt.encode()) if one.receipt else None
        if receipt is not None and receipt.details.tokens_checked:
            found.append(counted(receipt, own=True))
    return found
