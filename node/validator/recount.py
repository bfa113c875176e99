"""Before a juror leaves a case about a seat's sums to others: a look of its own at all rows of the seat's newest submissions.

Validators that judge little of a seat have little of their own to go by (node/judging/history.py), and what others measured may be a lie.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from node.judging.candidate import Checked
from node.judging.history import CountedReceipt, History
from node.validator.bench import Bench
from protocol.chain.view import Submission, View
from protocol.errors import MurmurationError

log = logging.getLogger("validator")

_MOST = 4
"""Submissions that are looked at again; each costs a judgement in full."""
_REMEMBERED = 256


class Recount:
    def __init__(self, bench: Bench, view: View, address: str, now: Callable[[], int]) -> None:
        """`now` gives block time."""
        self._bench = bench
        self._view = view
        self._address = address
        self._now = now
        # A case may list many submissions of one seat.
        self._measured_before: OrderedDict[tuple[bytes, tuple[str, ...]], Checked] = OrderedDict()

    def of(self, history: History, suspected: tuple[str, ...] = ()) -> History:
        """The same, its newest submissions measured by this validator as far as their versions are here, and prefilled again as these alternatives."""
        again: dict[str, CountedReceipt] = {}
        for one in history.counted[-_MOST:]:
            submission = self._view.submission(bytes.fromhex(one.submission))
            if submission is None or not self._bench.holds(submission.step):
                continue
            key = submission.id, suspected
            checked = self._measured_before.get(key) or self._measured(submission, suspected)
            if checked is not None:
                self._measured_before[key] = checked
                if len(self._measured_before) > _REMEMBERED:
                    self._measured_before.popitem(last=False)
                again[one.submission] = replace(
                    one, validator=self._address, own=True, tokens=checked.tokens, sums=checked.summed
                )
        log.info("measured %d earlier submissions again", len(again))
        return history.recounted(again)

    def _measured(self, submission: Submission, suspected: tuple[str, ...]) -> Checked | None:
        """What all rows of a submission add; None where it cannot be had now."""
        checked = Checked()
        try:
            path = self._bench.fetch(submission.root)
            if path is None:
                return None
            plan = self._bench.plan(in_full=True, time=self._now(), alternatives=suspected)
            found = self._bench.judge(self._bench.commitment(submission), path, plan, self._now(), checked)
        except MurmurationError as error:
            log.info("step %d.%d is not measured again: %s", submission.step, submission.sequence, error)
            return None
        finally:
            self._bench.discard(submission.root)
        return checked if found is not None and checked.tokens else None
