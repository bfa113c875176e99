"""Events of the contracts, one dataclass each; field names are those of the Solidity events, in snake case.

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
class Paused:
    run: int
    paused: bool


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
class Left:
    run: int
    node: ChecksumAddress
    role: int


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
class Challenged:
    run: int
    node: ChecksumAddress
    root: bytes
    step: int
    sequence: int
    challenger: ChecksumAddress
    hard: bool
    evidence: bytes


@dataclass(frozen=True)
class Appealed:
    run: int
    node: ChecksumAddress
    root: bytes
    step: int
    sequence: int


@dataclass(frozen=True)
class Voted:
    run: int
    work: bytes
    validator: ChecksumAddress
    uphold: bool


@dataclass(frozen=True)
class Revoked:
    run: int
    node: ChecksumAddress
    root: bytes
    step: int
    sequence: int
    hard: bool
    units: int
    slashed: int


@dataclass(frozen=True)
class Cleared:
    run: int
    node: ChecksumAddress
    root: bytes
    step: int
    sequence: int


@dataclass(frozen=True)
class Claimed:
    run: int
    node: ChecksumAddress
    operator: ChecksumAddress
    units: int
    amount: int


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


KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        RunCreated, Funded, Paused, Published, Joined, Left, ValidatorApproved, ValidatorSeated, Submitted, Skipped,
        Challenged, Appealed, Voted, Revoked, Cleared, Claimed, Deposited, Unbonding, Rebonded, Withdrawn, Slashed,
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
    return kind(**{field.name: values[field.name] for field in fields(kind)})


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def dumps(data: Any) -> str:
    """JSON of one event's fields, for the index's database."""
    values = {field.name: getattr(data, field.name) for field in fields(data)}
    return json.dumps({k: {"hex": v.hex()} if isinstance(v, bytes) else v for k, v in values.items()}, default=list)


def loads(name: str, text: str) -> Any:
    values = json.loads(text)
    return KINDS[name](**{k: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for k, v in values.items()})
