"""history: the seat's work up to this submission, taken together, is not what honest devices' noise explains. Hard.

What earlier submissions add comes from receipts, what this one adds from the rows that were drawn. It is asked last, and finds nothing where the run's
spec has no budget for it. Who judges without a history (a worker its own work) finds nothing either.
"""

from __future__ import annotations

from node.judging.candidate import Candidate
from protocol.verdict import Finding


def check(c: Candidate) -> Finding | None:
    if c.history is None:
        return None
    return c.history.finding(c.checked.summed, c.checked.tokens)
