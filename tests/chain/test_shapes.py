"""The dataclasses say what the contracts' ABI says: same fields, same order."""

from __future__ import annotations

from dataclasses import fields
from enum import IntEnum
from typing import Any

import pytest

from protocol.chain import artifacts, types
from protocol.chain.events import KINDS, Drawn, Emitted, Published, Redrawn, field_name

TOKEN_EVENTS = {"Approval", "Transfer", "EIP712DomainChanged"}
STRUCTS = [
    ("Policies", "policy", types.Policy),
    ("Bench", "validators", types.Validator),
    ("Court", "cases", types.Case),
    ("Runs", "funds", types.Funds),
    ("Runs", "status", types.Status),
    ("Runs", "seats", types.Seat),
    ("Runs", "submissions", types.SubmissionState),
    ("Court", "ballots", types.Ballot),
    ("Bonds", "accounts", types.Account),
]


def items(contract: str, kind: str) -> list[dict[str, Any]]:
    return [item for item in artifacts.load(contract).abi if item["type"] == kind]


@pytest.mark.parametrize("contract", artifacts.CONTRACTS)
def test_every_event_has_its_dataclass(contract: str) -> None:
    for event in items(contract, "event"):
        if event["name"] in TOKEN_EVENTS:
            continue
        names = [field_name(field["name"]) for field in event["inputs"]]
        assert [field.name for field in fields(KINDS[event["name"]])] == names, event["name"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_event_says_whom_it_is_about_by_fields_of_its_own(kind: type[Emitted]) -> None:
    types_of = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    assert kind.SUBJECT == "" or types_of[kind.SUBJECT] == "ChecksumAddress"
    assert kind.NUMBER == "" or types_of[kind.NUMBER] == "int"
    assert not kind.NUMBER or kind.SUBJECT or kind in (Published, Drawn, Redrawn), (
        "a number without anybody finds versions only"
    )


@pytest.mark.parametrize("contract, function, kind", STRUCTS)
def test_every_struct_has_its_dataclass(contract: str, function: str, kind: type) -> None:
    (found,) = [item for item in items(contract, "function") if item["name"] == function]
    names = [field_name(field["name"]) for field in found["outputs"][0]["components"]]
    assert [field.name for field in fields(kind)] == names


def test_publications_have_theirs() -> None:
    (found,) = [item for item in items("Weights", "function") if item["name"] == "publications"]
    names = [field["name"] for field in found["outputs"][0]["components"]]
    assert names == ["manifest", "beacon", "number", "time", "superseded"]
    assert [field.name for field in fields(types.Publication)][1:3] == ["manifest", "beacon"]


@pytest.mark.parametrize("kind, members", [(types.Role, 4), (types.State, 7), (types.Stage, 8)])
def test_enums_are_as_long_as_in_solidity(kind: type[IntEnum], members: int) -> None:
    assert [member.value for member in kind] == list(range(members))
