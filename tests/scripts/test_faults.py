"""The faults that scripts/mutate-contracts plants are still there to plant: a renamed variable must not silence them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

CONTRACTS = Path(__file__).resolve().parents[2] / "contracts"
FAULTS: list[dict[str, Any]] = tomllib.loads((CONTRACTS / "test" / "faults.toml").read_text())["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["name"])
def test_every_faults_text_stands_exactly_once_in_its_contract(fault: dict[str, Any]) -> None:
    assert (CONTRACTS / "src" / fault["file"]).read_text().count(fault["original"]) == 1
    assert fault["mutated"] != fault["original"]


def test_no_two_faults_share_a_name() -> None:
    assert len({fault["name"] for fault in FAULTS}) == len(FAULTS)


def test_every_fault_for_an_invariant_names_one_that_there_is() -> None:
    invariants = "".join(path.read_text() for path in (CONTRACTS / "test" / "invariants").glob("*.sol"))
    named = {fault["invariant"] for fault in FAULTS if "invariant" in fault}
    assert not [name for name in named if f"function {name}(" not in invariants]
