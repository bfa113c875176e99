"""The deployed contracts do what the reference model does: same results, same refusals, same books, whoever does whatever when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from tests.chain.twins.people import FOREVER, NODES, OPERATORS, OWNERS, POLICIES, TRAINERS, VALIDATORS
from tests.chain.twins.wire import OUT_OF_REACH

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
    assert drive(twins, examples=24, steps=40) >= 500
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


def _offer_for_ever(model: Model, by: str, run: int, node: str, to: str, deadline: int) -> None:
    seat = model.runs[run].seat(node)
    seat.offered, seat.offer_ends = to, FOREVER


FAULTS: dict[str, tuple[str, Any]] = {
    "units mature an epoch early": ("books.EPOCHS_TO_MATURE", 5),
    "a seat's key may lose its whole lock": ("verdicts.Verdicts._lose_appeal", _lose_all),
    "an even jury that ties convicts": ("verdicts.majority", lambda jurors: (jurors + 1) // 2),
    "who was wronged gets more than half": ("payroll.COMPENSATION_BPS", 6_000),
    "silence is free": ("payroll.Payroll._charge_silent", lambda *_: 0),
    "who charges too much loses nothing": ("payroll.overcharged", lambda *_: False),
    "an appeal of too hard a charge costs a bond": ("verdicts.overcharged", lambda *_: False),
    "a hard case stops no pay": ("books.Seat.open_hard", property(lambda seat: 0)),
    "a stranger is trusted like a proven seat": ("seats.Seats._trust", _trust_all),
}  # fmt: skip


@pytest.mark.timeout(600)  # thirty schedules of a chain: on a busy machine more than two minutes
@pytest.mark.parametrize("name", FAULTS)
def test_a_model_with_other_rules_is_found_out(twins: Twins, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place, other = FAULTS[name]
    monkeypatch.setattr(f"tests.chain.model.{place}", other)
    with pytest.raises(Disagreement):
        drive(twins, 30, 40, Phase.generate)


# ---- what is rare where people do what they like ----------------------------------------------------------------------


def _submitted(twins: Twins, *sizes: int, run: int = 1) -> list[SubmissionRef]:
    """By the first node, as its next ones."""
    seat, step = twins.model.runs[run].seat(NODES[0].address), len(twins.model.runs[run].publications) - 1
    sequence = seat.next if seat.step == step else 0
    items = [(bytes([sequence + i + 1]) * 32, size) for i, size in enumerate(sizes)]
    twins.submit(NODES[0], run, Turn(step, sequence, twins.beacon(run, step)), items)
    return [SubmissionRef(NODES[0].address, step, sequence + i, root) for i, (root, _) in enumerate(items)]


def _work_with_an_old_key(twins: Twins) -> None:
    twins.rotate(OPERATORS[0], 1, NODES[0].address, NODES[3])
    twins.publish(TRAINERS[0], 1, 1)
    twins.wait_until(twins.now + 1)
    _submitted(twins, 5)


def _publish_as_an_old_trainer(twins: Twins) -> None:
    twins.appoint(OWNERS[0], 1, TRAINERS[1].address)
    twins.publish(TRAINERS[0], 1, 1)
    twins.wait_until(twins.now + POLICIES[0].notice)
    twins.publish(TRAINERS[0], 1, 2)


def _accept_too_late(twins: Twins) -> None:
    """After another that is accepted in its last second."""
    twins.offer(OPERATORS[0], 1, NODES[0].address, OPERATORS[1].address, twins.now + 2)
    twins.accept(OPERATORS[1], 1, NODES[0].address)
    twins.offer(OPERATORS[1], 1, NODES[0].address, OPERATORS[0].address, twins.now + 1)
    twins.accept(OPERATORS[0], 1, NODES[0].address)


def _convict(twins: Twins) -> SubmissionRef:
    """Where one accuser suffices."""
    (ref,) = _submitted(twins, 5, run=2)
    twins.accuse(VALIDATORS[0], 2, ref, 3, VALIDATORS[1], 3)
    twins.wait_until(twins.now + POLICIES[1].appeal)
    twins.settle(OPERATORS[0], 2, NODES[0].address, 1)
    return ref


def _impeach(twins: Twins) -> None:
    twins.impeach(OPERATORS[1], 2, _convict(twins), 1, VALIDATORS[2], 1)


def _redeem_past_the_cap(twins: Twins) -> None:
    """By two in one window, the second in part."""
    for validator in VALIDATORS[:2]:
        twins.redeem(validator, 1, validator.address, 30, TRAINERS[0])
    assert twins.model.runs[1].redeemed[VALIDATORS[1].address] == POLICIES[0].voucher_cap - 30


def _challenge_much(twins: Twins) -> None:
    twins.challenge(VALIDATORS[0], 1, _submitted(twins, 25))


def _challenge_twice(twins: Twins) -> None:
    """The jury is silent, and then another takes up what the first had challenged."""
    twins.challenge(VALIDATORS[0], 1, _submitted(twins, 7, 4))
    case = (1, NODES[0].address, 1)
    twins.appeal(OPERATORS[0], *case)
    twins.wait_until(twins.now + POLICIES[0].vote)
    twins.settle(OPERATORS[0], *case)
    twins.challenge_again(VALIDATORS[0], *case)
    twins.challenge_again(VALIDATORS[1], *case)


def _challenge_across_a_change(twins: Twins) -> None:
    """The second is of another bench, and has a case of its own after the first."""
    refs = _submitted(twins, 5)
    twins.wait_until(twins.now + 1)
    twins.enlist(VALIDATORS[4], 1, False)
    twins.wait_until(twins.now + 1)
    refs += _submitted(twins, 6)
    twins.challenge(VALIDATORS[0], 1, refs)
    twins.challenge(VALIDATORS[1], 1, refs)
    assert [case.earliest for case in twins.model.runs[1].seats[NODES[0].address].cases] == [
        submission.time for submission in twins.model.runs[1].seats[NODES[0].address].submissions
    ]


SCENES: dict[str, tuple[Callable[[Twins], object], str, Any]] = {
    "an old key goes on working": (_work_with_an_old_key, "books.Seat.key", property(lambda seat: seat.node)),
    "an old trainer goes on": (_publish_as_an_old_trainer, "books.Run.trainer", lambda run, now: run.policy.trainer),
    "an offer lasts for ever": (_accept_too_late, "seats.Seats.offer", _offer_for_ever),
    "vouchers know no cap": (_redeem_past_the_cap, "budgets.Budgets.voucher_room", lambda m, run, now: 10**9),
    "bonds do not grow": (_challenge_much, "cases._bond", lambda policy, taken: policy.bond),
    "a conviction takes no penalty": (_convict, "verdicts.Verdicts._convict", lambda m, run, seat, *_: setattr(seat, "swept", True)),
    "an impeachment costs nothing": (_impeach, "bench.Bench._lose", lambda *_: 0),
    "benches are mixed": (_challenge_across_a_change, "books.Run.term", lambda run, time: (0, 2**40 - 1)),
    "nobody may challenge again": (_challenge_twice, "books.Case.open", property(lambda case: case.disputed)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_by_other_rules_is_found_out(twins: Twins, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    scene, place, other = SCENES[name]
    twins.start_over()
    scene(twins)
    twins.start_over()
    monkeypatch.setattr(f"tests.chain.model.{place}", other)
    with pytest.raises(Disagreement):
        scene(twins)


def test_a_convicted_submission_stays_open_to_further_accusations(twins: Twins) -> None:
    """So that each false accept of it can be impeached."""
    twins.start_over()
    ref = _convict(twins)
    for number, accuser in enumerate(VALIDATORS[3:], 2):
        twins.accuse(accuser, 2, ref, 4, VALIDATORS[1], 3)
        twins.wait_until(twins.now + POLICIES[1].appeal)
        twins.settle(OPERATORS[0], 2, NODES[0].address, number)
    twins.done.clear()
    twins.impeach(OPERATORS[1], 2, ref, 2, VALIDATORS[2], 4)
    assert twins.done == {("court.impeach", "done"): 1}


def test_no_work_is_taken_on_a_beacon_that_nobody_drew_in_time(twins: Twins) -> None:
    twins.start_over()
    twins.publish(TRAINERS[0], 1, 1)
    twins.wait_for_blocks(OUT_OF_REACH + 2)
    twins.submit(NODES[0], 1, Turn(1, 0, bytes(32)), [(b"\x01" * 32, 5)])
