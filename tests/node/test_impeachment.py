"""Who vouched for what was convicted loses a bond, by whoever has read its receipt; nobody else does."""

from __future__ import annotations

import pytest

from node.validator.service import ValidatorService
from protocol.chain.events import Impeached
from protocol.chain.index import EventIndex
from protocol.verdict import Outcome
from tests.node.stage import Panel, Stage, rounds
from tests.node.test_court import disagrees, inflated
from tests.node.test_validator import in_line


def impeached(stage: Stage) -> list[Impeached]:
    index = EventIndex(stage.world.chain)
    index.poll()
    return [event for _, event in index.events(Impeached)]


def convicted_though_accepted(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> tuple[ValidatorService, ValidatorService, ValidatorService]:
    """(two that found a cheat, one that had accepted it): the appeal is over, the case not settled yet."""
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat(), panel.seat()
    _, work = inflated(stage, node)
    careless, first, second = in_line(stage, work, *services)
    disagrees(careless, monkeypatch)
    rounds(careless)
    assert panel.receipts(work)[careless._address].outcome is Outcome.ACCEPT
    careless._requested.add(work), first._requested.add(work), second._requested.add(work)
    rounds(first, second)
    assert stage.world.chain.seat(stage.world.run, node.address).open_hard == 1
    stage.world.anvil.advance(stage.world.chain.policy(stage.world.run).appeal)
    return first, second, careless


def test_who_accepted_what_was_convicted_loses_one_bond(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, careless = convicted_though_accepted(stage, panel, monkeypatch)
    chain, run = stage.world.chain, stage.world.run
    before = chain.validator(run, careless._address).locked
    rounds(first, second, careless, count=8)
    (event,) = impeached(stage)
    assert event.validator == careless._address
    assert event.slashed == chain.policy(run).bond == before - chain.validator(run, careless._address).locked


def test_before_the_verdict_is_final_nobody_is_impeached(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat(), panel.seat()
    _, work = inflated(stage, node)
    careless, first, second = in_line(stage, work, *services)
    disagrees(careless, monkeypatch)
    rounds(careless)
    for service in services:
        service._requested.add(work)
    rounds(first, second)
    assert stage.world.chain.seat(stage.world.run, node.address).open_hard == 1
    assert not impeached(stage)


def test_it_impeaches_after_a_restart_too(stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = convicted_though_accepted(stage, panel, monkeypatch)
    with monkeypatch.context() as asleep:
        asleep.setattr("node.validator.impeachment.Impeachment.turn", lambda self, record: None)
        rounds(first, second)
    assert not impeached(stage)
    again = panel.start(first._c.key)
    rounds(again)
    assert len(impeached(stage)) == 1


def test_who_vouched_for_other_samples_keeps_its_bond(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, careless = convicted_though_accepted(stage, panel, monkeypatch)
    (told,) = [told for told in first._receipts.values()]
    accepted = told[careless._address]
    monkeypatch.setattr(type(accepted), "samples", property(lambda self: 0 if self == accepted else 1))
    rounds(first, second)
    assert not impeached(stage)
