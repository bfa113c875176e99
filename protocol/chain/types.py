"""What the contracts return, as dataclasses: checksummed addresses, integer wei, times in seconds of block time.

Names and order are those of the Solidity structs; the meaning of each field is documented there.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress


class Role(IntEnum):
    """Of a node's seat."""

    NONE = 0
    ACTIVE = 1
    LEFT = 2
    """Of its own, or for want of stake; may come back."""
    BANNED = 3
    """For good: convicted, or by the run's owner; then it works on until `Seat.until`."""


class State(IntEnum):
    """Of a submission, as its last case left it; submissions that a conviction took with the rest of the window stay SUBMITTED."""

    NONE = 0
    SUBMITTED = 1
    CHALLENGED = 2
    APPEALED = 3
    REVOKED = 4
    CLEARED = 5
    """By a majority, or given back for want of one."""
    UNDECIDED = 6
    """Still withheld: another validator may challenge again."""


class Stage(IntEnum):
    """Of a case."""

    NONE = 0
    OPEN = 1
    APPEALED = 2
    UPHELD = 3
    UNDECIDED = 4
    """Some submissions found no majority: another validator may challenge the case again until its deadline."""
    CLEARED = 5
    SPLIT = 6
    """`upheld` earn nothing, the others what they would have earned."""
    RETURNED = 7
    """None found a majority: the submissions earn what they would have earned."""

    @property
    def closed(self) -> bool:
        return self >= Stage.UPHELD and self != Stage.UNDECIDED


@dataclass(frozen=True)
class Policy:
    owner: ChecksumAddress
    fee: int
    trainer: ChecksumAddress
    reward: int
    gate: ChecksumAddress
    notice: int
    grace: int
    max_units: int
    bond: int
    jury_fee: int
    bond_bps: int
    finder_bps: int
    co_signers: int
    strikes: int
    leverage: int
    window: int
    appeal: int
    vote: int
    max_per_step: int
    node_stake: int
    penalty: int
    validator_stake: int
    voucher_cap: int

    def as_tuple(self) -> tuple[object, ...]:
        return astuple(self)

    @property
    def span(self) -> int:
        """Seconds from a submission to the last moment at which a case on it can be open."""
        return self.window + 3 * self.appeal + 2 * self.vote

    @property
    def jury(self) -> int:
        """Validators without whom no weights are published: challenger, co-signer and one juror, where appeals exist."""
        return 2 + self.co_signers if self.appeal else 0

    def bond_for(self, units: int) -> int:
        """Wei that the challenger of so many units risks (Court.bondFor)."""
        return max(self.bond, self.reward * units * self.bond_bps // 10_000)

    def liars_borne(self, validators: int) -> int:
        """How many of so many validators may lie, stay silent or be bribed while those left decide a hard case: a majority of
        everybody but challenger and co-signer. 0 as well where verdicts are final at once."""
        jurors = validators - 1 - self.co_signers
        return max(0, (jurors - 1) // 2) if self.appeal else 0


@dataclass(frozen=True)
class Funds:
    free: int
    reserved: int


@dataclass(frozen=True)
class Status:
    """Of a run. A time of 0: never."""

    paused_from: int
    defunded_from: int
    leaving: int


@dataclass(frozen=True)
class Account:
    active: int
    locked: int
    leaving: int
    ready_at: int

    @property
    def free(self) -> int:
        """What may back another seat, or leave."""
        return self.active - self.locked


@dataclass(frozen=True)
class Publication:
    step: int
    manifest: bytes
    beacon: bytes
    """Zeros: not drawn yet."""
    block: int
    time: int
    superseded: int

    @property
    def is_drawn(self) -> bool:
        return any(self.beacon)


@dataclass(frozen=True)
class Seat:
    operator: ChecksumAddress
    role: Role
    rotated: bool
    swept: bool
    since: int
    worth: int
    """Units whose reward its stake answers for."""
    ring: int
    vested: int
    step: int
    next: int
    held: int
    proven: int
    """Units it was ever paid for."""
    open_cases: int
    open_hard: int
    strikes: int
    strikes_since: int
    locked: int
    safe: int
    until: int
    hardware: int
    cases: int
    key: ChecksumAddress
    spent: int
    shut_until: int

    def most(self, leverage: int) -> int:
        """Units it may have at risk of a verdict, under a policy of this `leverage`: Runs' `_most`."""
        return min(self.worth * leverage, self.worth + self.proven, 2**32 - 1)

    def is_shut(self, now: int) -> bool:
        """Whether an open hard case keeps it from submitting; `now` in block time."""
        return self.open_hard > 0 and now < self.shut_until

    def next_sequence(self, step: int) -> int | None:
        """The sequence number the contract expects for `step`; None when the seat has moved past it."""
        if self.next == 0 or step > self.step:
            return 0
        return self.next if step == self.step else None

    def serves(self, now: int) -> bool:
        """Whether the seat may work; the owner's ban takes effect at `until`. `now` in block time."""
        return self.role == Role.ACTIVE or (self.role == Role.BANNED and now < self.until)

    def suspended_until(self, policy: Policy, now: int) -> int | None:
        """Block time at which too many strikes are forgotten; None when the seat is not suspended."""
        until = self.strikes_since + policy.window
        return until if self.strikes >= policy.strikes and now < until else None


@dataclass(frozen=True)
class Validator:
    locked: int
    at_risk: int
    approved: bool
    since: int
    until: int
    place: int

    @property
    def free(self) -> int:
        """Of its lock, what may be put at risk in further cases."""
        return max(0, self.locked - self.at_risk)

    def serves(self, now: int) -> bool:
        """Whether its seat counts; a removal takes effect at `until`. `now` in block time."""
        return self.since != 0 and (self.until == 0 or now < self.until)


@dataclass(frozen=True)
class SubmissionState:
    time: int
    units: int
    number: int
    """The seat's case that last took its units; 0: none did."""
    index: int
    """Its place in that case."""


@dataclass(frozen=True)
class Case:
    challenger: ChecksumAddress
    earliest: int
    deadline: int
    stage: Stage
    submissions: int
    """How many it listed: they are bits 0 … submissions - 1 of every bitmap, in the order of their events."""
    ring: int
    co_signer: ChecksumAddress
    bond: int
    hard: bool
    """Brought as hard; when it is closed: convicted."""
    appellant: ChecksumAddress
    jurors: int
    keyed: bool
    again: bool
    """Challenged a second time, after a vote that decided nothing."""
    parted: bool
    """Whether some of its submissions are gone."""
    samples: int
    """Of a hard case: those found false; 0: none by itself, but the sums over the seat's work."""
    excused: int
    gone: int
    upheld: int
    cleared: int

    @property
    def parties(self) -> tuple[str, str, str]:
        return self.challenger, self.co_signer, self.appellant

    @property
    def members(self) -> int:
        """The submissions it is about now, as bits."""
        return ((1 << self.submissions) - 1) & ~self.gone


@dataclass(frozen=True)
class Settlement:
    """One end of a stage of a case, as its event has it. `units` and `slashed` in wei are what this took."""

    stage: Stage
    units: int
    slashed: int
    convicted: bool
    transaction: bytes
    block: int


@dataclass(frozen=True)
class Block:
    number: int
    hash: bytes
    time: int


@dataclass(frozen=True)
class Ballot:
    """What some jurors of a case found alike. Bit i: submission i of the case; of `jurors`: the validator whose place is i."""

    found_false: int
    found_hard: int
    jurors: int


@dataclass(frozen=True)
class Offer:
    """Who may take over a seat, and until when in block time."""

    to: ChecksumAddress
    deadline: int
