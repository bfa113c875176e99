"""A finding on its way through the contract: nothing that shields a cheat, nothing that stops the service."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from swarm.world import TOKEN

from node.validator import judgement_log as states
from node.validator.court import Court
from node.validator.judgement_log import Judgement
from node.validator.service import ValidatorService
from protocol.chain.types import Role, State
from protocol.errors import InsufficientFunds
from protocol.verdict import Outcome, Receipt
from tests.node.judging import inflated, past_grace, softly_wrong
from tests.node.stage import Panel, Stage, rounds, until


def test_a_hub_that_is_down_saves_nobody_from_a_challenge(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made, submission = inflated(stage, node)
    challenge = service._court.challenge
    service._court.challenge = lambda *_: None
    stage.hub.fault = lambda method, path: PlainTextResponse("", 503) if method == "POST" else None
    rounds(service)
    assert service._judgements.get(submission).state == states.DECIDED
    stage.hub.stop()
    service._court.challenge = challenge
    rounds(service)
    assert panel.state(made.ref) == State.CHALLENGED
    stage.hub.fault = lambda method, path: None
    stage.hub.start()
    until(lambda: panel.receipts(submission), service, what="the receipt comes later")


def test_a_hub_that_refuses_receipts_stops_nothing(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made, _ = inflated(stage, node)
    stage.hub.fault = lambda method, path: PlainTextResponse("no", 403) if method == "POST" else None
    rounds(service)
    assert panel.state(made.ref) == State.CHALLENGED
    stage.hub.fault = lambda method, path: None
    until(panel.all_receipts, service, what="the receipt is tried again")


def test_cases_are_settled_when_their_time_has_come_also_after_a_restart(stage: Stage, panel: Panel) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    made, submission = inflated(stage, node)
    rounds(service)
    assert service._judgements.get(submission).state == states.CHALLENGED
    service = panel.start(service._c.key)
    world.anvil.advance(world.chain.policy(world.run).appeal)
    rounds(service)
    assert panel.state(made.ref) == State.REVOKED
    assert world.chain.seat(world.run, node.address).role == Role.BANNED
    assert service._judgements.get(submission).state == states.CLOSED


one_bond = pytest.mark.parametrize(
    "stage", [{"validator_stake": 10 * TOKEN, "bond_bps": 0}], indirect=True, ids=["one bond"]
)
"""A seat whose stake is enough for one case at a time."""


class Killed(BaseException):
    """The process dies; nothing may catch this."""


def dies_before_noting_a_case(service: ValidatorService, monkeypatch: pytest.MonkeyPatch) -> None:
    put = service._court._log.put

    def dying(*judgements: Judgement) -> None:
        if any(judgement.state == states.CHALLENGED for judgement in judgements):
            raise Killed
        put(*judgements)

    monkeypatch.setattr(service._court._log, "put", dying)


def dies_before_sending(service: ValidatorService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is signed and in the sender's journal."""

    def dying(*arguments: Any, **options: Any) -> Any:
        raise Killed

    monkeypatch.setattr(service._court._sender, "_finish", dying)


both_deaths = pytest.mark.parametrize("dies", [dies_before_noting_a_case, dies_before_sending])


def settled(stage: Stage, service: ValidatorService, *submissions: bytes) -> bool:
    """Whether nothing of this validator's is open any more: its judgements are closed and its bonds free."""
    closed = {service._judgements.get(submission).state for submission in submissions} == {states.CLOSED}
    return closed and not stage.world.chain.validator(stage.world.run, service._address).at_risk


@both_deaths
@pytest.mark.parametrize("fault", [inflated, softly_wrong])
def test_a_case_that_a_crash_kept_from_being_noted_is_settled(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch, fault: Any, dies: Any
) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    _, submission = fault(stage, node)
    past_grace(stage)
    dies(service, monkeypatch)
    with pytest.raises(Killed):
        rounds(service)
    service = panel.start(service._c.key)
    rounds(service)
    assert service._judgements.get(submission).state == states.CHALLENGED
    world.anvil.advance(world.chain.policy(world.run).appeal)
    until(lambda: settled(stage, service, submission), service, what="the case is settled")
    assert world.chain.seat(world.run, node.address).cases == 1


