"""Events of the contracts, one dataclass each; field names are those of the Solidity events, in snake case (`from` is `from_`).

An `Event` is one of them together with where it stands in the chain.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any

from eth_typing import ChecksumAddress


@dataclass(frozen=True)
class RunCreated:
    run: int
    owner: ChecksumAddress
    spec_digest: bytes
    policy: Any


@dataclass(frozen=True)
class Funded:
    run: int
    amount: int


@dataclass(frozen=True)
class Defunding:
    run: int
    amount: int
    from_: int


@dataclass(frozen=True)
class Paused:
    run: int
    paused: bool
    from_: int


@dataclass(frozen=True)
class Published:
    run: int
    step: int
    manifest: bytes
    beacon: bytes


@dataclass(frozen=True)
class Joined:
    run: int
    node: ChecksumAddress
    operator: ChecksumAddress
    peer: bytes
    hardware: int


@dataclass(frozen=True)
class Rotated:
    run: int
    node: ChecksumAddress
    seat: ChecksumAddress
    peer: bytes


@dataclass(frozen=True)
class Offered:
    run: int
    seat: ChecksumAddress
    to: ChecksumAddress


@dataclass(frozen=True)
class HandedOver:
    run: int
    seat: ChecksumAddress
    to: ChecksumAddress
    from_: ChecksumAddress


@dataclass(frozen=True)
class Left:
    run: int
    seat: ChecksumAddress
    role: int
    until: int


@dataclass(frozen=True)
class Released:
    run: int
    seat: ChecksumAddress
    operator: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Submitted:
    run: int
    node: ChecksumAddress
    root: bytes
    step: int
    sequence: int
    units: int


@dataclass(frozen=True)
class Skipped:
    run: int
    node: ChecksumAddress
    step: int
    sequence: int


@dataclass(frozen=True)
class Claimed:
    run: int
    seat: ChecksumAddress
    operator: ChecksumAddress
    units: int
    amount: int


@dataclass(frozen=True)
class ValidatorApproved:
    run: int
    validator: ChecksumAddress
    approved: bool


@dataclass(frozen=True)
class ValidatorSeated:
    run: int
    validator: ChecksumAddress
    seated: bool
    until: int


@dataclass(frozen=True)
class ValidatorReinforced:
    run: int
    validator: ChecksumAddress
    locked: int


@dataclass(frozen=True)
class ValidatorReleased:
    run: int
    validator: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Challenged:
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
class CoSigned:
    run: int
    seat: ChecksumAddress
    number: int
    co_signer: ChecksumAddress
    details: bytes


@dataclass(frozen=True)
class Appealed:
    run: int
    seat: ChecksumAddress
    number: int
    appellant: ChecksumAddress


@dataclass(frozen=True)
class Voted:
    run: int
    seat: ChecksumAddress
    number: int
    validator: ChecksumAddress
    uphold: bool


@dataclass(frozen=True)
class Settled:
    run: int
    seat: ChecksumAddress
    number: int
    verdict: int
    hard: bool
    units: int
    slashed: int


@dataclass(frozen=True)
class Impeached:
    run: int
    validator: ChecksumAddress
    submission: bytes
    finder: ChecksumAddress
    slashed: int


@dataclass(frozen=True)
class Deposited:
    account: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Unbonding:
    account: ChecksumAddress
    amount: int
    ready_at: int


@dataclass(frozen=True)
class Rebonded:
    account: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Withdrawn:
    account: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class Slashed:
    account: ChecksumAddress
    amount: int
    finder: ChecksumAddress
    finder_share: int


@dataclass(frozen=True)
class Moved:
    from_: ChecksumAddress
    to: ChecksumAddress
    amount: int


@dataclass(frozen=True)
class VouchersFunded:
    run: int
    amount: int


@dataclass(frozen=True)
class Redeemed:
    run: int
    validator: ChecksumAddress
    amount: int
    total: int


KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        RunCreated, Funded, Defunding, Paused, Published, Joined, Rotated, Offered, HandedOver, Left, Released,
        Submitted, Skipped, Claimed, ValidatorApproved, ValidatorSeated, ValidatorReinforced, ValidatorReleased,
        Challenged, CoSigned, Appealed, Voted, Settled, Impeached, Deposited, Unbonding, Rebonded, Withdrawn,
        Slashed, Moved, VouchersFunded, Redeemed,
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
    values = {_snake(key): bytes(value) if isinstance(value, bytes) else value for key, value in arguments.items()}
    if "from" in values:  # a word of Python's own
        values["from_"] = values.pop("from")
    return kind(**{field.name: values[field.name] for field in fields(kind)})


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def dumps(data: Any) -> str:
    """JSON of one event's fields, for the book's database."""
    values = {field.name: getattr(data, field.name) for field in fields(data)}
    return json.dumps({k: {"hex": v.hex()} if isinstance(v, bytes) else v for k, v in values.items()}, default=list)


def loads(name: str, text: str) -> Any:
    values = json.loads(text)
    return KINDS[name](**{k: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for k, v in values.items()})
