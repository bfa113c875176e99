"""Counts of a run, kept up to date from its book and its receipts: what a page shows of nodes, validators and versions.

They follow both by cursor, so that a turn costs what is new and never what is old; what a reorganisation takes back is subtracted again.
Memory grows with seats and versions, and with submissions by a few bytes each up to a limit. Nothing here asks the chain.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from protocol.chain.events import (
    Abstained,
    Appealed,
    Challenged,
    ChallengedAgain,
    Claimed,
    CoSigned,
    Event,
    Funded,
    HandedOver,
    Impeached,
    Joined,
    Left,
    Published,
    Redeemed,
    Rotated,
    Settled,
    Silent,
    ValidatorSeated,
    Voted,
)
from protocol.chain.types import Role
from protocol.chain.view import Submission, View
from protocol.verdict import Outcome
from trainer.page.sources import ReceiptIndex

BATCH = 500
"""Entries of the book or of the receipts that are read at once; between two the hub's other threads have their turn."""
RECENT = 25
"""Verdicts that are shown, of all and of rejections."""
MINUTES = 180
"""Of block time, over which the pace is shown."""
_OUTCOMES_MAX = 500_000  # submissions whose outcome is remembered: one judged again after as many others counts twice
_LETTERS_MAX = 200  # of what a rule measured
_OF_CASES = (Challenged, ChallengedAgain, CoSigned, Appealed, Voted, Abstained, Settled, Silent)


@dataclass
class OutcomeTally:
    """How submissions were judged."""

    accepted: int = 0
    soft: int = 0
    hard: int = 0

    def add(self, outcome: int, sign: int = 1) -> None:
        match outcome:
            case Outcome.ACCEPT:
                self.accepted += sign
            case Outcome.SOFT:
                self.soft += sign
            case Outcome.HARD:
                self.hard += sign


@dataclass
class WorkTally(OutcomeTally):
    """The work on one version of the weights, or of one seat."""

    submissions: int = 0
    units: int = 0


@dataclass
class SeatTally(WorkTally):
    """Of one seat, under all its keys."""

    last: int = 0
    """Block time of its last submission or of its joining."""
    step: int | None = None
    """Of that submission."""
    slashed: int = 0
    claimed: int = 0
    """Both in wei."""
    convictions: int = 0
    operator: str = ""
    hardware: int | None = None
    """Class in which the seat was taken last; None where the book does not tell."""
    role: Role = Role.ACTIVE

    @property
    def is_active(self) -> bool:
        """Whether it may work as far as events tell; a conviction is for good."""
        return self.role == Role.ACTIVE and self.convictions <= 0


