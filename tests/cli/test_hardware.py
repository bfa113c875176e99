"""A seat works in a hardware class that the run lists: another one is refused before any stake is deposited."""

from __future__ import annotations

from pathlib import Path

import pytest
from swarm.world import TOKEN

from protocol.chain.types import Role, Seat
from protocol.runspec import RunSpec
from tests.cli.conftest import SPEC, Contributor


def listing(calibrated: list[int], uncalibrated: list[int]) -> RunSpec:
    table = SPEC.model_dump(mode="json")
    table["verification"] |= {"calibrated": calibrated, "uncalibrated": uncalibrated}
    return RunSpec.model_validate(table)


def seat(contributor: Contributor) -> Seat:
    return contributor.world.chain.seat(contributor.world.run, contributor.node)


def test_a_class_that_the_run_does_not_list_is_refused_before_the_deposit(contributor: Contributor) -> None:
    contributor.give()
    done = contributor.run("stake", "--hardware", 7, "--yes")
    assert done.code == 5
    assert "hardware class 7 cannot work in this run, which lists 0" in done.err
    assert contributor.world.chain.account(contributor.operator).active == 0
    assert seat(contributor).role == Role.NONE


def test_a_seat_can_be_taken_again_in_the_right_class(contributor: Contributor) -> None:
    """As one that an older program let in."""
    contributor.give()
    assert contributor.run("stake", "--yes").code == 0
    again = contributor.run("stake", "--hardware", 0, "--yes")
    assert "seated in run 1 already" in again.out
    refused = contributor.run("stake", "--hardware", 3, "--yes")
    assert (refused.code, seat(contributor).hardware) == (5, 0)


def test_the_spec_is_believed_only_where_it_is_the_chains(contributor: Contributor, tmp_path: Path) -> None:
    contributor.give()
    other = tmp_path / "other.json"
    other.write_bytes(listing([0], [7]).canonical())
    for kept in (other.read_bytes(), b"{}", b"\xff"):
        (contributor.path / "spec.json").write_bytes(kept)
        given = contributor.run("stake", "--hardware", 7, "--spec", other, "--yes")
        assert (given.code, "digest" in given.err) == (8, True)
    right = tmp_path / "spec.json"
    right.write_bytes(SPEC.canonical())
    assert contributor.run("stake", "--spec", right, "--yes").code == 0
    assert contributor.world.chain.account(contributor.operator).active == 100 * TOKEN


def test_without_the_spec_nothing_is_deposited(contributor: Contributor, monkeypatch: pytest.MonkeyPatch) -> None:
    contributor.give()
    (contributor.path / "spec.json").unlink()
    monkeypatch.setenv("MURMUR_PEERS__FIND_SECONDS", "0.2")
    done = contributor.run("stake", "--yes")
    assert (done.code, "--spec" in done.err) == (5, True), done.err
    assert contributor.world.chain.account(contributor.operator).active == 0


def test_a_run_may_let_classes_work_that_nobody_calibrated() -> None:
    spec = listing([0, 2], [5])
    assert spec.verification.hardware == [0, 2, 5]
    for number in (0, 2, 5):
        spec.require_hardware(number)
    with pytest.raises(ValueError, match="both calibrated and uncalibrated"):
        listing([0], [0])


def test_a_run_lists_some_class() -> None:
    assert listing([], [5]).verification.hardware == [5]
    with pytest.raises(ValueError, match="no hardware class may work"):
        listing([], [])


def test_what_is_not_said_of_uncalibrated_classes_moves_no_digest() -> None:
    assert b"uncalibrated" not in SPEC.canonical()
    assert listing([0], []).digest == SPEC.digest != listing([0], [1]).digest
