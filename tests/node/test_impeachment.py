"""Who vouched for what was convicted loses a bond, by whoever has read its receipt; nobody else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.validator.service import ValidatorService
from protocol.chain.events import Impeached
from protocol.chain.sync import Book
from protocol.chain.types import Stage as CaseStage
from protocol.verdict import Outcome, Receipt
from tests.node.judging import disagrees, in_line, inflated
from tests.node.stage import Panel, Stage, rounds, until


def impeached(stage: Stage) -> list[Impeached]:
    book = Book(stage.world.chain, stage.world.run)
    book.poll()
    return [event.data for event in book.events(Impeached)]


Judges = tuple[ValidatorService, ValidatorService, ValidatorService]
"""Two that found a cheat, and one that had accepted it."""


def accused_though_accepted(stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> Judges:
    """A hard case against work that a careless validator has vouched for; it may still be appealed."""
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat(), panel.seat()
    _, submission = inflated(stage, node)
    careless, first, second = in_line(stage, submission, *services)
    disagrees(careless, monkeypatch)
    rounds(careless)
    assert panel.receipts(submission)[careless._address].outcome is Outcome.ACCEPT
    for service in services:
        service._receipts.request(submission, 0)
    rounds(first, second)
    assert stage.world.chain.seat(stage.world.run, node.address).open_hard == 1
    return first, second, careless


def convicted_though_accepted(stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> Judges:
    """The same when the appeal is over; the case waits to be settled."""
    judges = accused_though_accepted(stage, panel, monkeypatch)
    stage.world.anvil.advance(stage.world.chain.policy(stage.world.run).appeal)
    return judges


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
    rounds(*accused_though_accepted(stage, panel, monkeypatch))
    assert not impeached(stage)


def test_it_impeaches_after_a_restart_too(stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = convicted_though_accepted(stage, panel, monkeypatch)
    with monkeypatch.context() as asleep:
        asleep.setattr("node.validator.impeachment.Impeachment.turn", lambda self: None)
        rounds(first, second)
    assert not impeached(stage)
    again = panel.start(first._c.key)
    rounds(again)
    assert len(impeached(stage)) == 1


def test_who_vouched_for_other_samples_keeps_its_bond(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, careless = convicted_though_accepted(stage, panel, monkeypatch)
    address = careless._address
    monkeypatch.setattr(Receipt, "samples", property(lambda self: 0 if self.validator == address else 1))
    rounds(first, second)
    assert not impeached(stage)


def test_an_endpoint_that_does_not_know_the_verdict_yet_is_asked_again(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = convicted_though_accepted(stage, panel, monkeypatch)
    case = first._c.chain.case
    with monkeypatch.context() as behind:
        behind.setattr(second._impeachment, "turn", lambda: None)
        behind.setattr(first._c.chain, "case", lambda *name: replace(case(*name), stage=CaseStage.OPEN))
        rounds(second)
        rounds(first, count=2)
        assert not impeached(stage)
    until(lambda: impeached(stage), first, what="the validator looks again")
