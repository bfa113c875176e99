"""Serving on juries: a case that is appealed is put to the validators who were seated before the submissions and are no party to it.

A juror judges each submission of the case in full, by itself, and votes once it knows all of them: on each, whether it earns nothing, and
whether it is cheating. What it found is kept on disk until the case is over, so that a restart judges nothing again; then the receipts go to the
hub, and their digest, which was in the vote, says that they are those.

Whoever vouched for a row that a hard case names loses a bond with the conviction. So a juror finds a submission hard as the case names it only where
it finds one of the named rows hard, and none of them to be what an honest validator may have accepted; otherwise it finds it false and no more, and
whoever found the right rows may accuse by these. It need not find all hard: a cheat could put values at a limit, which lie beyond it for some
devices and not for others.

What a juror cannot judge (weights gone, sums of which it has seen too little) it takes for honest where it knows others of the list: a list may
be drawn up so as to silence jurors. One that knows none of them abstains, which costs its pay; silence would cost more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from node.judging.history import NOWHERE
from node.validator.judgement_log import CaseName, JudgementLog, KeptOpinion
from protocol import metrics
from protocol.chain import Sender
from protocol.chain.events import Abstained, ChallengedAgain, Voted
from protocol.chain.sync import Book
from protocol.chain.types import Case
from protocol.chain.view import CaseEntry
from protocol.clock import SYSTEM, Clock
from protocol.errors import InsufficientFunds, TransactionReverted
from protocol.retry import Backoff
from protocol.shell.connection import Connection
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Outcome, Receipt, evidence_of

log = logging.getLogger("validator")

_DUE = metrics.gauge("murmur_validator_jury_cases", "Cases that wait for this validator's vote.")
_LOOK_SECONDS = 60.0  # until a case that needs nothing from this validator is looked at again
_LAST_PART = 10  # in the last tenth of the time to vote, or the last ten minutes, nothing is waited for any more
_LAST_SECONDS = 600
REASON_BYTES_MAX = 128
"""Of an abstention (Court.abstain)."""


@dataclass(frozen=True)
class Opinion:
    """What a juror finds in a submission. Bit i of `near`: of sample i something lies nearer to its hard limit than to its soft one."""

    details: Details
    near: int
    is_doubtful: bool = False
    """Whether this validator cannot call the case wrong: it stands on the seat's sums, of which this one has seen too little, or it is a soft one
    against work of a build whose bits this machine does not compute."""

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.details.outcome)


@dataclass(frozen=True)
class BallotPaper:
    """A vote: bit i is submission i of the case."""

    found_false: int
    found_hard: int
    judged: tuple[int, ...]
    """The submissions that the juror knows."""


class Jury:
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
        self._backoff = Backoff(retry_seconds, clock=clock)
        self._due: set[CaseName] = set()

    def serve(self, appeals: Sequence[CaseEntry], now: int, *, has_heard: bool = True) -> bool:
        """Judges one submission of a case, and votes when that was the last; False when there is none. `appeals`: cases that
        wait for votes; those appealed first have the least time left. `now` in block time. `has_heard`: whether others' words are known, on which
        some cases stand; they are waited for during half of the time to vote, for a hub that is down excuses no silence."""
        first = sorted(appeals, key=lambda entry: entry.position)
        served = any(entry.name not in self._backoff and self._serve(entry, now, has_heard) for entry in first)
        self._due &= {entry.name for entry in appeals}
        _DUE.set(len(self._due))
        return served

    def hand_over(self, open_cases: Sequence[CaseEntry]) -> None:
        """Has the receipts of cases that are over posted to the hub, but where this validator's first word is there already."""
        still = {entry.name for entry in open_cases}
        for name in self._log.juries():
            if name in still or self._book.case(*name) is None:
                continue  # a reorg took the case: it may come back
            self._log.hand_over(name)

    def _serve(self, entry: CaseEntry, now: int, has_heard: bool) -> bool:
        name = entry.name
        case = self._open_to_me(entry, now)
        if case is None:
            self._due.discard(name)
            self._backoff.hold(name, _LOOK_SECONDS)
            return False
        self._due.add(name)
        if not has_heard and now < case.deadline - self._c.policy.vote / 2:
            return False
        members = {i: ref for i, ref in enumerate(entry.refs) if case.members >> i & 1}
        found = self._found(name, members)
        left = [i for i in members if i not in found]
        is_late = now >= case.deadline - min(self._c.policy.vote / _LAST_PART, _LAST_SECONDS)
        if left and not is_late:
            at = next((i for i in left if (name, i) not in self._backoff), None)
            if at is None:
                return False
            opinion = self._judge(members[at], case)
            if opinion is None:
                self._backoff.failed((name, at))
                return False
            self._keep(name, members[at], opinion)
            found[at] = opinion
            left.remove(at)
        if not left or is_late:
            self._vote(name, case, members, found)
            self._backoff.hold(name, _LOOK_SECONDS)
        return True

    def _open_to_me(self, entry: CaseEntry, now: int) -> Case | None:
        """The case, while it is voted on and this validator is a juror of it that has not voted."""
        run, name = self._c.run, entry.name
        since = max((event.block for event in self._book.events(ChallengedAgain, *name)), default=-1)
        said = (*self._book.events(Voted, *name), *self._book.events(Abstained, *name))
        if any(event.data.validator == self._address and event.block >= since for event in said):
            return None
        about = f"case {name[1]} against {name[0]}"
        case = self._book.ask(lambda one, at: one.case(run, *name, at=at), about)
        if now >= case.deadline:
            return None
        is_mine = self._book.ask(lambda one, at: one.is_juror(run, *name, self._address, at=at), f"the jury of {about}")
        return case if is_mine else None

    # ---- what was found ------------------------------------------------------------------------------------------------

    def _found(self, name: CaseName, members: Mapping[int, SubmissionRef]) -> dict[int, Opinion]:
        kept = self._log.opinions(name)
        found = {}
        for i, ref in members.items():
            one = kept.get(ref.submission_id(self._c.run))
            if one is not None:
                found[i] = Opinion(Receipt.stored(one.receipt).details, int(one.near, 16), one.is_doubtful)
        return found

    def _keep(self, name: CaseName, ref: SubmissionRef, opinion: Opinion) -> None:
        receipt = Receipt.issue(opinion.details, self._c.key, self._c.chain.domain).encode()
        kept = KeptOpinion(ref.submission_id(self._c.run), receipt, hex(opinion.near), opinion.is_doubtful)
        self._log.keep_opinion(name, kept)

    def _receipts(self, name: CaseName, refs: Sequence[SubmissionRef], paper: BallotPaper) -> list[Receipt]:
        """What is handed over after the close: this validator's word of before where it has spoken in this sense, else what it found now."""
        kept = self._log.opinions(name)
        found = []
        for i in paper.judged:
            submission = refs[i].submission_id(self._c.run)
            before = self._log.get(submission)
            if before is not None:
                said = Receipt.stored(before.receipt)
                if (said.outcome != Outcome.ACCEPT) == bool(paper.found_false >> i & 1):
                    found.append(said)
                    continue
            found.append(Receipt.stored(kept[submission].receipt))
        return found

    # ---- the vote ------------------------------------------------------------------------------------------------------

    def _vote(
        self, name: CaseName, case: Case, members: Mapping[int, SubmissionRef], found: Mapping[int, Opinion]
    ) -> None:
        seat, number = name
        paper = ballot(case, found)
        if paper is None:
            reason = _reason(members, found)
            call, deed = self._c.chain.abstain(self._c.run, seat, number, reason), f"abstained: {reason}"
        else:
            refs = [members.get(i, SubmissionRef(seat, 0, 0, bytes(32))) for i in range(case.submissions)]  # type: ignore[arg-type]
            digest = evidence_of(self._receipts(name, refs, paper), self._c.chain.domain)
            call = self._c.chain.vote(self._c.run, seat, number, paper.found_false, paper.found_hard, digest)
            deed = (
                f"voted: {paper.found_false.bit_count()} of {len(members)} false, {paper.found_hard.bit_count()} hard"
            )
        try:
            self._sender.send(call, name=f"vote/{seat}/{number}/{int(case.again)}")
        except (TransactionReverted, InsufficientFunds) as error:
            log.warning("no vote on case %d against %s: %s", number, seat, error)
        else:
            self._due.discard(name)
            log.info("case %d against %s: %s", number, seat, deed)


