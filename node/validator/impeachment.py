"""Holding other validators to their word: who accepted a sample that a hard case convicted loses a bond, to whoever shows it.

A receipt binds its signer (docs/contracts.md). This validator has read the others' receipts anyway; the finder's share pays for
looking. It never acts on its own receipts, and what the contract refuses (somebody was quicker) is not tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from node.validator.judgement_log import CaseName
from protocol.chain import Sender
from protocol.chain.events import Challenged, Impeached
from protocol.chain.sync import Book
from protocol.chain.types import Stage
from protocol.chain.view import CaseEntry
from protocol.clock import SYSTEM, Clock
from protocol.errors import InsufficientFunds, MurmurationError, TransactionReverted, Unavailable
from protocol.retry import Backoff
from protocol.shell.connection import Connection, is_fatal
from protocol.shell.money import tokens
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt

log = logging.getLogger("validator")


class Impeachment:
    def __init__(
        self,
        connection: Connection,
        sender: Sender,
        book: Book,
        receipts: Callable[[bytes], Mapping[str, Receipt]],
        retry_seconds: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """`receipts`: what validators have said of a submission, by validator, also those who have left since."""
        self._c = connection
        self._sender = sender
        self._book = book
        self._receipts = receipts
        self._due: dict[CaseName, list[Receipt]] = {}
        """Convictions, and accepting receipts that were not held against them yet."""
        self._backoff = Backoff(retry_seconds, clock=clock)
        self._has_looked_back = False

    def heard_of(self, name: CaseName) -> None:
        """Something happened in a case: it may be a conviction by now, or, after a reorg, none any more."""
        self._due.pop(name, None)
        case = self._book.case(*name)
        if case is not None and _names_samples(case):
            self._convicted(case)

    def heard(self, receipt: Receipt) -> None:
        """A validator has spoken, perhaps on what was convicted long ago."""
        if self._is_to_blame(receipt):
            for case in self._book.cases_of(receipt.submission):
                if _names_samples(case):
                    self._due.setdefault(case.name, []).append(receipt)

    def turn(self) -> None:
        """Impeaches whoever vouched for what was convicted, as far as their receipts are known by now."""
        if not self._has_looked_back:
            self._look_back()
            self._has_looked_back = True
        for name in [name for name in self._due if name not in self._backoff]:
            try:
                self._look(name)
            except MurmurationError as error:
                if is_fatal(error):
                    raise
                log.warning(
                    "who accepted what case %d against %s convicted is not impeached yet: %s", name[1], name[0], error
                )
                self._backoff.failed(name)
            else:
                del self._due[name]

    def _look_back(self) -> None:
        """Takes up what an earlier life left undone. No stake answers for receipts on cases that were opened so long ago, and
        nobody keeps them."""
        since = self._book.now() - 2 * self._c.policy.span
        for case in self._book.convictions():
            if self._book.time(self._book.events(Challenged, *case.name)[0]) < since:
                return
            if _names_samples(case):
                self._convicted(case)

    def _convicted(self, case: CaseEntry) -> None:
        accepted = [r for r in self._receipts(case.refs[0].submission_id(self._c.run)).values() if self._is_to_blame(r)]
        if accepted:
            self._due[case.name] = accepted

    def _is_to_blame(self, receipt: Receipt) -> bool:
        """Whether somebody else has vouched for a submission, and was not impeached for it."""
        if receipt.outcome is not Outcome.ACCEPT or receipt.validator == self._c.key.address:
            return False
        return all(e.data.submission != receipt.submission for e in self._book.events(Impeached, receipt.validator))

    def _look(self, name: CaseName) -> None:
        """Raises Unavailable from an endpoint that does not know of the case's end yet."""
        run = self._c.run
        case = self._book.ask(lambda one, at: one.case(run, *name, at=at), f"case {name[1]} against {name[0]}")
        if case.stage != Stage.UPHELD:
            raise Unavailable(f"case {name[1]} against {name[0]} is not upheld where it was asked about")
        accepted = self._due[name]
        while accepted:
            receipt = accepted[0]
            if case.samples & receipt.samples:
                self._impeach(name[1], receipt.details.ref, receipt)
            del accepted[0]  # only now: what fails half-way is tried again

    def _impeach(self, number: int, ref: SubmissionRef, accepted: Receipt) -> None:
        submission = ref.submission_id(self._c.run).hex()
        try:
            call = self._c.chain.impeach(self._c.run, ref, number, accepted.on_chain())
            sent = self._sender.send(call, name=f"impeach/{submission}/{accepted.validator}")
        except (TransactionReverted, InsufficientFunds) as error:
            log.warning("%s is not impeached for %s: %s", accepted.validator, submission[:12], error)
            return
        taken = tokens(sent.event(Impeached).slashed)
        log.warning("impeached %s, who had accepted %s: it lost %s", accepted.validator, submission[:12], taken)


def _names_samples(case: CaseEntry) -> bool:
    """Whether somebody can be held to account by a case: one that convicted as it was brought. A soft one whose jury found its
    submissions hard names none."""
    return case.convicts and case.hard
