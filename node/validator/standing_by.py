"""Standing by what this validator has accepted: a hard case that names such rows is judged once more, and appealed where they are good.

A node can have itself accused of work that is good, and let the case stand: whoever vouched for the rows that it names would lose a bond with the
conviction (impeachment.py), and nobody but the seat answers cases of its own accord. The seat has the first half of the time to appeal, for a validator
that appeals is no juror of the case; then this one appeals, which puts a bond of its own at risk until jurors find the case hard, or not. Part of its lock is kept for that (court.py).

What it finds false after all it leaves alone. What it could not judge again by the end it appeals as well: it has judged it before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from node.validator.judgement_log import CaseName, JudgementLog
from node.validator.jury import Opinion, finding
from protocol.chain import Sender
from protocol.chain.sync import Book
from protocol.chain.types import Case
from protocol.chain.types import Stage as CaseStage
from protocol.chain.view import CaseEntry
from protocol.clock import SYSTEM, Clock
from protocol.errors import InsufficientFunds, TransactionReverted
from protocol.retry import Backoff
from protocol.shell.connection import Connection
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt

log = logging.getLogger("validator")

_LAST_PART = 10  # in the last tenth of the time to appeal nothing is judged or waited for any more
_REFUSED_SECONDS = 60.0  # until an appeal that was refused is tried again


class StandingBy:
    def __init__(
        self,
        connection: Connection,
        book: Book,
        sender: Sender,
        judgements: JudgementLog,
        judge: Callable[[SubmissionRef, Case], Opinion | None],
        retry_seconds: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """`judge` judges a submission of a case in full: None while that cannot be done, and it is asked again after `retry_seconds`."""
        self._c = connection
        self._book = book
        self._sender = sender
        self._log = judgements
        self._judge = judge
        self._address = connection.key.address
        self._answered: set[CaseName] = set()
        self._next: dict[CaseName, int] = {}  # block time before which a case is not looked at
        self._backoff = Backoff(retry_seconds, clock=clock)

    def concerns(self, entry: CaseEntry) -> bool:
        """Whether a case that nobody has appealed yet calls cheating what this validator has accepted."""
        return bool(self._accepted(entry)) and entry.name not in self._answered

    def turn(self, open_cases: Sequence[CaseEntry], now: int) -> bool:
        """Answers the next case that is due; False when there is none. `now` in block time."""
        due = (each for each in open_cases if now >= self._next.get(each.name, 0) and each.name not in self._backoff)
        return any(self._answer(each, now) for each in due if self.concerns(each))

    def _accepted(self, entry: CaseEntry) -> int:
        """The rows (bits) that this validator's receipt vouches for, in the submission of a hard case that waits for an appeal."""
        if not entry.hard or entry.is_appealed or entry.stage != CaseStage.NONE:
            return 0
        judgement = self._log.get(entry.refs[0].submission_id(self._c.run))
        receipt = None if judgement is None else Receipt.stored(judgement.receipt)
        return receipt.samples if receipt is not None and receipt.outcome == Outcome.ACCEPT else 0

    def _answer(self, entry: CaseEntry, now: int) -> bool:
        """Whether the submission was judged, which takes its time."""
        (seat, number), run = entry.name, self._c.run
        case = self._book.ask(lambda one, at: one.case(run, seat, number, at=at), f"case {number} against {seat}")
        due = case.deadline - self._c.policy.appeal // 2
        if now < due:
            self._next[entry.name] = due
            return False
        if not case.samples & self._accepted(entry) or self._address in case.parties[:2] or now >= case.deadline:
            self._answered.add(entry.name)
            return False
        is_late = now >= case.deadline - self._c.policy.appeal / _LAST_PART
        found = None if is_late else self._judge(entry.refs[0], case)
        if found is None and not is_late:
            self._backoff.failed(entry.name)
            return False
        said = None if found is None else finding(case, found)
        if said is not None and said[1]:
            log.error(
                "case %d against %s names rows that this validator accepted, and judged again they are false",
                number,
                seat,
            )
            self._answered.add(entry.name)
        elif self._appeal(entry.name, case):
            self._answered.add(entry.name)
        else:
            self._backoff.hold(entry.name, _REFUSED_SECONDS)
        return not is_late

    def _appeal(self, name: CaseName, case: Case) -> bool:
        """False where it was refused, which may pass: gas money arrives, a bond is freed, an endpoint has lagged."""
        seat, number = name
        try:
            call = self._c.chain.appeal(self._c.run, seat, number)
            self._sender.send(call, name=f"appeal/{seat}/{number}/{int(case.again)}")
        except (TransactionReverted, InsufficientFunds) as error:
            log.warning(
                "case %d against %s, which names rows that this validator accepted, is not appealed yet: %s",
                number,
                seat,
                error,
            )
            return False
        log.warning("appealed case %d against %s: this validator accepted rows that it names", number, seat)
        return True
