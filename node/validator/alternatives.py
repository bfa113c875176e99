"""Which work a validator prefills again, and as what: the choice is made before anything of the submission is known but its place in the chain.

Half of the share that the run's spec allows goes to submissions drawn by the validator's secret, with an alternative that is drawn too. The other half is for seats
that something speaks against: with the alternative that leads, where one does, and a drawn one where a seat is above half the soft bound otherwise. Work that is looked at
again is prefilled twice, with the published weights once more and with the alternative, so half of the share is a quarter of it in submissions.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from node.judging.alternatives import applies, steps_before
from node.judging.history import History
from protocol import history
from protocol.runspec import HistoryBudget

PREFILLS = 2
"""Of each token that is looked at again (node/judging/rules/history.py)."""
_DRAWN = 0.5 / PREFILLS
_ABOVE = 0.5  # of the soft bound
_AHEAD = 1 << 16  # tokens that may be prefilled again before so much else was prefilled that they are within the share


class AlternativePlan:
    """Of one validator. Counts what it prefilled, since it was started."""

    def __init__(self, budget: HistoryBudget, compute_dtype: str, holds: Callable[[int], bool]) -> None:
        """`holds`: whether a version is on this machine, by its step."""
        self._share = float(budget.again)
        self._names = [name for name in budget.alternatives if applies(name, compute_dtype)]
        self._holds = holds
        self._prefilled = self._again = 0

    def count(self, prefilled: int, again: int) -> None:
        """Tokens of one judgement; those of `again` as often as they were prefilled."""
        self._prefilled += prefilled
        self._again += again

    def names(self, submission: bytes, step: int, before: History, secret: bytes) -> tuple[str, ...]:
        """The alternatives to prefill a submission with, of a seat with this history before it; none or one."""
        names = [name for name in self._names if self._holds(step - steps_before(name))]
        if not names:
            return ()
        word = hmac.digest(secret, b"murmuration/again" + submission, hashlib.sha256)
        drawn = names[int.from_bytes(word[8:16], "big") % len(names)]
        if int.from_bytes(word[:8], "big") < _DRAWN * self._share * 2**64:
            return (drawn,)
        if self._again > self._share * self._prefilled + _AHEAD:
            return ()
        if (leading := before.leading) in names:
            return (leading,)
        is_above = before.weigh({}).after.soft >= _ABOVE * history.bounds(before.budget).soft
        return (drawn,) if is_above else ()
