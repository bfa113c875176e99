"""Cases against this node: it judges the disputed work once more, and appeals where it still finds nothing wrong.

The bond of an appeal comes out of what the seat has locked, so no money is needed at hand. Silence convicts; what this node
itself finds false, or cannot look at any more, is left to its operator (`node appeal`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from node.journal import Journal, Submission
from protocol.chain import Sender
from protocol.chain.types import Seat, Stage
from protocol.errors import MurmurationError, TransactionReverted
from protocol.role import Connection, is_fatal
from protocol.verdict import Finding

log = logging.getLogger("node")


class Defence:
    def __init__(
        self, connection: Connection, journal: Journal, sender: Sender, judge: Callable[[Submission], Finding | None]
    ) -> None:
        """`judge` judges a submission in full and raises what keeps it from doing so."""
        self._c = connection
        self._journal = journal
        self._sender = sender
        self._judge = judge
        self._done: set[int] = set()

    def turn(self, seat: Seat) -> None:
        """Looks at the seat's open cases, newest first."""
        found = 0
        name = self._c.chain.seat_name(self._c.run, self._c.key.address)
        for number in range(seat.cases, 0, -1):
            if found == seat.open_cases:
                return
            case = self._c.chain.case(self._c.run, name, number)
            found += not case.stage.closed
            if case.stage == Stage.OPEN and number not in self._done and self._c.block_time() < case.deadline:
                self._answer(name, number)

    def _answer(self, name: str, number: int) -> None:
        """Appeals where none of the case's works is found false."""
        works = [s for s in self._journal.all() if self._c.chain.work(self._c.run, s.ref).number == number]
        try:
            reason = self._against(works)
        except MurmurationError as error:
            if is_fatal(error):
                raise
            log.warning("case %d against this seat cannot be looked at yet: %s", number, error)
            return
        self._done.add(number)
        if reason:
            log.error("case %d against this seat is not appealed: %s; see `node submissions`", number, reason)
            return
        try:
            self._sender.send(self._c.chain.appeal(self._c.run, name, number), name=f"appeal/{name}/{number}")
            log.warning("appealed case %d: its %d works pass when they are judged again", number, len(works))
        except TransactionReverted as error:
            log.info("no appeal of case %d: %s", number, error)

    def _against(self, works: list[Submission]) -> str:
        """Why the node does not stand by these works; empty where it does."""
        if not works:
            return "its works are not in this node's journal"
        for submission in works:
            finding = self._judge(submission)
            if finding is not None:
                return (
                    f"the rule {finding.rule} finds {finding.measured} against {finding.threshold} ({finding.detail})"
                )
        return ""
