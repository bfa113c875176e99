"""What the contracts return, as dataclasses: checksummed addresses, integer wei, times in seconds of block time.

Names and order are those of the Solidity structs; the meaning of each field is documented there.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum

from eth_abi import encode as abi_encode
from eth_typing import ChecksumAddress
from eth_utils import keccak


class Role(IntEnum):
    NONE = 0
    ACTIVE = 1
    LEFT = 2
    BANNED = 3


class State(IntEnum):
    """Of a work."""

    NONE = 0
    SUBMITTED = 1
    CHALLENGED = 2
    APPEALED = 3
    REVOKED = 4
    CLEARED = 5


@dataclass(frozen=True)
class Policy:
    owner: ChecksumAddress
    window: int
    appeal: int
    vote: int
    trainer: ChecksumAddress
    grace: int
    max_units: int
    max_per_step: int
    gate: ChecksumAddress
    finder_bps: int
    quorum: int
    node_stake: int
    validator_stake: int
    penalty: int
    bond: int
    reward: int

    def as_tuple(self) -> tuple[object, ...]:
        return astuple(self)


@dataclass(frozen=True)
class Funds:
    free: int
    reserved: int


@dataclass(frozen=True)
class Account:
    active: int
    locked: int
    leaving: int
    ready_at: int


@dataclass(frozen=True)
class Publication:
    step: int
    manifest: bytes
    beacon: bytes
    block: int
    time: int


@dataclass(frozen=True)
class Seat:
    operator: ChecksumAddress
    role: Role
    hardware: int
    open_hard: int
    swept: bool
    since: int
    ring: int
    vested: int
    safe: int
    step: int
    next: int

    def next_sequence(self, step: int) -> int | None:
        """The sequence number the contract expects for `step`; None when the seat has moved past it."""
        if self.next == 0 or step > self.step:
            return 0
        return self.next if step == self.step else None


@dataclass(frozen=True)
class Work:
    time: int
    units: int
    state: State


@dataclass(frozen=True)
class Case:
    challenger: ChecksumAddress
    hard: bool
    deadline: int
    uphold: int
    reject: int
    evidence: bytes


@dataclass(frozen=True)
class Ref:
    """Names a work within a run."""

    node: ChecksumAddress
    step: int
    sequence: int
    root: bytes

    def as_tuple(self) -> tuple[object, ...]:
        return astuple(self)

    def work_id(self, run: int) -> bytes:
        """keccak256(abi.encode(run, node, step, sequence, root)), as Runs.workId."""
        kinds = ["uint256", "address", "uint32", "uint32", "bytes32"]
        return keccak(abi_encode(kinds, [run, self.node, self.step, self.sequence, self.root]))


@dataclass(frozen=True)
class Block:
    number: int
    hash: bytes
    time: int
