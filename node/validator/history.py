"""What receipts say of a seat's work together: the history that a submission is judged with, and the same of all seats for whoever looks on.

Receipts of several validators on one submission may be about the same rows, so one counts: this validator's own; where it has none, the one that checked most
tokens, of equals that of the lowest address. Nobody chooses which submissions count: all of the seat since the chain's time said to begin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from node.judging.history import Counted, History
from protocol import canonical, eprocess, history, statistics
from protocol.chain.sync import Book
from protocol.chain.view import Submission, View
from protocol.constants import SUM_UNIT
from protocol.eprocess import Sums
from protocol.history import SIDE_SOFT
from protocol.runspec import HistoryBudget
from protocol.statistics import MARGINS_HARD, MARGINS_SOFT, TEMPERATURE
from protocol.verdict import Receipt

ReceiptsOf = Callable[[bytes], Mapping[str, Receipt]]
"""Receipts on a submission, by validator."""


class Histories:
    """Of one validator. Each costs one look at every submission of the seat since the sums began."""

    def __init__(
        self,
        book: Book,
        budget: HistoryBudget,
        address: str,
        receipts: ReceiptsOf,
        own: Callable[[bytes], Receipt | None],
    ) -> None:
        """`receipts`: what others have said; `own`: what this validator has, whether it was shown yet or not."""
        self._book = book
        self._budget = budget
        self._address = address
        self._receipts = receipts
        self._own = own

    def before(self, submission: Submission) -> History:
        """What the seat had done before a submission. Raises RpcUnavailable where block times have to be asked for."""
        since = history.begins(self._book.time(submission), self._budget)
        counted = []
        for earlier in self._book.submissions_of(self._book.seat(submission.node), submission.place):
            if self._book.time(earlier) < since:
                break
            if (receipt := self._chosen(earlier.id)) is not None:
                counted.append(_counted(receipt, own=receipt.validator == self._address))
        return History(self._budget, since, counted[::-1])

    def _chosen(self, submission: bytes) -> Receipt | None:
        own = self._own(submission)
        if own is not None and own.details.tokens_checked:
            return own
        others = self._receipts(submission)
        return best(receipt for validator, receipt in others.items() if validator != self._address)


def best(receipts: Iterable[Receipt]) -> Receipt | None:
    """Of receipts of different validators on one submission, the one that counts; None where nobody prefilled any of it."""
    return min((receipt for receipt in receipts if receipt.details.tokens_checked), key=_rank, default=None)


def _counted(receipt: Receipt, *, own: bool) -> Counted:
    d = receipt.details
    digest = canonical.digest(d.table()).hex()
    return Counted(d.submission, receipt.validator, digest, d.tokens_checked, statistics.decode(d.sums), own)


@dataclass
class SeatHistory:
    """Of one seat: submissions that a receipt with prefilled rows speaks of, tokens of these rows, and the sums by statistic."""

    submissions: int = 0
    tokens: int = 0
    sums: dict[str, Sums] = field(default_factory=dict)

    @property
    def evidence(self) -> dict[str, float]:
        """Natural logarithm of each e-value."""
        of = {name: self.sums.get(name, Sums()) for name in statistics.NAMES}
        return {
            MARGINS_SOFT: eprocess.excess(of[MARGINS_SOFT]),
            MARGINS_HARD: eprocess.excess(of[MARGINS_HARD]),
            TEMPERATURE: eprocess.share_either(of[TEMPERATURE], SIDE_SOFT),
        }

    @property
    def mismatches(self) -> int:
        """Tokens that were not the draw."""
        return self.sums.get(TEMPERATURE, Sums()).count // SUM_UNIT

    @property
    def higher(self) -> int:
        """Those of them with a higher logit than the draw."""
        return self.sums.get(TEMPERATURE, Sums()).total // SUM_UNIT


def by_seat(receipts: Iterable[Receipt], view: View) -> dict[str, SeatHistory]:
    """Of all that ever validated in the run, on submissions that are in the book; the seat with the most evidence first."""
    known, said = view.ever_validated(), defaultdict[bytes, list[Receipt]](list)
    for receipt in receipts:
        if receipt.validator in known:
            said[receipt.submission].append(receipt)
    found: dict[str, SeatHistory] = {}
    for submission, of in said.items():
        entry, chosen = view.submission(submission), best(of)
        if entry is None or chosen is None:
            continue
        seat = found.setdefault(view.seat(entry.node), SeatHistory())
        seat.submissions += 1
        seat.tokens += chosen.details.tokens_checked
        seat.sums = statistics.total([seat.sums, statistics.decode(chosen.details.sums)])
    return dict(sorted(found.items(), key=lambda item: (-max(item[1].evidence.values()), item[0])))


def _rank(receipt: Receipt) -> tuple[int, str]:
    return -receipt.details.tokens_checked, receipt.validator.lower()
