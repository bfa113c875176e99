"""Whether this key works here alone: the seat's last submission on chain must be one that this node's own log knows.

Two copies of a node with one key would make each other's work in vain and defend neither's. On one machine a lock keeps the
second out (protocol/shell/home.py); elsewhere the chain tells. What is noted before it is sent is known, also after a kill, and
so is what an earlier key of the seat sent from here. Asked before new work is made: cases are answered in any case, for silence
convicts. A data folder that was lost or restored looks like another copy: whoever
knows that there is none says so once, and the log keeps it.
"""

from __future__ import annotations

import threading

from node.contributor.submission_log import SubmissionLog
from protocol.chain import Chain
from protocol.chain.types import Seat
from protocol.errors import LockHeld

_LOOKS = 4  # at the chain before another copy is taken for sure: endpoints may be some blocks apart


class Alone:
    def __init__(self, chain: Chain, run: int, node: str, log: SubmissionLog) -> None:
        self._chain = chain
        self._run = run
        self._node = node
        self._log = log
        self._known: tuple[int, int] | None = None

    def require(self, seat: Seat, stop: threading.Event, pause: float) -> None:
        """Raises LockHeld where the seat's last submission was made elsewhere; looks again after pauses of so many seconds.

        Asks the chain only about a submission that it has not asked about before.
        """
        looks = 1
        while (last := last_place(seat)) is not None and last != self._known and not self._was_made_here(*last):
            if looks == _LOOKS:
                raise self._elsewhere(*last)
            if stop.wait(pause):
                return
            looks, seat = looks + 1, self._chain.seat(self._run, self._node)
        self._known = last

    def _elsewhere(self, step: int, sequence: int) -> LockHeld:
        return LockHeld(
            f"the seat's last submission, sequence {sequence} of step {step}, was not made here: another copy of this node "
            f"works with the key {self._node}",
            hint="stop the other copy. Where there is none, because this data folder was lost or restored from a backup: "
            "node start --no-other-copy-runs",
        )

    def adopt(self, seat: Seat) -> None:
        """Takes the seat's last submission for this node's own, for good."""
        if (last := last_place(seat)) is not None:
            self._log.adopt(*last)

    def _was_made_here(self, step: int, sequence: int) -> bool:
        if self._log.is_adopted(step, sequence):
            return True
        return any(self._chain.submission(self._run, ref).time for ref in self._log.at(step, sequence))


def last_place(seat: Seat) -> tuple[int, int] | None:
    """(step, sequence) of the seat's last submission; None before the first."""
    return (seat.step, seat.next - 1) if seat.next else None