def ballot(case: Case, found: Mapping[int, Opinion]) -> BallotPaper | None:
    """The vote of a juror that found this in submissions of a case; None: none, for it knows nothing of any."""
    known = {i: said for i, one in found.items() if (said := finding(case, one)) is not None}
    if not known:
        return None
    found_false = sum(1 << i for i, (is_false, _) in known.items() if is_false)
    return BallotPaper(found_false, sum(1 << i for i, (_, is_hard) in known.items() if is_hard), tuple(sorted(known)))


def finding(case: Case, one: Opinion) -> tuple[bool, bool] | None:
    """(false, hard) of a submission; None where this juror does not know."""
    if one.outcome == Outcome.ACCEPT:
        return None if one.is_doubtful else (False, False)
    if one.outcome == Outcome.SOFT:
        return True, False
    if not case.hard or case.samples == NOWHERE:
        return True, True
    hard = int(one.details.samples, 16)
    names_a_false_one, names_a_good_one = case.samples & hard, case.samples & ~(hard | one.near)
    return True, bool(names_a_false_one and not names_a_good_one)


def _reason(members: Mapping[int, SubmissionRef], found: Mapping[int, Opinion]) -> str:
    missing = len(members) - len(found)
    parts = [f"{missing} of {len(members)} could not be judged"] if missing else []
    if found:
        parts.append(f"{len(found)} stand on what this machine has not measured")
    return "; ".join(parts)[:REASON_BYTES_MAX]
