"""What receipts say of each seat together: sums over all of its judged work, and how much evidence they are.

No verdict follows from it. Receipts of several validators on one submission may be about the same rows, so one counts: the one that checked
most tokens, of equals that of the lowest address.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol import eprocess, statistics
from protocol.chain.view import View
from protocol.constants import SUM_UNIT
from protocol.eprocess import Sums
from protocol.statistics import MARGINS_HARD, MARGINS_SOFT, TEMPERATURE
from protocol.verdict import Receipt

EVEN = 0.5
"""Probability with which honest rounding favours the higher logit."""


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
            TEMPERATURE: eprocess.share_either(of[TEMPERATURE], EVEN),
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
    known, chosen = view.ever_validated(), dict[bytes, Receipt]()
    for receipt in receipts:
        if receipt.validator in known and receipt.details.tokens_checked:
            other = chosen.get(receipt.submission)
            if other is None or _rank(receipt) < _rank(other):
                chosen[receipt.submission] = receipt
    found: dict[str, SeatHistory] = {}
    for submission, receipt in chosen.items():
        entry = view.submission(submission)
        if entry is None:
            continue
        history = found.setdefault(view.seat(entry.node), SeatHistory())
        history.submissions += 1
        history.tokens += receipt.details.tokens_checked
        history.sums = statistics.total([history.sums, statistics.decode(receipt.details.sums)])
    return dict(sorted(found.items(), key=lambda item: (-max(item[1].evidence.values()), item[0])))


def _rank(receipt: Receipt) -> tuple[int, str]:
    return -receipt.details.tokens_checked, receipt.validator.lower()
