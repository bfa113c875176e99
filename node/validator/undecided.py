"""Cases that a jury left undecided: another validator takes them up once more, with a bond of its own, for else what is false is paid.

A case is taken up as it stands, so this validator must have found every submission false that is still in it: as a juror of the first vote it
has judged them all. Of several that would, the first one does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from node.validator.judgement_log import JudgementLog
from protocol.chain import Sender
from protocol.chain.sync import Book
from protocol.chain.types import Case, Stage
from protocol.chain.view import CaseEntry
from protocol.clock import SYSTEM, Clock
from protocol.errors import InsufficientFunds, TransactionReverted
from protocol.retry import Backoff
from protocol.shell.connection import Connection
from protocol.verdict import Outcome, Receipt, evidence_of

log = logging.getLogger("validator")

_LOOK_SECONDS = 60.0  # until a case that is nothing for this validator is looked at again


class Undecided:
    def __init__(
        self,
        connection: Connection,
        book: Book,
        sender: Sender,
        judgements: JudgementLog,
        retry_seconds: float,
        clock: Clock = SYSTEM,
    ) -> None:
        self._c = connection
        self._book = book
        self._sender = sender
        self._log = judgements
        self._address = connection.key.address
        self._backoff = Backoff(retry_seconds, clock=clock)

    def turn(self, open_cases: Sequence[CaseEntry], now: int) -> None:
        """Challenges again what may be; `now` in block time."""
        for entry in open_cases:
            is_new = entry.stage == Stage.UNDECIDED and entry.name not in self._backoff
            if is_new and not self._take_up(entry, now):
                self._backoff.hold(entry.name, _LOOK_SECONDS)

    def _take_up(self, entry: CaseEntry, now: int) -> bool:
        """Whether it was taken up."""
        (seat, number), run = entry.name, self._c.run
        case = self._book.ask(lambda one, at: one.case(run, seat, number, at=at), f"case {number} against {seat}")
        if case.stage != Stage.UNDECIDED or now >= case.deadline or self._address in case.parties[:2]:
            return False
        receipts = self._false(entry, case)
        if receipts is None:
            return False
        call = self._c.chain.challenge_again(run, seat, number, evidence_of(receipts, self._c.chain.domain))
        try:
            self._sender.send(call, name=f"challenge-again/{seat}/{number}")
        except (TransactionReverted, InsufficientFunds) as error:
            log.info("case %d against %s is not taken up: %s", number, seat, error)
            return False
        log.warning("took up case %d against %s, which a jury had left undecided", number, seat)
        return True

    def _false(self, entry: CaseEntry, case: Case) -> list[Receipt] | None:
        """This validator's receipts of all that is still in the case; None where it has not found every submission false."""
        kept, found = self._log.opinions(entry.name), []
        for i, ref in enumerate(entry.refs):
            if not case.members >> i & 1:
                continue
            submission = ref.submission_id(self._c.run)
            judgement, opinion = self._log.get(submission), kept.get(submission)
            data = opinion.receipt if opinion is not None else None if judgement is None else judgement.receipt
            receipt = None if data is None else Receipt.stored(data)
            if receipt is None or receipt.outcome == Outcome.ACCEPT:
                return None
            found.append(receipt)
        return found
