"""What there is, and what follows from it by itself. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from protocol.chain.types import Policy, Role, Stage, State
from protocol.submission import SubmissionRef

EPOCHS_TO_MATURE = 6
BPS = 10_000

Hashes = Callable[[int], bytes]
"""What a transaction sees of the blocks before its own: hash by number, zeros for those more than 256 back or still to come."""


class Refused(Exception):
    """The contracts do not allow this; the text is the name of their error."""


def require(allowed: bool, error: str) -> None:
    if not allowed:
        raise Refused(error)


@dataclass
class Account:
    """Stake of one address."""

    active: int = 0
    locked: int = 0
    leaving: int = 0
    ready_at: int = 0


class Place(Enum):
    """Where the units of a submission are."""

    SEAT = auto()
    CASE = auto()
    REVOKED = auto()
    PAID = auto()


@dataclass
class Submission:
    ref: SubmissionRef
    time: int
    units: int
    place: Place = Place.SEAT
    case: int = 0
    """That last took the units; 0: none did."""
    index: int = 0
    """In that case."""
    safe: bool = False
    """Had matured, unpaid, when the first of the open hard cases was opened."""


@dataclass(frozen=True)
class Finding:
    """A juror's vote: the submissions it found false, and those of them that are cheating, by their place in the case."""

    false: frozenset[int]
    hard: frozenset[int]


@dataclass
class Case:
    challenger: str
    earliest: int
    """Time of the oldest submission: who was seated before judges."""
    deadline: int
    listed: list[Submission]
    bond: int
    """At risk for the challenger and for the co-signer, while the case is open."""
    stage: Stage = Stage.OPEN
    hard: bool = False
    """Brought as hard; when it is over: it convicted."""
    bare: bool = False
    """A hard case without units: a conviction or a case has revoked them, or another hard case has taken them over."""
    samples: int = 0
    """Of a hard case: those found false; 0: none by itself."""
    co_signer: str | None = None
    appellant: str | None = None
    """The validator that appealed; None: the seat did, or nobody."""
    keyed: bool = False
    """The seat's key appealed, not its operator."""
    again: bool = False
    """This is its second challenge."""
    jurors: int = 0
    excused: set[str] = field(default_factory=set)
    """May not vote: parties of the bench, and jurors that abstained."""
    votes: dict[str, Finding] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """No longer in it: accused, or decided by the first vote."""
    upheld: set[int] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)

    @property
    def disputed(self) -> bool:
        """Whether bonds are at risk in it."""
        return self.stage in (Stage.OPEN, Stage.APPEALED)

    @property
    def open(self) -> bool:
        return self.disputed or self.stage == Stage.UNDECIDED

    @property
    def members(self) -> set[int]:
        """The submissions it is about now."""
        return set(range(len(self.listed))) - self.gone

    def units(self, of: set[int]) -> int:
        """That it withholds of these."""
        return 0 if self.bare else sum(self.listed[i].units for i in of)

    def risks(self, validator: str, policy: Policy) -> int:
        """What a validator loses at most by this case as it stands."""
        brought = [self.challenger, self.co_signer].count(validator) * self.bond
        return (brought + (self.appellant == validator) * policy.bond) if self.disputed else 0

    def said_of(self, index: int) -> State:
        """A submission that this case was the last to take."""
        if index in self.upheld:
            return State.REVOKED
        if index in self.cleared or not self.open:
            return State.CLEARED
        return {Stage.OPEN: State.CHALLENGED, Stage.APPEALED: State.APPEALED}.get(self.stage, State.UNDECIDED)


@dataclass
class Seat:
    node: str
    """Its name: the first key it had."""
    rotated_to: str | None = None
    operator: str = ""
    offered: str | None = None
    """To whom its operator would hand it over, until `offer_ends`."""
    offer_ends: int = 0
    role: Role = Role.NONE
    hardware: int = 0
    since: int = 0
    until: int = 0
    locked: int = 0
    proven: int = 0
    """Units that it was paid for since its stake was last free."""
    most: int = 0
    """Units that it may have at risk of a verdict."""
    step: int = 0
    next: int = 0
    strikes: int = 0
    strikes_since: int = 0
    shut_until: int = 0
    """While a hard case is open it cannot submit before this."""
    spent: int = 0
    """Of its penalty."""
    swept: bool = False
    """Convicted."""
    submissions: list[Submission] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.rotated_to or self.node

    def serves(self, now: int) -> bool:
        return self.role == Role.ACTIVE or (self.role == Role.BANNED and now < self.until)

    @property
    def open_cases(self) -> int:
        return sum(case.open for case in self.cases)

    @property
    def open_hard(self) -> int:
        return sum(case.disputed and case.hard for case in self.cases)

    @property
    def held(self) -> int:
        return sum(submission.units for submission in self.submissions if submission.place == Place.CASE)

    def find(self, ref: SubmissionRef) -> Submission | None:
        return next((submission for submission in self.submissions if submission.ref == ref), None)

    def state_of(self, submission: Submission) -> State:
        return self.cases[submission.case - 1].said_of(submission.index) if submission.case else State.SUBMITTED


