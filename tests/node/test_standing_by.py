"""A hard case names rows that an honest validator accepted, and the seat lets it stand: the validator appeals, and loses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node.validator import standing_by
from node.validator.service import ValidatorService
from protocol.chain.calls import Call
from protocol.chain.events import Abstained, Appealed
from protocol.chain.sender import Sent
from protocol.chain.types import Role, State
from protocol.errors import InsufficientFunds, TransactionReverted
from protocol.identity import Key
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.node.stage import Panel, Stage, rounds, until


def appellants(stage: Stage) -> list[str]:
    return [event.data.appellant for event in stage.world.logs() if isinstance(event.data, Appealed)]


def half_of_the_time(stage: Stage) -> None:
    """Passes in which the seat alone may answer."""
    stage.world.anvil.advance(stage.world.chain.policy(stage.world.run).appeal // 2)


class Framed:
    """Honest work that `honest` has accepted, and a hard case on it by `liar`."""

    def __init__(self, stage: Stage, panel: Panel, samples: int = 2**256 - 1) -> None:
        self.node, self.liar, self.key, self.juror = stage.seated(), *(stage.validator() for _ in range(3))
        stage.publish()
        self.honest: ValidatorService = panel.start(self.key, fallback_seconds=0.01)
        made = stage.make(self.node)
        submission = stage.submit(self.node, made)
        self.ref: SubmissionRef = made.ref
        until(lambda: panel.receipts(submission), self.honest, what="the verdict that it is honest")
        stage.world.accuse(self.liar, made.ref, samples)


@pytest.fixture
def framed(stage: Stage, panel: Panel) -> Framed:
    return Framed(stage, panel)


def test_a_validator_appeals_a_case_against_what_it_accepted(stage: Stage, framed: Framed) -> None:
    rounds(framed.honest)
    assert not appellants(stage), "the seat comes first: a validator that appeals is no juror"
    half_of_the_time(stage)
    until(lambda: appellants(stage), framed.honest, what="its appeal")
    assert appellants(stage) == [framed.key.address]


def test_jurors_clear_it_and_the_validator_loses_nothing(stage: Stage, panel: Panel) -> None:
    framed, world = Framed(stage, panel), stage.world
    juror = panel.start(framed.juror)
    half_of_the_time(stage)
    until(lambda: panel.state(framed.ref) == State.CLEARED, framed.honest, juror, what="the vote")
    stake = world.chain.policy(world.run).validator_stake
    assert world.chain.account(framed.key.address).active >= stake
    assert world.chain.account(framed.liar.address).active < stake
    assert world.chain.seat(world.run, framed.node.address).role == Role.ACTIVE


def test_it_serves_as_a_juror_where_the_seat_has_appealed(stage: Stage, panel: Panel, framed: Framed) -> None:
    stage.world.sender(framed.node).send(stage.world.chain.appeal(stage.world.run, framed.node.address, 1))
    half_of_the_time(stage)
    until(lambda: panel.state(framed.ref) == State.CLEARED, framed.honest, what="its vote")
    assert appellants(stage) == [framed.node.address]


def test_it_does_not_appeal_what_it_finds_false_after_all(
    stage: Stage, framed: Framed, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Any] = []
    plain = framed.honest._standing_by._judge

    def hard(ref: SubmissionRef, case: Any) -> Any:
        found = plain(ref, case)
        if found is None:
            return None
        judged.append(ref)
        return replace(found, details=replace(found.details, outcome=int(Outcome.HARD)), near=2**256 - 1)

    monkeypatch.setattr(framed.honest._standing_by, "_judge", hard)
    half_of_the_time(stage)
    until(lambda: judged, framed.honest, what="another look")
    rounds(framed.honest)
    assert (len(judged), appellants(stage)) == (1, [])


def test_it_stands_by_its_word_where_it_cannot_look_again(
    stage: Stage, framed: Framed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framed.honest._standing_by, "_judge", lambda *_: None)
    half_of_the_time(stage)
    rounds(framed.honest)
    assert not appellants(stage)
    stage.world.anvil.advance(stage.world.chain.policy(stage.world.run).appeal * 45 // 100)
    until(lambda: appellants(stage), framed.honest, what="its appeal")


@pytest.mark.parametrize(
    "refusal",
    [
        InsufficientFunds("no gas just now"),
        TransactionReverted("all of the lock is at risk just now", reason="InsufficientStake"),
        TransactionReverted("the endpoint lags", reason="TooLate"),
    ],
    ids=["gas", "lock", "lag"],
)
def test_an_appeal_that_is_refused_is_tried_again(
    stage: Stage, framed: Framed, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    sender, refusals = framed.honest._standing_by._sender, iter([refusal])
    plain = sender.send

    def send(call: Call, *, name: str | None = None) -> Sent:
        for error in refusals if str(name).startswith("appeal/") else ():
            raise error
        return plain(call, name=name)

    monkeypatch.setattr(sender, "send", send)
    monkeypatch.setattr(standing_by, "_REFUSED_SECONDS", 0.01)
    half_of_the_time(stage)
    until(lambda: appellants(stage), framed.honest, what="its appeal")


def test_a_case_on_rows_that_it_did_not_accept_is_none_of_its_business(stage: Stage, panel: Panel) -> None:
    framed = Framed(stage, panel, samples=1 << 200)
    half_of_the_time(stage)
    rounds(framed.honest)
    assert not appellants(stage)


# ---- jurors --------------------------------------------------------------------------------------------------------------


def test_a_juror_abstains_rather_than_say_nothing_while_the_hub_is_down(stage: Stage, panel: Panel) -> None:
    """Silence costs a juror's pay; an abstention costs nothing."""
    node, liar, key = stage.seated(), stage.validator(), stage.validator()
    stage.publish()
    made = stage.make(node)
    stage.submit(node, made)
    stage.world.accuse(liar, made.ref)
    juror = panel.start(key)
    stage.hub.stop()
    stage.world.sender(node).send(stage.world.chain.appeal(stage.world.run, node.address, 1))
    stage.world.anvil.advance(stage.world.chain.policy(stage.world.run).vote * 95 // 100)
    until(lambda: any(isinstance(event.data, Abstained) for event in stage.world.logs()), juror, what="its abstention")


def test_jurors_serve_first_whoever_appealed_first(stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    liar, juror = stage.validator(), panel.seat()
    nodes = [stage.seated() for _ in range(3)]
    stage.publish()
    for node in nodes:
        made = stage.make(node)
        stage.submit(node, made)
        stage.world.accuse(liar, made.ref)
    order: list[Key] = [nodes[2], nodes[0], nodes[1]]
    for node in order:
        stage.world.sender(node).send(stage.world.chain.appeal(stage.world.run, node.address, 1))
    served: list[str] = []
    monkeypatch.setattr(juror._jury, "_serve", lambda entry, *_: served.append(entry.seat))
    juror.turn()
    assert served == [node.address for node in order]
