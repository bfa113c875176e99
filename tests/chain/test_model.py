"""The deployed contracts do what the reference model does: same results, same refusals, same books, whoever does whatever when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase
from swarm.anvil import Anvil

from protocol.chain.types import Stage
from protocol.submission import SubmissionRef
from tests.chain.model import Model
from tests.chain.model.books import Case, Run, Seat
from tests.chain.model.work import Turn
from tests.chain.schedules import drive
from tests.chain.twins import Disagreement, Twins
from tests.chain.twins.people import NODES, OPERATORS, OWNERS, POLICIES, TRAINERS, VALIDATORS

pytestmark = pytest.mark.chain
CLOSED = {Stage.UPHELD, Stage.CLEARED, Stage.SPLIT, Stage.RETURNED}
CONVICTING = {Stage.UPHELD, Stage.SPLIT}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    anvil = Anvil(tmp_path_factory.mktemp("model"))
    try:
        twins = Twins(anvil)
        twins.settle_in()
        yield twins
    finally:
        anvil.stop()


@pytest.mark.timeout(900)  # a failure is shrunk to the few actions that matter
def test_contracts_and_model_agree(twins: Twins) -> None:
    assert drive(twins, examples=30, steps=40) >= 500
    assert {stage for stage, _ in twins.verdicts} == CLOSED | {Stage.UNDECIDED}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_contracts_and_model_agree_for_long(twins: Twins) -> None:
    assert drive(twins, examples=200, steps=60) >= 5_000
    succeeded = {function for function, how in twins.done if how == "done"}
    assert succeeded == {function for function, _ in twins.done}, "something never succeeded"
    ends = {(stage, False) for stage in CLOSED | {Stage.UNDECIDED}} | {(stage, True) for stage in CONVICTING}
    assert set(twins.verdicts) == ends


def _lose_all(model: Model, run: Run, seat: Seat, case: Case) -> int:
    """Whoever appealed."""
    return model._take_of_seat(run, seat, run.policy.bond)


def _trust_all(model: Model, run: Run, seat: Seat, paid: int = 0) -> None:
    seat.most = seat.locked * run.policy.leverage // run.policy.reward


FAULTS: dict[str, tuple[str, Any]] = {
    "units mature an epoch early": ("books.EPOCHS_TO_MATURE", 5),
    "a seat's key may lose its whole lock": ("verdicts.Verdicts._lose_appeal", _lose_all),
    "an even jury that ties convicts": ("verdicts.majority", lambda jurors: (jurors + 1) // 2),
    "who was wronged gets more than half": ("payroll.COMPENSATION_BPS", 6_000),
    "silence is free": ("payroll.Payroll._charge_silent", lambda *_: 0),
    "bonds do not grow": ("cases._bond", lambda policy, taken: policy.bond),
    "a hard case stops no pay": ("books.Seat.open_hard", property(lambda seat: 0)),
    "a stranger is trusted like a proven seat": ("seats.Seats._trust", _trust_all),
    "vouchers know no cap": ("budgets.Budgets.voucher_room", lambda m, run, now: 10**9),
    "an old trainer goes on": ("books.Run.trainer", lambda run, now: run.policy.trainer),
    "a conviction takes no penalty": ("verdicts.Verdicts._convict", lambda m, run, seat, *_: setattr(seat, "swept", True)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_model_with_other_rules_is_found_out(twins: Twins, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place, other = FAULTS[name]
    monkeypatch.setattr(f"tests.chain.model.{place}", other)
    with pytest.raises(Disagreement):
        drive(twins, 30, 40, Phase.generate)


# ---- each of these is rare where people do what they like -------------------------------------------------------------


def _submitted(twins: Twins, run: int, *sizes: int) -> list[SubmissionRef]:
    """By the first node, as its next ones."""
    seat, step = twins.model.runs[run].seat(NODES[0].address), len(twins.model.runs[run].publications) - 1
    sequence = seat.next if seat.step == step else 0
    items = [(bytes([sequence + i + 1]) * 32, size) for i, size in enumerate(sizes)]
    twins.submit(NODES[0], run, Turn(step, sequence, twins.beacon(run, step)), items)
    return [SubmissionRef(NODES[0].address, step, sequence + i, root) for i, (root, _) in enumerate(items)]


def _convicted(twins: Twins, run: int) -> SubmissionRef:
    (ref,) = _submitted(twins, run, 5)
    twins.accuse(VALIDATORS[0], run, ref, 3, VALIDATORS[1], 3)
    twins.wait_until(twins.now + POLICIES[run - 1].appeal)
    twins.settle(OPERATORS[0], run, NODES[0].address, 1)
    return ref


def test_the_twins_notice_an_old_key_that_goes_on_working(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    twins.start_over()
    twins.rotate(OPERATORS[0], 1, NODES[0].address, NODES[3])
    twins.publish(TRAINERS[0], 1, 1)
    twins.wait_until(twins.now + 1)
    monkeypatch.setattr("tests.chain.model.books.Seat.key", property(lambda seat: seat.node))
    with pytest.raises(Disagreement):
        _submitted(twins, 1, 5)


def test_the_twins_notice_an_impeachment_that_costs_nothing(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    twins.start_over()
    ref = _convicted(twins, 2)
    monkeypatch.setattr("tests.chain.model.bench.Bench._lose", lambda *_: 0)
    with pytest.raises(Disagreement):
        twins.impeach(OPERATORS[1], 2, ref, 1, VALIDATORS[2], 1)


def test_a_convicted_submission_stays_open_to_further_accusations(twins: Twins) -> None:
    """So that each false accept of it can be impeached: two receipts, two bonds."""
    twins.start_over()
    ref = _convicted(twins, 2)
    lock = twins.model.runs[2].validator(VALIDATORS[2].address).locked
    twins.impeach(OPERATORS[1], 2, ref, 1, VALIDATORS[2], 1)
    twins.accuse(VALIDATORS[3], 2, ref, 4, VALIDATORS[1], 3)
    assert twins.model.runs[2].validator(VALIDATORS[2].address).locked == lock - POLICIES[1].bond
    assert len(twins.model.runs[2].seat(NODES[0].address).cases) == 2
