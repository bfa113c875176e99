"""From a finding to a case: two validators for a hard verdict, nothing that shields a cheat, nothing that stops the service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response

from node.generation import Made
from node.validator import journal as states
from node.validator.service import ValidatorService
from protocol.chain.types import Role, State
from protocol.constants import UPLOAD_SECONDS_MAX
from protocol.identity import Key
from protocol.verdict import Details, Outcome
from tests.node.stage import Panel, Stage, rounds, until
from tests.node.test_validator import in_line
from tests.world import TOKEN


def inflated(stage: Stage, node: Key, sequence: int = 0) -> tuple[Made, bytes]:
    """A work whose only fault is a hard one: it claims a token more than it has."""
    made = stage.make(node, sequence)
    work = stage.commit(node, made.ref, made.units + 1)
    stage.upload(node, made.ref, made.path)
    return made, work


def softly_wrong(stage: Stage, node: Key, sequence: int = 0) -> tuple[Made, bytes]:
    """A work whose only fault is a soft one: no file."""
    made = stage.make(node, sequence)
    return made, stage.commit(node, made.ref, made.units)


def past_grace(stage: Stage) -> None:
    stage.world.anvil.advance(stage.tiny.spec.upload_grace_seconds + UPLOAD_SECONDS_MAX + 1)


def asked_for(stage: Stage) -> list[tuple[str, str]]:
    return [r for r in stage.hub.requests if r[0] == "POST" and r[1].endswith("/opinions")]


def disagrees(service: ValidatorService, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this validator finds nothing wrong with anything."""
    judge = service._bench.judge

    def accept(*arguments: Any, **options: Any) -> Details:
        found = judge(*arguments, **options)
        return replace(found, outcome=1, rule="", measured="", threshold="", detail="", samples="f" * 64)

    monkeypatch.setattr(service._bench, "judge", accept)


# ---- two validators ----------------------------------------------------------------------------------------------------


def test_a_hard_finding_stays_secret_until_a_second_validator_confirms_it(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat()
    made, work = inflated(stage, node)
    first, second = in_line(stage, work, *services)
    rounds(first)
    assert not panel.receipts(work)
    assert asked_for(stage)
    assert panel.state(made.ref) == State.SUBMITTED
    rounds(second, first)
    assert {r.outcome for r in panel.receipts(work).values()} == {Outcome.HARD}
    assert len(panel.receipts(work)) == 2
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, True)


def test_a_hard_finding_that_the_second_does_not_share_is_soft(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat()
    made, work = inflated(stage, node)
    first, second = in_line(stage, work, *services)
    disagrees(second, monkeypatch)
    rounds(first, second)
    told = {validator: r.outcome for validator, r in panel.receipts(work).items()}
    assert told == {first._address: Outcome.SOFT, second._address: Outcome.ACCEPT}
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, False)


