"""A seat works in a hardware class that the run lists: another one is refused before any stake is deposited. Where the run says
what a class needs, this machine is measured and the class follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import TOKEN, World

from node.engine.hardware import Measurement
from protocol.chain.types import Role, Seat
from protocol.runspec import RunSpec
from tests.cli.conftest import PASSWORD, SPEC, Console, Contributor, init_options


def listing(calibrated: list[int], uncalibrated: list[int]) -> RunSpec:
    table = SPEC.model_dump(mode="json")
    table["verification"] |= {"calibrated": calibrated, "uncalibrated": uncalibrated}
    return RunSpec.model_validate(table)


GIB = 2**30
TABLE = [
    {"number": 2, "name": "80 GB", "memory_gib": "79", "matrix_tflops": "300"},
    {"number": 0, "name": "24 GB", "memory_gib": "23"},
]
DESCRIBED = RunSpec.model_validate(
    listing([0, 2], []).model_dump(mode="json")
    | {"hardware": TABLE, "reward": {"budgets": {"0": [1000], "2": [1000, 4000]}}}
)
"""A run that says what its classes need; it computes in bfloat16."""


def machine(gib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is measured as a GPU with so much memory."""
    found = Measurement("a GPU", gib * GIB, gib * GIB, {"float32": 50e12, "bfloat16": 400e12}, 2000e9)
    monkeypatch.setattr("node.engine.hardware.measure_of", lambda settings: found)
    monkeypatch.setattr("node.contributor.survey.measure_of", lambda settings: found)


@pytest.fixture
def described(anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch) -> Contributor:
    """A contributor to that run."""
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    world = World.fresh(anvil, spec_digest=DESCRIBED.digest)
    path = console.folder / "home"
    made = console.node("init", *init_options(world), "--home", path, "--json").json
    (path / "spec.json").write_bytes(DESCRIBED.canonical())
    found = Contributor(world, console, path, made["node"], made["operator"])
    found.give()
    return found


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


@pytest.mark.parametrize(("gib", "number"), [(80, 2), (24, 0)])
def test_a_seat_is_taken_in_the_class_that_the_machine_is_of(
    described: Contributor, monkeypatch: pytest.MonkeyPatch, gib: int, number: int
) -> None:
    machine(gib, monkeypatch)
    done = described.run("stake", "--yes")
    assert done.code == 0, done.err
    assert f"hardware class {number} ({gib} GB)" in done.err
    assert seat(described).hardware == number


def test_a_machine_of_no_class_deposits_nothing(described: Contributor, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(16, monkeypatch)
    done = described.run("stake", "--yes")
    assert (done.code, "of no hardware class of the run" in done.err) == (5, True), done.err
    assert "memory 16 of 23 GiB" in done.err
    assert described.world.chain.account(described.operator).active == 0


def test_who_stakes_for_another_machine_names_its_class(
    described: Contributor, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(16, monkeypatch)
    assert described.run("stake", "--hardware", 2, "--yes").code == 0
    assert seat(described).hardware == 2


def test_hardware_shows_the_machine_and_its_class(described: Contributor, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(24, monkeypatch)
    shown = described.run("hardware", "--offline")
    assert shown.code == 0, shown.err
    for words in ("Device: a GPU", "bfloat16   400 TFLOPS", "24 GB", "lacks: memory 24 of 79 GiB", "class 0"):
        assert words in shown.out, words
    told = described.run("hardware", "--offline", "--json").json
    assert (told["class"], told["device"]["memory"]) == (0, 24 * GIB)
    assert [(one["number"], bool(one["lacks"]), one["budgets"]) for one in told["classes"]] == [
        (2, True, [1000, 4000]), (0, False, [1000]),
    ]  # fmt: skip
    assert told["disk"]["write"] > 0
    assert not list((described.path / "data").glob(".disk*")), "what was measured with is gone"


def test_hardware_measures_the_machine_before_there_are_settings(console: Console, tmp_path: Path) -> None:
    told = console.node("hardware", "--home", tmp_path / "none", "--json").json
    assert told["device"]["matrix"]["float32"] > 0
    assert any("node init" in note for note in told["notes"])
    json.dumps(told)


def test_hardware_goes_on_without_a_hub(described: Contributor, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(80, monkeypatch)
    monkeypatch.setenv("MURMUR_PEERS__FIND_SECONDS", "0.2")
    told = described.run("hardware", "--json").json
    assert told["class"] == 2
    assert any("no weights are published yet" in note for note in told["notes"])
