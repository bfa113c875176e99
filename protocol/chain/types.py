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


class Stage(IntEnum):
    """Of a case."""

    NONE = 0
    OPEN = 1
    APPEALED = 2
    UPHELD = 3
    UNDECIDED = 4
    CLEARED = 5

    @property
    def closed(self) -> bool:
        return self >= Stage.UPHELD


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
    window: int
    appeal: int
    vote: int
    finder_bps: int
    quorum: int
    co_signers: int
    node_stake: int
    validator_stake: int
    penalty: int
    max_per_step: int
    leverage: int
    strikes: int

    def as_tuple(self) -> tuple[object, ...]:
        return astuple(self)

    @property
    def span(self) -> int:
        """Seconds from a submission to the last moment at which a case on it can be open."""
        return self.window + self.appeal + self.vote

    @property
    def jury(self) -> int:
        """Validators without whom no weights are published: quorum, challenger and co-signer, where appeals exist."""
        return self.quorum + 1 + self.co_signers if self.appeal else 0


@dataclass(frozen=True)
class Funds:
    free: int
    reserved: int


@dataclass(frozen=True)
class Status:
    """Of a run. A time of 0: never."""

    published: int
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
    block: int
    time: int
    superseded: int


@dataclass(frozen=True)
class Seat:
    operator: ChecksumAddress
    role: Role
    hardware: int
    rotated: bool
    since: int
    most: int
    ring: int
    vested: int
    step: int
    next: int
    held: int
    cases: int
    open_cases: int
    open_hard: int
    strikes: int
    strikes_since: int
    swept: bool
    locked: int
    safe: int
    until: int
    key: ChecksumAddress

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
    approved: bool
    since: int
    until: int
    open_cases: int
    locked: int

    def serves(self, now: int) -> bool:
        """Whether its seat counts; a removal takes effect at `until`. `now` in block time."""
        return self.since != 0 and (self.until == 0 or now < self.until)


@dataclass(frozen=True)
class SubmissionState:
    time: int
    units: int
    number: int
    """The seat's case that last took its units; 0: none did."""


@dataclass(frozen=True)
class Case:
    challenger: ChecksumAddress
    earliest: int
    deadline: int
    stage: Stage
    submissions: int
    ring: int
    appellant: ChecksumAddress
    uphold: int
    reject: int
    co_signer: ChecksumAddress
    hard: bool
    samples: int
    """Of a hard case: those found false; 0: none by itself, but the sums over the seat's work."""


@dataclass(frozen=True)
class Block:
    number: int
    hash: bytes
    time: int
