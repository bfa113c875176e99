"""What receipts say of a seat's work together: the history that a submission is judged with, and the same of all seats for whoever looks on.

Receipts of several validators on one submission may be about the same rows, so one counts: this validator's own; where it has none, that of the validator
first in the submission's line (protocol/rendezvous.py), which follows from its block: nobody takes a place by claiming to have checked more. Nobody
chooses which submissions count either: all of the seat since the chain's time said to begin, and with versions that the same calibration holds for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from node.judging.history import CountedReceipt, History, counted
from protocol import history, rendezvous, statistics
from protocol.calibration_notice import CalibrationNotice, in_force
from protocol.chain.sync import Book
from protocol.chain.view import Submission
from protocol.constants import SUM_UNIT
from protocol.eprocess import Sums
from protocol.history import LogEvidence
from protocol.runspec import VerificationSpec
from protocol.statistics import TEMPERATURE
from protocol.verdict import Receipt

ReceiptsOf = Callable[[bytes], Mapping[str, Receipt]]
"""Receipts on a submission, by validator."""


_COUNTED_MOST = 1 << 16


class Histories:
    """Of one validator. What counts of a submission is read once, and again after somebody has spoken on it (`heard`)."""

    def __init__(
        self,
        book: Book,
        verification: VerificationSpec,
        address: str,
        receipts: ReceiptsOf,
        own: Callable[[bytes], Receipt | None],
    ) -> None:
        """`receipts`: what others have said; `own`: what this validator has, whether it was shown yet or not."""
        self._book = book
        self._verification = verification
        self._address = address
        self._receipts = receipts
        self._own = own
        self._counted: OrderedDict[bytes, CountedReceipt | None] = OrderedDict()
        self._began = (-1, -1)  # since when the sums are taken, and a block before that

    def heard(self, submission: bytes) -> None:
        """Somebody, perhaps this validator, has spoken on a submission."""
        self._counted.pop(submission, None)

    def before(self, submission: Submission, notice: CalibrationNotice | None = None) -> History:
        """What the seat had done before a submission, with whose version this `notice` came. Raises RpcUnavailable where block times have
        to be asked for."""
        budget = in_force(self._verification, notice).history
        assert budget is not None
        since = history.begins(self._book.time(submission), budget)
        if self._began[0] != since:
            self._began = since, self._book.block_before(since)
        earlier = self._book.submissions_of(self._book.seat(submission.node), submission.place, self._began[1])
        first = bisect_left(earlier, since, key=self._book.time)  # few times are asked for, where the book knows none
        counted = [self._of(one) for one in earlier[first:] if self._is_of_its_calibration(one, submission, notice)]
        return History(budget, self._began_with(notice, since), [one for one in counted if one is not None])

    def _is_of_its_calibration(
        self, earlier: Submission, submission: Submission, notice: CalibrationNotice | None
    ) -> bool:
        """Whether work is judged by the calibration that `submission` is judged by: all versions from that of its notice to its own are, and of later ones
        nobody need know here."""
        if self._verification.recalibration is None:
            return True
        return (0 if notice is None else notice.since) <= earlier.step <= submission.step

    def _began_with(self, notice: CalibrationNotice | None, since: int) -> int:
        """Block time from which on work counts: the later one of the period's beginning and the calibration's."""
        first = None if notice is None else self._book.publication(notice.since)
        return since if first is None else max(since, self._book.time(first))

    def _of(self, submission: Submission) -> CountedReceipt | None:
        if submission.id in self._counted:
            self._counted.move_to_end(submission.id)
            return self._counted[submission.id]
        receipt = self._chosen(submission)
        found = None if receipt is None else counted(receipt, own=receipt.validator == self._address)
        self._counted[submission.id] = found
        if len(self._counted) > _COUNTED_MOST:
            self._counted.popitem(last=False)
        return found

    def _chosen(self, submission: Submission) -> Receipt | None:
        own = self._own(submission.id)
        if own is not None and own.details.tokens_checked:
            return own
        others = self._receipts(submission.id)
        return best([receipt for validator, receipt in others.items() if validator != self._address], submission)


def best(receipts: Iterable[Receipt], submission: Submission) -> Receipt | None:
    """Of receipts of different validators on one submission, the one that counts; None where nobody prefilled any of it. One that
    claims more tokens than there are counts for nothing."""
    of = {one.validator: one for one in receipts if 0 < one.details.tokens_checked <= submission.units}
    line = rendezvous.order(submission.id, submission.block_hash, of)
    return next((of[validator] for validator in line), None)


@dataclass
class SeatHistory:
    """Of one seat: submissions that a receipt with prefilled rows speaks of, tokens of these rows, and the sums by statistic."""

    submissions: int = 0
    tokens: int = 0
    sums: dict[str, Sums] = field(default_factory=dict)

    @property
    def evidence(self) -> LogEvidence:
        """Logarithms of the e-values against the soft and the hard null, of all receipts as if one validator had measured it all."""
        return history.evidence(self.sums)

    @property
    def mismatches(self) -> int:
        """Tokens that were not the draw."""
        return self.sums.get(TEMPERATURE, Sums()).count // SUM_UNIT

    @property
    def higher(self) -> int:
        """Those of them with a higher logit than the draw."""
        return self.sums.get(TEMPERATURE, Sums()).total // SUM_UNIT


def by_seat(receipts: Iterable[Receipt], book: Book, since: int = 0, version: int = 0) -> dict[str, SeatHistory]:
    """Of all that ever validated in the run, on submissions that are in the book and were made at block time `since` or later, with this `version` or a later one; the seat with the
    most evidence first. Raises RpcUnavailable where block times have to be asked for."""
    known, said = book.ever_validated(), defaultdict[bytes, list[Receipt]](list)
    for receipt in receipts:
        if receipt.validator in known:
            said[receipt.submission].append(receipt)
    found: dict[str, SeatHistory] = {}
    for submission, of in said.items():
        entry = book.submission(submission)
        chosen = None if entry is None else best(of, entry)
        if entry is None or chosen is None or entry.step < version or (since and book.time(entry) < since):
            continue
        seat = found.setdefault(book.seat(entry.node), SeatHistory())
        seat.submissions += 1
        seat.tokens += chosen.details.tokens_checked
        seat.sums = statistics.total([seat.sums, statistics.decode(chosen.details.sums)])
    return dict(sorted(found.items(), key=lambda item: (-item[1].evidence.soft, item[0])))