def test_one_that_shares_nothing_does_not_outvote_one_that_does(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three validators one is a friend of the cheat and the quickest to answer."""
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat(), panel.seat()
    made, work = inflated(stage, node)
    first, friend, honest = in_line(stage, work, *services)
    disagrees(friend, monkeypatch)
    rounds(first)
    rounds(friend)
    rounds(first)
    assert panel.state(made.ref) == State.SUBMITTED, "the third may still speak"
    rounds(honest, first)
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, True)


def test_a_hard_finding_that_nobody_answers_is_soft(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    made, work = inflated(stage, node)
    services = [panel.start(key, opinion_seconds=0.3, fallback_seconds=0.01) for key in keys]
    until(lambda: panel.state(made.ref) == State.CHALLENGED, services[0], what="the challenge")
    assert not panel.case(made.ref).hard
    assert set(panel.receipts(work)) == {services[0]._address}


def test_a_hub_that_takes_no_request_does_not_make_it_soft(stage: Stage, panel: Panel) -> None:
    """Or a cheat would only have to keep the hub busy for as long as an opinion is waited for."""
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    made, work = inflated(stage, node)
    first, second = in_line(stage, work, *(panel.start(key, opinion_seconds=0.05) for key in keys))
    stage.hub.fault = lambda method, path: PlainTextResponse("", 503) if method == "POST" else None
    rounds(first, count=20)
    assert panel.state(made.ref) == State.SUBMITTED
    assert first._journal.get(work).state == states.WAITING
    stage.hub.fault = lambda method, path: None
    second = panel.start(second._c.key, opinion_seconds=600)
    first = panel.start(first._c.key, opinion_seconds=600)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, first, second, what="the challenge")
    assert panel.case(made.ref).hard


def test_two_that_wait_for_each_other_find_out(stage: Stage, panel: Panel) -> None:
    """Both judged by themselves and ask at the same time; neither sees that the other asked as well."""
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    made, work = inflated(stage, node)
    services = [panel.start(key, fallback_seconds=0.01, opinion_seconds=1.5) for key in keys]

    def unheard(method: str, path: str) -> Response | None:
        opinions = method == "GET" and path.endswith("/opinions")
        return PlainTextResponse('{"entries": []}') if opinions else None

    stage.hub.fault = unheard
    waiting = lambda: all((j := s._journal.get(work)) and j.state == states.WAITING for s in services)  # noqa: E731
    until(waiting, *services, what="both wait")
    until(lambda: panel.state(made.ref) == State.CHALLENGED, *services, what="the challenge")
    assert panel.case(made.ref).hard


def test_an_only_validator_needs_no_second(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made, work = inflated(stage, node)
    rounds(service)
    assert panel.receipts(work)[service._address].outcome == Outcome.HARD
    assert panel.case(made.ref).hard


def test_a_validator_that_asks_and_then_falls_silent_saves_nobody(stage: Stage, panel: Panel) -> None:
    """It could ask about all works of a friend, so that the others take theirs for mere opinions."""
    node = stage.seated()
    stage.publish()
    accomplice = stage.validator()
    key = stage.validator()
    made, work = inflated(stage, node)
    stage.client(accomplice).ask_opinion(work)
    service = panel.start(key, opinion_seconds=0.3)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")
    assert panel.receipts(work)[key.address].outcome == Outcome.HARD
    assert not panel.case(made.ref).hard


def test_two_that_were_asked_and_agree_need_no_word_of_who_asked(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    accomplice = stage.validator()
    one, two = panel.seat(), panel.seat()
    made, work = inflated(stage, node)
    stage.client(accomplice).ask_opinion(work)
    rounds(one, two)
    assert len(panel.receipts(work)) == 2
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, True)


def test_a_request_that_comes_before_the_commitment_is_not_forgotten(stage: Stage, panel: Panel) -> None:
    """The hub may be ahead of this validator's chain."""
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat()
    made, work = inflated(stage, node)
    first, second = in_line(stage, work, *services)
    behind, second._follow_chain = second._follow_chain, lambda: second._index.poll() and None
    second._index.poll = lambda: None  # its endpoint lags behind
    rounds(first, count=2)
    rounds(second, count=2)
    assert work in second._requested
    del second._index.poll
    second._follow_chain = behind
    rounds(second, first)
    assert panel.case(made.ref).hard


def test_a_waiting_finding_survives_a_restart(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat()
    made, work = inflated(stage, node)
    first, second = in_line(stage, work, *services)
    rounds(first, count=2)
    rounds(second, count=2)
    first = panel.start(first._c.key)
    rounds(first, second)
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, True)
    assert len(panel.receipts(work)) == 2


# ---- on chain ----------------------------------------------------------------------------------------------------------


def test_a_hub_that_is_down_saves_nobody_from_a_challenge(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made, work = inflated(stage, node)
    challenge = service._court.challenge
    service._court.challenge = lambda now: None
    stage.hub.fault = lambda method, path: PlainTextResponse("", 503) if method == "POST" else None
    rounds(service)
    assert service._journal.get(work).state == states.DECIDED
    stage.hub.stop()
    service._court.challenge = challenge
    rounds(service)
    assert panel.state(made.ref) == State.CHALLENGED
    stage.hub.fault = lambda method, path: None
    stage.hub.start()
    until(lambda: panel.receipts(work), service, what="the receipt comes later")


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
    made, work = inflated(stage, node)
    rounds(service)
    assert service._journal.get(work).state == states.CHALLENGED
    service = panel.start(service._c.key)
    world.anvil.advance(world.chain.policy(world.run).appeal)
    rounds(service)
    assert panel.state(made.ref) == State.REVOKED
    assert world.chain.seat(world.run, node.address).role == Role.BANNED
    assert service._journal.get(work).state == states.CLOSED


def test_without_stake_for_a_bond_the_service_goes_on_and_tries_again(stage: Stage, panel: Panel) -> None:
    """`seat_validator` leaves it with one bond: enough for one case at a time."""
    one, other, world = stage.seated(), stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    made = [softly_wrong(stage, one, sequence)[0] for sequence in range(2)]
    past_grace(stage)
    until(lambda: any(panel.state(m.ref) == State.CHALLENGED for m in made), service, what="the first case")
    rounds(service)
    assert sorted(panel.state(m.ref) for m in made) == [State.SUBMITTED, State.CHALLENGED]
    work = stage.submit(other, stage.make(other))
    until(lambda: panel.receipts(work), service, what="other work is still judged")
    world.owner.send(world.chain.deposit(service._address, world.chain.policy(world.run).bond))
    until(lambda: all(panel.state(m.ref) == State.CHALLENGED for m in made), service, what="the second case")


def test_what_matters_most_is_challenged_first(stage: Stage, panel: Panel) -> None:
    """Where the stake is enough for one case only, it is not spent on the smallest fault."""
    one, other = stage.seated(), stage.seated()
    stage.publish()
    service = panel.seat()
    challenge = service._court.challenge
    service._court.challenge = lambda now: None
    soft, _ = softly_wrong(stage, one)
    past_grace(stage)
    until(panel.all_receipts, service, what="the soft finding")
    hard, _ = inflated(stage, other)
    until(lambda: len(panel.all_receipts()) == 2, service, what="the hard finding")
    service._court.challenge = challenge
    rounds(service)
    assert (panel.state(hard.ref), panel.state(soft.ref)) == (State.CHALLENGED, State.SUBMITTED)


def test_an_open_hard_case_shields_no_other_work_once_it_is_cleared(stage: Stage, panel: Panel) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    cheat, work = inflated(stage, node, 0)
    other = stage.make(node, 1)
    stage.submit(node, other)
    friend = stage.validator()
    world.accuse(friend, other.ref)
    world.owner.send(world.chain.approve_validator(world.run, friend.address, False))
    service = panel.seat()
    rounds(service)
    assert panel.receipts(work)[service._address].outcome == Outcome.HARD
    assert panel.state(cheat.ref) == State.SUBMITTED, "the open case may take everything"
    operator = stage.operators[node.address]
    world.owner.send(world.chain.deposit(operator.address, 10 * TOKEN))
    world.sender(operator).send(world.chain.appeal(world.run, other.ref))
    world.anvil.advance(world.chain.policy(world.run).vote)
    world.sender(operator).send(world.chain.settle(world.run, other.ref))
    assert panel.state(other.ref) == State.CLEARED
    rounds(service)
    assert (panel.state(cheat.ref), panel.case(cheat.ref).hard) == (State.CHALLENGED, True)


def test_an_open_hard_case_does_not_outlast_the_window_of_others(stage: Stage, panel: Panel) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    cheat, _ = inflated(stage, node, 0)
    other = stage.make(node, 1)
    stage.submit(node, other)
    friend = stage.validator()
    world.accuse(friend, other.ref)
    world.owner.send(world.chain.approve_validator(world.run, friend.address, False))
    service = panel.seat()
    rounds(service)
    assert panel.state(cheat.ref) == State.SUBMITTED
    window = world.chain.policy(world.run).window
    world.anvil.advance(window - window // 10)
    rounds(service)
    assert panel.state(cheat.ref) == State.CHALLENGED


def test_a_convicted_seat_is_left_alone(stage: Stage, panel: Panel) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    works = [inflated(stage, node, sequence) for sequence in range(3)]
    rounds(service, count=8)
    world.anvil.advance(world.chain.policy(world.run).appeal)
    rounds(service, count=8)
    assert sorted(panel.state(made.ref) for made, _ in works) == [State.SUBMITTED, State.SUBMITTED, State.REVOKED]
    assert {service._journal.get(work).state for _, work in works} == {states.CLOSED}


def test_a_validator_without_a_seat_ends(stage: Stage, panel: Panel) -> None:
    from protocol.errors import TransactionReverted

    node, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    inflated(stage, node)
    send = service._court._sender.send

    def losing(call: Any, **options: Any) -> Any:
        world.owner.send(world.chain.approve_validator(world.run, service._address, False))
        world.anvil.advance(world.chain.policy(world.run).span)  # until then it judges what was submitted before
        return send(call, **options)

    service._court._sender.send = losing
    with pytest.raises(TransactionReverted, match=r"NotOnBench|TooLate"):
        rounds(service)
