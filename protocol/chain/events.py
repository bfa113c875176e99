"""Events of the contracts, one dataclass each; field names are those of the Solidity events, in snake case (`from` is `from_`).

An `Event` is one of them together with where it stands in the chain.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from eth_typing import ChecksumAddress


class Emitted:
    """Base of all. Events are found by their kind, whom they are about and a number (`Book`, book_schema.py)."""

    SUBJECT: ClassVar[str] = ""
    """The field that says whom it is about; "": the run, or nobody."""
    NUMBER: ClassVar[str] = ""
    """The field that narrows it down; "": none."""

    @property
    def found_by(self) -> tuple[str, int]:
        return (
            str(getattr(self, self.SUBJECT)) if self.SUBJECT else "",
            int(getattr(self, self.NUMBER)) if self.NUMBER else 0,
        )


@dataclass(frozen=True)
class RunCreated(Emitted):
    run: int
    owner: ChecksumAddress
    spec_digest: bytes
    policy: Any


@dataclass(frozen=True)
class Funded(Emitted):
    run: int
    amount: int


@dataclass(frozen=True)
class Defunding(Emitted):
    run: int
    amount: int
    from_: int


@dataclass(frozen=True)
class Paused(Emitted):
    run: int
    paused: bool
    from_: int


@dataclass(frozen=True)
class Published(Emitted):
    NUMBER = "step"

    run: int
    step: int
    manifest: bytes


@dataclass(frozen=True)
class Drawn(Emitted):
    NUMBER = "step"

    run: int
    step: int
    beacon: bytes


@dataclass(frozen=True)
class Redrawn(Emitted):
    NUMBER = "step"

    run: int
    step: int
    source: int


@dataclass(frozen=True)
class Appointed(Emitted):
    SUBJECT = "trainer"

    run: int
    trainer: ChecksumAddress
    from_: int


@dataclass(frozen=True)
class Joined(Emitted):
    SUBJECT = "node"
    NUMBER = "hardware"

    run: int
    node: ChecksumAddress
    operator: ChecksumAddress
    peer: bytes
    hardware: int


@dataclass(frozen=True)
class Rotated(Emitted):
    SUBJECT = "seat"

    run: int
    node: ChecksumAddress
    seat: ChecksumAddress
    peer: bytes


@dataclass(frozen=True)
class Offered(Emitted):
    SUBJECT = "seat"

    run: int
    seat: ChecksumAddress
    to: ChecksumAddress
    deadline: int


@dataclass(frozen=True)
class HandedOver(Emitted):
    SUBJECT = "seat"

    run: int
    seat: ChecksumAddress
    to: ChecksumAddress
    from_: ChecksumAddress


@dataclass(frozen=True)
class Left(Emitted):
    SUBJECT = "seat"

    run: int
    seat: ChecksumAddress
    role: int
    until: int


@dataclass(frozen=True)
class Released(Emitted):
    SUBJECT = "seat"

    run: int
    seat: ChecksumAddress
    operator: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Submitted(Emitted):
    SUBJECT = "node"
    NUMBER = "step"

    run: int
    node: ChecksumAddress
    root: bytes
    step: int
    sequence: int
    units: int


@dataclass(frozen=True)
class Skipped(Emitted):
    SUBJECT = "node"
    NUMBER = "step"

    run: int
    node: ChecksumAddress
    step: int
    sequence: int


@dataclass(frozen=True)
class Claimed(Emitted):
    SUBJECT = "seat"

    run: int
    seat: ChecksumAddress
    operator: ChecksumAddress
    units: int
    amount: int


@dataclass(frozen=True)
class ValidatorApproved(Emitted):
    SUBJECT = "validator"

    run: int
    validator: ChecksumAddress
    approved: bool


@dataclass(frozen=True)
class ValidatorSeated(Emitted):
    SUBJECT = "validator"
    NUMBER = "until"

    run: int
    validator: ChecksumAddress
    seated: bool
    until: int


@dataclass(frozen=True)
class ValidatorReinforced(Emitted):
    SUBJECT = "validator"

    run: int
    validator: ChecksumAddress
    locked: int


@dataclass(frozen=True)
class ValidatorReleased(Emitted):
    SUBJECT = "validator"

    run: int
    validator: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Challenged(Emitted):
    SUBJECT = "seat"
    NUMBER = "number"

    run: int
    node: ChecksumAddress
    root: bytes
    step: int
    sequence: int
    challenger: ChecksumAddress
    hard: bool
    evidence: bytes
    seat: ChecksumAddress
    number: int


@dataclass(frozen=True)
class ChallengedAgain(Emitted):
    SUBJECT = "seat"
    NUMBER = "number"

    run: int
    seat: ChecksumAddress
    number: int
    challenger: ChecksumAddress
    evidence: bytes


@dataclass(frozen=True)
class CoSigned(Emitted):
    SUBJECT = "seat"
    NUMBER = "number"

    run: int
    seat: ChecksumAddress
    number: int
    co_signer: ChecksumAddress
    details: bytes


@dataclass(frozen=True)
class Appealed(Emitted):
    SUBJECT = "seat"
    NUMBER = "number"

    run: int
    seat: ChecksumAddress
    number: int
    appellant: ChecksumAddress


@dataclass(frozen=True)
class Voted(Emitted):
    SUBJECT = "seat"
    NUMBER = "number"

    run: int
    seat: ChecksumAddress
    number: int
    validator: ChecksumAddress
    found_false: int
    found_hard: int
    receipts: bytes


@dataclass(frozen=True)
class Abstained(Emitted):
    SUBJECT = "seat"
    NUMBER = "number"

    run: int
    seat: ChecksumAddress
    number: int
    validator: ChecksumAddress
    reason: str


@dataclass(frozen=True)
class Settled(Emitted):
    SUBJECT = "seat"
    NUMBER = "number"

    run: int
    seat: ChecksumAddress
    number: int
    stage: int
    upheld: int
    cleared: int
    convicted: bool
    units: int
    slashed: int


@dataclass(frozen=True)
class Silent(Emitted):
    SUBJECT = "seat"
    NUMBER = "number"

    run: int
    seat: ChecksumAddress
    number: int
    validator: ChecksumAddress
    charged: int


@dataclass(frozen=True)
class Impeached(Emitted):
    SUBJECT = "validator"

    run: int
    validator: ChecksumAddress
    submission: bytes
    finder: ChecksumAddress
    slashed: int


@dataclass(frozen=True)
class Deposited(Emitted):
    account: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Unbonding(Emitted):
    account: ChecksumAddress
    amount: int
    ready_at: int


@dataclass(frozen=True)
class Rebonded(Emitted):
    account: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Withdrawn(Emitted):
    account: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Slashed(Emitted):
    account: ChecksumAddress
    amount: int
    finder: ChecksumAddress
    finder_share: int


@dataclass(frozen=True)
class Disbursed(Emitted):
    account: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Moved(Emitted):
    from_: ChecksumAddress
    to: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class VouchersFunded(Emitted):
    run: int
    amount: int


@dataclass(frozen=True)
class Redeemed(Emitted):
    SUBJECT = "validator"

    run: int
    validator: ChecksumAddress
    amount: int
    total: int


@dataclass(frozen=True)
class Located(Emitted):
    run: int
    where: bytes


@dataclass(frozen=True)
class Dripped(Emitted):
    account: ChecksumAddress
    amount: int


KINDS: dict[str, type[Emitted]] = {
    kind.__name__: kind
    for kind in (
        RunCreated, Funded, Defunding, Paused, Published, Drawn, Redrawn, Appointed, Joined, Rotated, Offered, HandedOver,
        Left, Released, Submitted, Skipped, Claimed, ValidatorApproved, ValidatorSeated, ValidatorReinforced,
        ValidatorReleased, Challenged, ChallengedAgain, CoSigned, Appealed, Voted, Abstained, Settled, Silent, Impeached,
        Deposited, Unbonding, Rebonded, Withdrawn, Slashed, Disbursed, Moved, VouchersFunded, Redeemed, Located, Dripped,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Event:
    """`block`, `log_index` and `block_hash` place the event; together they name it for good."""

    data: Any
    block: int
    block_hash: bytes
    log_index: int
    transaction: bytes


def from_log(name: str, arguments: dict[str, Any]) -> Any:
    """The dataclass of the event `name`; None for events of other contracts (token transfers)."""
    kind = KINDS.get(name)
    if kind is None:
        return None
    values = {field_name(key): bytes(value) if isinstance(value, bytes) else value for key, value in arguments.items()}
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def field_name(name: str) -> str:
    """What the ABI calls `name`, as fields of dataclasses are called."""
    found = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return "from_" if found == "from" else found  # a word of Python's own


def dumps(data: Any) -> str:
    """JSON of one event's fields, for the book's database."""
    values = {field.name: getattr(data, field.name) for field in fields(data)}
    return json.dumps({k: {"hex": v.hex()} if isinstance(v, bytes) else v for k, v in values.items()}, default=list)


def loads(name: str, text: str) -> Any:
    values = json.loads(text)
    return KINDS[name](**{k: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for k, v in values.items()})