@both_deaths
def test_a_case_that_was_not_noted_is_settled_though_more_was_found_meanwhile(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch, dies: Any
) -> None:
    """The batch is another one then, and so is the name of its transaction."""
    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    before = [softly_wrong(stage, node, sequence)[1] for sequence in range(2)]
    past_grace(stage)
    with monkeypatch.context() as patch:
        patch.setattr(service._court, "challenge", lambda *_: None)
        until(lambda: len(panel.all_receipts()) == 2, service, what="the findings")
    dies(service, monkeypatch)
    with pytest.raises(Killed):
        rounds(service)
    service = panel.start(service._c.key)
    monkeypatch.setattr(service._court, "challenge", lambda *_: None)
    after = softly_wrong(stage, node, 2)[1]
    past_grace(stage)
    until(lambda: len(panel.all_receipts()) == 3, service, what="another finding")
    monkeypatch.undo()
    rounds(service)
    assert [service._judgements.get(submission).number for submission in (*before, after)] == [1, 1, 2]
    world.anvil.advance(world.chain.policy(world.run).appeal)
    until(lambda: settled(stage, service, *before, after), service, what="both cases are settled")
    assert world.chain.seat(world.run, node.address).cases == 2


@one_bond
def test_a_case_that_was_not_noted_is_settled_though_its_bond_is_missing_elsewhere(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another fault is graver and would be brought first, but the one bond is in that case."""
    nodes, world = [stage.seated(), stage.seated()], stage.world
    stage.publish()
    service = panel.seat()
    _, soft = softly_wrong(stage, nodes[0])
    past_grace(stage)
    dies_before_noting_a_case(service, monkeypatch)
    with pytest.raises(Killed):
        rounds(service)
    service = panel.start(service._c.key)
    _, hard = inflated(stage, nodes[1])
    until(lambda: service._judgements.get(hard), service, what="the graver finding")
    world.anvil.advance(world.chain.policy(world.run).appeal)
    until(lambda: service._judgements.get(hard).state == states.CHALLENGED, service, what="the second case")
    assert service._judgements.get(soft).state == states.CLOSED


def test_an_accusation_of_revoked_work_that_was_not_noted_is_settled_after_the_window(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain's own note on the work names the soft case, and no further case could be opened any more."""
    node, world, friend = stage.seated(), stage.world, stage.validator()
    stage.publish()
    services = panel.seat(fallback_seconds=0.01), panel.seat(fallback_seconds=0.01)
    cheat, submission = inflated(stage, node)
    world.sender(friend).send(world.chain.challenge(world.run, [cheat.ref], b"\x0e" * 32))
    policy = world.chain.policy(world.run)
    world.anvil.advance(policy.appeal)
    world.sender(friend).send(world.chain.settle(world.run, node.address, 1))
    for service in services:
        dies_before_noting_a_case(service, monkeypatch)
    with pytest.raises(Killed):
        until(lambda: False, *services)
    challenger = world.chain.case(world.run, node.address, 2).challenger
    world.anvil.advance(policy.window)
    service = panel.start(next(service._c.key for service in services if service._address == challenger))
    until(lambda: settled(stage, service, submission), service, what="the case is settled")


@one_bond
def test_without_stake_for_a_bond_the_service_goes_on_and_tries_again(stage: Stage, panel: Panel) -> None:
    nodes, world = [stage.seated(), stage.seated()], stage.world
    stage.publish()
    service = panel.seat()
    made = [softly_wrong(stage, node)[0] for node in nodes]
    past_grace(stage)
    until(lambda: any(panel.state(m.ref) == State.CHALLENGED for m in made), service, what="the first case")
    rounds(service)
    assert sorted(panel.state(m.ref) for m in made) == [State.SUBMITTED, State.CHALLENGED]
    submission = stage.submit(nodes[1], stage.make(nodes[1], 1))
    until(lambda: panel.receipts(submission), service, what="other submissions are still judged")
    more = 2 * world.chain.policy(world.run).bond  # one for the second case, and one for an appeal
    world.owner.send(world.chain.deposit(service._address, more))
    world.sender(service._c.key).send(world.chain.reinforce(world.run, more))
    until(lambda: all(panel.state(m.ref) == State.CHALLENGED for m in made), service, what="the second case")


@pytest.mark.parametrize("stage", [{"validator_stake": 40 * TOKEN, "bond_bps": 0}], indirect=True, ids=["four bonds"])
def test_half_of_the_lock_is_kept_for_appeals(stage: Stage, panel: Panel) -> None:
    """Or a friend's junk would keep a validator from standing by what it accepted."""
    nodes = [stage.seated() for _ in range(4)]
    stage.publish()
    service = panel.seat()
    made = [softly_wrong(stage, node)[0] for node in nodes]
    past_grace(stage)
    until(lambda: len(panel.all_receipts()) == 4, service, what="the findings")
    rounds(service, count=8)
    chain, run = stage.world.chain, stage.world.run
    assert [panel.state(m.ref) for m in made].count(State.CHALLENGED) == 2
    assert chain.validator(run, service._address).free == 2 * chain.policy(run).bond


def test_a_case_larger_than_the_lock_keeps_no_smaller_one_waiting(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = stage.seated(), stage.seated()
    stage.publish()
    service = panel.seat()
    made = {node.address: softly_wrong(stage, node)[0] for node in (large, small)}
    refused: list[str] = []

    def covered(self: Court, judgements: list[Judgement]) -> list[Judgement]:
        if judgements[0].node == large.address:
            refused.append(large.address)
            raise InsufficientFunds("more than the lock", hint="reinforce")
        return judgements

    monkeypatch.setattr(Court, "_covered", covered)
    past_grace(stage)
    until(lambda: panel.state(made[small.address].ref) == State.CHALLENGED, service, what="the smaller case")
    assert refused


@one_bond
def test_many_soft_faults_of_one_seat_are_one_case_with_one_bond(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat(batch_seconds=30)
    made = [softly_wrong(stage, node, sequence)[0] for sequence in range(3)]
    past_grace(stage)
    until(lambda: len(panel.all_receipts()) == 3, service, what="the findings")
    assert {panel.state(m.ref) for m in made} == {State.SUBMITTED}, "they wait for each other"
    stage.world.anvil.advance(30)
    until(lambda: all(panel.state(m.ref) == State.CHALLENGED for m in made), service, what="the case")
    assert (panel.case(made[0].ref).submissions, stage.world.chain.seat(stage.world.run, node.address).cases) == (3, 1)


def test_work_of_two_benches_is_two_cases(stage: Stage, panel: Panel) -> None:
    """The chain leaves out of a case what another bench judges: that is challenged in the next round."""
    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat(batch_seconds=60, fallback_seconds=1)
    early = [softly_wrong(stage, node, sequence)[0] for sequence in range(2)]
    world.anvil.advance(1)
    stage.validator()
    world.anvil.advance(1)
    late = [softly_wrong(stage, node, sequence)[0] for sequence in range(2, 4)]
    past_grace(stage)
    until(lambda: len(panel.all_receipts()) == 4, service, what="the findings")
    world.anvil.advance(60)
    until(lambda: all(panel.state(m.ref) == State.CHALLENGED for m in early + late), service, what="the cases")
    assert sorted(panel.case(m.ref).submissions for m in (early[0], late[0])) == [2, 2]
    assert panel.case(late[0].ref).earliest > panel.case(early[0].ref).earliest


def test_a_case_costs_the_same_however_many_submissions_it_lists(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its time has come, or something happens in it, nobody looks at it; then it is read and settled once."""
    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    submissions = [softly_wrong(stage, node, sequence)[1] for sequence in range(3)]
    past_grace(stage)
    monkeypatch.setattr(service._court, "challenge", lambda *_: None)
    until(lambda: len(panel.all_receipts()) == 3, service, what="the findings")
    monkeypatch.undo()
    rounds(service, count=2)
    assert world.chain.seat(world.run, node.address).cases == 1
    asked: list[str] = []
    for of, name in (
        (world.chain, "case"),
        (world.chain, "seat_name"),
        (world.chain, "submission"),
        (Receipt, "parse"),
    ):
        plain = getattr(of, name)

        def counted(*arguments: Any, plain: Any = plain, name: str = name, **options: Any) -> Any:
            asked.append(name)
            return plain(*arguments, **options)

        monkeypatch.setattr(of, name, counted)
    rounds(service)
    assert not asked
    world.anvil.advance(world.chain.policy(world.run).appeal)
    rounds(service)
    assert asked == ["case"]
    assert settled(stage, service, *submissions)


def test_a_case_that_a_reorg_took_back_is_brought_again(stage: Stage, panel: Panel) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    made, submission = inflated(stage, node)
    rounds(service)
    assert service._judgements.get(submission).state == states.CHALLENGED
    world.anvil.request("anvil_reorg", 1, [])
    assert panel.state(made.ref) == State.SUBMITTED
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the case")
    world.anvil.advance(world.chain.policy(world.run).appeal)
    until(lambda: settled(stage, service, submission), service, what="the case is settled")


@one_bond
def test_what_matters_most_is_challenged_first(stage: Stage, panel: Panel) -> None:
    """Where the stake is enough for one case only, it is not spent on the smallest fault."""
    one, other = stage.seated(), stage.seated()
    stage.publish()
    service = panel.seat()
    challenge = service._court.challenge
    service._court.challenge = lambda *_: None
    soft, _ = softly_wrong(stage, one)
    past_grace(stage)
    until(panel.all_receipts, service, what="the soft finding")
    hard, _ = inflated(stage, other)
    until(lambda: len(panel.all_receipts()) == 2, service, what="the hard finding")
    service._court.challenge = challenge
    rounds(service)
    assert (panel.state(hard.ref), panel.state(soft.ref)) == (State.CHALLENGED, State.SUBMITTED)


def test_an_open_hard_case_shields_no_other_submission_once_it_is_cleared(stage: Stage, panel: Panel) -> None:
    node, world, friend = stage.seated(), stage.world, stage.validator()
    stage.publish()
    services = panel.seat(fallback_seconds=0.01), panel.seat(fallback_seconds=0.01)  # the friend is silent
    cheat, submission = inflated(stage, node, 0)
    other = stage.make(node, 1)
    stage.submit(node, other)
    world.accuse(friend, other.ref)
    until(lambda: len(panel.receipts(submission)) == 2, *services, what="both find the other submission false")
    rounds(*services)
    assert {r.outcome for r in panel.receipts(submission).values()} == {Outcome.HARD}
    assert panel.state(cheat.ref) == State.SUBMITTED, "the open case may take everything"
    world.sender(stage.operators[node.address]).send(world.chain.appeal(world.run, node.address, 1))
    until(lambda: panel.state(other.ref) == State.CLEARED, *services, what="the jury finds nothing wrong")
    until(lambda: panel.state(cheat.ref) == State.CHALLENGED, *services, what="the challenge")
    assert panel.case(cheat.ref).hard


def test_an_open_hard_case_does_not_outlast_the_window_of_others(stage: Stage, panel: Panel) -> None:
    node, world, friend = stage.seated(), stage.world, stage.validator()
    stage.publish()
    services = panel.seat(fallback_seconds=0.01), panel.seat(fallback_seconds=0.01)  # the friend is silent
    cheat, _ = inflated(stage, node, 0)
    other = stage.make(node, 1)
    stage.submit(node, other)
    world.accuse(friend, other.ref)
    rounds(*services)
    assert panel.state(cheat.ref) == State.SUBMITTED
    window = world.chain.policy(world.run).window
    world.anvil.advance(window - window // 10)
    until(lambda: panel.state(cheat.ref) == State.CHALLENGED, *services, what="the challenge")


@pytest.mark.parametrize("stage", [{"co_signers": 1}], indirect=True, ids=["with a co-signer"])
def test_a_conviction_carries_both_signatures(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat(), panel.seat()
    made, _ = inflated(stage, node)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, *services, what="the challenge")
    case, addresses = panel.case(made.ref), {service._address for service in services}
    assert case.hard
    assert {case.challenger, case.co_signer} <= addresses
    assert case.challenger != case.co_signer


def test_a_soft_verdict_does_not_save_a_cheat_from_the_hard_one(stage: Stage, panel: Panel) -> None:
    """A friend brings the cheat's work as merely soft, and has it revoked before anybody else has looked."""
    node, world, friend = stage.seated(), stage.world, stage.validator()
    stage.publish()
    services = panel.seat(fallback_seconds=0.01), panel.seat(fallback_seconds=0.01)
    cheat, _ = inflated(stage, node)
    world.sender(friend).send(world.chain.challenge(world.run, [cheat.ref], b"\x0e" * 32))
    world.anvil.advance(world.chain.policy(world.run).appeal)
    world.sender(friend).send(world.chain.settle(world.run, node.address, 1))
    assert panel.state(cheat.ref) == State.REVOKED
    until(lambda: world.chain.seat(world.run, node.address).open_hard, *services, what="the accusation")
    world.anvil.advance(world.chain.policy(world.run).appeal)
    until(lambda: world.chain.seat(world.run, node.address).role == Role.BANNED, *services, what="the conviction")


def test_a_convicted_seat_is_left_alone(stage: Stage, panel: Panel) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    submissions = [inflated(stage, node, sequence) for sequence in range(3)]
    rounds(service, count=8)
    world.anvil.advance(world.chain.policy(world.run).appeal)

    def is_closed() -> bool:
        return {service._judgements.get(submission).state for _, submission in submissions} == {states.CLOSED}

    until(is_closed, service, what="nothing is left to do")
    assert sorted(panel.state(made.ref) for made, _ in submissions) == [State.SUBMITTED, State.SUBMITTED, State.REVOKED]


def test_a_validator_without_a_seat_ends(stage: Stage, panel: Panel) -> None:
    from protocol.errors import TransactionReverted

    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    world.owner.send(world.chain.approve_validator(world.run, service._address, False))
    world.anvil.advance(world.chain.policy(world.run).span - 30)  # until then it judges what is submitted
    made, _ = inflated(stage, node)
    send = service._court._sender.send

    def losing(call: Any, **options: Any) -> Any:
        world.anvil.advance(60)
        return send(call, **options)

    service._court._sender.send = losing
    with pytest.raises(TransactionReverted, match="NotOnBench"):
        rounds(service)
    assert panel.state(made.ref) == State.SUBMITTED