@dataclass
class ValidatorTally(OutcomeTally):
    last: int = 0
    """Block time of its last verdict."""
    votes: int = 0
    abstentions: int = 0
    silences: int = 0
    impeachments: int = 0
    redeemed: int = 0
    """Wei that its vouchers have paid."""
    cases: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Those it brought or co-signed."""


@dataclass(frozen=True)
class VerdictLine:
    """A receipt as a table shows it."""

    submission: str
    node: str
    validator: str
    step: int
    sequence: int
    outcome: int
    rule: str
    measured: str
    threshold: str
    time: int


class RunTallies:
    """For one thread. `view` and `index` are its own connections."""

    def __init__(self, view: View, index: ReceiptIndex) -> None:
        self._view = view
        self._index = index
        self._cursor = 0
        self._receipts = 0
        self.seats: defaultdict[str, SeatTally] = defaultdict(SeatTally)
        self.validators: defaultdict[str, ValidatorTally] = defaultdict(ValidatorTally)
        self.versions: defaultdict[int, WorkTally] = defaultdict(WorkTally)
        self.pace: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        """Minute of block time → submissions, units."""
        self.recent: deque[VerdictLine] = deque(maxlen=RECENT)
        self.rejections: deque[VerdictLine] = deque(maxlen=RECENT)
        self.submissions = self.judged = 0
        self.funded = self.claimed = self.slashed = self.redeemed = 0
        self.changed_cases: set[tuple[str, int]] = set()
        """Cases that something happened to; whoever shows them takes them out."""
        self.is_whole = False
        """Whether all that was there has been read."""
        self._outcomes: dict[bytes, int] = {}
        self._seat_of: dict[str, str] = {}
        self._last_time = 0

    # ---- following -----------------------------------------------------------------------------------------------------

    def follow(self) -> bool:
        """Reads the next batch of book and receipts; whether there is more."""
        changes = self._view.changes_since(self._cursor, BATCH)
        for gone in changes.gone_submissions:
            self._count(gone, -1)
        for event in changes.gone_events:
            self._note(event, -1)
        for submission in changes.submissions:
            self._count(submission, 1)
        for event in changes.events:
            self._note(event, 1)
        self._cursor = changes.cursor
        receipts = self._index.receipts(self._receipts, BATCH)
        for number, data in receipts:
            self._receipts = number
            self._judge(data)
        self._forget_old()
        more = changes.more or len(receipts) == BATCH
        self.is_whole = self.is_whole or not more
        return more

    @property
    def progress(self) -> float:
        """Share of the book that has been read."""
        whole = self._view.position
        return 1.0 if self.is_whole or not whole else min(1.0, self._cursor / whole)

    def seat_of(self, node: str) -> str:
        seat = self._seat_of.get(node)
        if seat is None:
            seat = self._seat_of[node] = self._view.seat(node)
        return seat

    def _count(self, submission: Submission, sign: int) -> None:
        time = submission.time or self._last_time  # not looked up yet: about that of the one before
        self._last_time = max(self._last_time, time)
        seat = self.seats[self.seat_of(submission.node)]
        for work in (seat, self.versions[submission.step]):
            work.submissions += sign
            work.units += sign * submission.units
        self.submissions += sign
        pace = self.pace[time // 60]
        pace[0] += sign
        pace[1] += sign * submission.units
        if sign > 0 and time >= seat.last:
            seat.last, seat.step = time, submission.step

    def _judge(self, data: bytes) -> None:
        """One receipt, which the hub has checked before it stored it."""
        value = json.loads(data)
        details, validator = value["details"], value["validator"]
        line = VerdictLine(
            details["submission"], details["node"], validator, details["step"], details["sequence"], details["outcome"],
            details["rule"], details["measured"][:_LETTERS_MAX], details["threshold"][:_LETTERS_MAX], details["time"],
        )  # fmt: skip
        tally = self.validators[validator]
        tally.add(line.outcome)
        tally.last = max(tally.last, line.time)
        self.recent.append(line)
        if line.outcome != Outcome.ACCEPT:
            self.rejections.append(line)
        submission = bytes.fromhex(line.submission)
        before = self._outcomes.get(submission)
        if before is not None and before >= line.outcome:
            return
        self._outcomes[submission] = line.outcome
        self.judged += before is None
        for work in (self.seats[self.seat_of(line.node)], self.versions[line.step]):
            if before is not None:
                work.add(before, -1)
            work.add(line.outcome)

    def _forget_old(self) -> None:
        if len(self._outcomes) > _OUTCOMES_MAX:
            for submission in list(islice(self._outcomes, len(self._outcomes) - _OUTCOMES_MAX)):
                del self._outcomes[submission]
        oldest = self._last_time // 60 - MINUTES
        for minute in [minute for minute in self.pace if minute < oldest]:
            del self.pace[minute]

    # ---- events --------------------------------------------------------------------------------------------------------

    def _note(self, event: Event, sign: int) -> None:
        data = event.data
        if isinstance(data, _OF_CASES):
            self.changed_cases.add((data.seat, data.number))
            self._note_of_case(data, sign)
            return
        match data:
            case Joined() | Left() | HandedOver():
                self._take_seat(data.node if isinstance(data, Joined) else data.seat)
            case Rotated() if sign < 0:  # whose the key is, the next look tells
                self._seat_of.pop(data.node, None)
            case Published():
                self.versions[data.step]  # it has one, also while nobody has worked on it
            case ValidatorSeated():
                self.validators[data.validator]
            case Claimed():
                self.seats[self.seat_of(data.seat)].claimed += sign * data.amount
                self.claimed += sign * data.amount
            case Funded():
                self.funded += sign * data.amount
            case Redeemed():
                self.validators[data.validator].redeemed += sign * data.amount
                self.redeemed += sign * data.amount
            case Impeached():
                self.validators[data.validator].impeachments += sign

    def _note_of_case(self, data: Any, sign: int) -> None:
        match data:
            case Challenged() | ChallengedAgain():
                self.validators[data.challenger].cases[data.seat, data.number] += sign
            case CoSigned():
                self.validators[data.co_signer].cases[data.seat, data.number] += sign
            case Voted():
                self.validators[data.validator].votes += sign
            case Abstained():
                self.validators[data.validator].abstentions += sign
            case Silent():
                self.validators[data.validator].silences += sign
            case Settled():
                seat = self.seats[self.seat_of(data.seat)]
                seat.slashed += sign * data.slashed
                seat.convictions += sign * data.convicted
                self.slashed += sign * data.slashed

    def _take_seat(self, node: str) -> None:
        """As the book has it now, whether that came or went."""
        name = self.seat_of(node)
        seat = self.seats[name]
        joined = [event for key in self._view.keys(name) for event in self._view.events(Joined, key)]
        told = sorted((*joined, *self._view.events(HandedOver, name), *self._view.events(Left, name)), key=_place)
        seat.role = Role.ACTIVE
        for event in told:
            match event.data:
                case Joined():
                    seat.operator, seat.hardware, seat.role = event.data.operator, event.data.hardware, Role.ACTIVE
                    seat.last = seat.last or self._time_of(event)
                case HandedOver():
                    seat.operator = event.data.to
                case Left():
                    seat.role = Role(event.data.role)

    def _time_of(self, event: Event) -> int:
        return self._view.block_time(event.block) or self._last_time


def _place(event: Event) -> tuple[int, int]:
    return event.block, event.log_index
