"""Serving on juries: a case that is appealed is put to the validators who were seated before the submission and are no party to it.

A juror judges all submissions of the case in full, by itself, and votes on the case as it was brought. A hard case names rows, and whoever
vouched for one of them loses a bond with the conviction. So a juror upholds where it finds one of them hard, and none of them to be what an honest
validator may have accepted. It need not find all hard: a cheat could put values at a limit, which lie beyond it for some devices and not for others.

A case without rows is about the seat's sums, which each juror takes of what it knows. One that has measured too little itself does not vote.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.judging.history import NOWHERE
from node.validator.judgement_log import CaseName
from protocol.chain import Sender
from protocol.chain.events import Voted
from protocol.chain.sync import Book
from protocol.chain.types import Case, Stage
from protocol.chain.view import CaseEntry
from protocol.clock import SYSTEM, Clock
from protocol.errors import TransactionReverted
from protocol.retry import Backoff
from protocol.shell.connection import Connection
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Outcome

log = logging.getLogger("validator")

_LOOK_SECONDS = 60.0  # until a case that needs nothing from this validator is looked at again


@dataclass(frozen=True)
class Opinion:
    """What a juror finds in a submission. Bit i of `near`: of sample i something lies nearer to its hard limit than to its soft one."""

    details: Details
    near: int
    is_doubtful: bool = False
    """Whether this validator cannot call the case wrong: it stands on the seat's sums, of which this one has seen too little, or it is a soft one
    against work of a build whose bits this machine does not compute."""


class Jury:
    def __init__(
        self,
        connection: Connection,
        book: Book,
        sender: Sender,
        judge: Callable[[SubmissionRef, Case], Opinion | None],
        retry_seconds: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """`judge` judges a submission of a case in full: None while that cannot be done, and it is asked again after `retry_seconds`."""
        self._c = connection
        self._book = book
        self._sender = sender
        self._judge = judge
        self._address = connection.key.address
        self._found: dict[CaseName, dict[SubmissionRef, Opinion]] = {}
        self._backoff = Backoff(retry_seconds, clock=clock)

    def serve(self, appeals: Sequence[CaseEntry], now: int) -> bool:
        """Judges one submission of a case, and votes when that was the last; False when there is none. `appeals`: cases that
        wait for votes; `now` in block time."""
        names = {entry.name for entry in appeals}
        self._found = {name: found for name, found in self._found.items() if name in names}
        return any(entry.name not in self._backoff and self._serve(entry, now) for entry in appeals)

    def _serve(self, entry: CaseEntry, now: int) -> bool:
        name, refs = entry.name, entry.refs
        case = self._open_to_me(entry, now)
        if case is None:
            self._backoff.hold(name, _LOOK_SECONDS)
            return False
        found = self._found.setdefault(name, {})
        left = [ref for ref in refs if ref not in found]
        if left:
            judged = self._judge(left[0], case)
            if judged is None:
                self._backoff.failed(name)
                return False
            found[left[0]] = judged
        if len(left) <= 1:
            self._vote(name, case, [found[ref] for ref in refs])
            self._backoff.hold(name, _LOOK_SECONDS)
            del self._found[name]
        return True

    def _open_to_me(self, entry: CaseEntry, now: int) -> Case | None:
        """The case, while it is voted on and this validator is a juror of it that has not voted."""
        run, name = self._c.run, entry.name
        case = self._book.ask(lambda one, at: one.case(run, *name, at=at), f"case {name[1]} against {name[0]}")
        parties = (case.challenger, case.co_signer, case.appellant)
        if case.stage != Stage.APPEALED or now >= case.deadline or self._address in parties:
            return None
        if any(event.data.validator == self._address for event in self._book.events(Voted, *name)):
            return None
        own = self._book.ask(lambda one, at: one.validator(run, self._address, at=at), "this validator's seat")
        if own.since >= case.earliest:
            return None
        return case

    def _vote(self, name: CaseName, case: Case, found: Sequence[Opinion]) -> None:
        seat, number = name
        uphold = _upholds(case, found)
        if uphold is None:
            log.info("case %d against %s: found false, but not as it was brought; no vote", number, seat)
            return
        try:
            self._sender.send(self._c.chain.vote(self._c.run, seat, number, uphold), name=f"vote/{seat}/{number}")
        except TransactionReverted as error:
            log.info("no vote on case %d against %s: %s", number, seat, error)
        else:
            log.info("voted to %s case %d against %s", "uphold" if uphold else "reject", number, seat)


def _upholds(case: Case, found: Sequence[Opinion]) -> bool | None:
    """The vote of a juror that found this; None: none, for the case is right about the submission and wrong about its gravity or its rows."""
    accepted = [one for one in found if one.details.outcome == Outcome.ACCEPT]
    if any(not one.is_doubtful for one in accepted):
        return False
    if accepted:
        return None
    if not case.hard:
        return True
    (only,) = found
    if only.details.outcome != Outcome.HARD:
        return None
    hard = int(only.details.samples, 16)
    if case.samples == NOWHERE:  # of the seat's sums
        return True if hard == NOWHERE else None
    names_a_false_one, names_a_good_one = case.samples & hard, case.samples & ~(hard | only.near)
    return True if names_a_false_one and not names_a_good_one else None