@dataclass
class Validator:
    place: int = 0
    """Validators are counted as they first take a seat."""
    approved: bool = False
    since: int = 0
    until: int = 0
    locked: int = 0

    @property
    def permanent(self) -> bool:
        """Has a seat, and no end of service in sight."""
        return self.since != 0 and self.until == 0

    def judges(self, time: int, span: int) -> bool:
        """What was submitted at `time`: seated before, and then without an announcement that its service ends."""
        return 0 < self.since < time and (self.until == 0 or self.until - span >= time)


@dataclass
class Publication:
    manifest: bytes
    block: int
    time: int
    source: int
    """Number of the block that its beacon is made of."""
    beacon: bytes = bytes(32)
    """Zeros: not drawn yet."""
    superseded: int = 0


@dataclass
class Run:
    policy: Policy
    free: int = 0
    reserved: int = 0
    leaving: int = 0
    defunded_from: int = 0
    paused_from: int = 0
    pot: int = 0
    redeemed: dict[str, int] = field(default_factory=dict)
    """By validator: what its vouchers have paid."""
    by_period: dict[int, int] = field(default_factory=dict)
    """What vouchers signed by the trainer have paid, by the window it was in."""
    appointed: list[tuple[int, str]] = field(default_factory=list)
    """(from when, the trainer's key), of those after the first."""
    replaced: list[str] = field(default_factory=list)
    """Trainer's keys that another was appointed to replace."""
    publications: list[Publication] = field(default_factory=list)
    seats: dict[str, Seat] = field(default_factory=dict)
    validators: dict[str, Validator] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Keys rotated in, and the seats they are of."""
    changed: set[int] = field(default_factory=set)
    """When a validator took its seat, or announced its end."""
    charges: dict[tuple[SubmissionRef, str], int] = field(default_factory=dict)
    """(submission, whose signature served to accuse its author) and the case: a signature serves once."""
    impeached: set[tuple[SubmissionRef, str]] = field(default_factory=set)

    def seat(self, node: str) -> Seat:
        """The seat that a key has or had; an empty one where it has none."""
        name = self.names.get(node, node)
        return self.seats.setdefault(name, Seat(name))

    def validator(self, address: str) -> Validator:
        return self.validators.setdefault(address, Validator())

    def trainer(self, now: int) -> str:
        return next((key for since, key in reversed(self.appointed) if now >= since), self.policy.trainer)

    def term(self, time: int) -> tuple[int, int]:
        """(first, last second) in which what is submitted has the same bench as at `time`. A validator judges what comes after it took its seat."""
        before = max((changed + 1 for changed in self.changed if changed < time), default=0)
        return before, min((changed for changed in self.changed if changed >= time), default=2**40 - 1)

    @property
    def seated(self) -> int:
        return sum(validator.permanent for validator in self.validators.values())

    def bench(self, time: int) -> set[str]:
        """Who judges what was submitted at `time`."""
        return {address for address, v in self.validators.items() if v.judges(time, self.policy.span)}

    def at_risk(self, validator: str) -> int:
        return sum(case.risks(validator, self.policy) for seat in self.seats.values() for case in seat.cases)

    def epoch(self, time: int) -> int:
        return time // -(-self.policy.window // 5)

    def matured(self, submission: Submission, now: int) -> bool:
        return self.epoch(now) >= self.epoch(submission.time) + EPOCHS_TO_MATURE

    def in_window(self, submission: Submission, now: int) -> bool:
        return now < submission.time + self.policy.window

    def payable(self, seat: Seat, now: int) -> list[Submission]:
        """What has matured; while a hard case is open, only what had matured before."""
        return [
            submission
            for submission in seat.submissions
            if submission.place == Place.SEAT
            and self.matured(submission, now)
            and (submission.safe or not seat.open_hard)
        ]

    def claimable(self, seat: Seat, now: int) -> tuple[int, int]:
        """(units that may be claimed now, units that still wait)"""
        ready = sum(submission.units for submission in self.payable(seat, now))
        mine = sum(submission.units for submission in seat.submissions if submission.place in (Place.SEAT, Place.CASE))
        return ready, mine - ready

    def exposed(self, seat: Seat, now: int) -> int:
        """Units at risk of a verdict: in cases, and not yet matured."""
        young = [w for w in seat.submissions if w.place == Place.SEAT and not self.matured(w, now)]
        return seat.held + sum(submission.units for submission in young)
