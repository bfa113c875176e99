"""Who vouched for what was convicted loses a bond, by whoever has read its receipt; nobody else does."""

from __future__ import annotations

from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any

import pytest

from node.validator.impeachment import Impeachment
from node.validator.service import ValidatorService
from protocol.chain import book_schema
from protocol.chain.book_entries import Entries
from protocol.chain.decoding import Log
from protocol.chain.events import Challenged, Impeached, Settled
from protocol.chain.sync import Book
from protocol.chain.types import Stage as CaseStage
from protocol.chain.view import View
from protocol.identity import Key
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


def test_a_validator_that_cannot_pay_for_it_goes_on(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = convicted_though_accepted(stage, panel, monkeypatch)
    with monkeypatch.context() as meanwhile:
        for service in (first, second):
            meanwhile.setattr(service._impeachment, "turn", lambda: None)
        until(lambda: first._book.events(Settled), first, second, what="the verdict")
    for service in (first, second):
        stage.world.anvil.give(service._address, 1)
    rounds(first, second)
    assert not impeached(stage)


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
        behind.setattr(first._c.chain, "case", lambda *name, **at: replace(case(*name, **at), stage=CaseStage.OPEN))
        rounds(second)
        rounds(first, count=2)
        assert not impeached(stage)
    until(lambda: impeached(stage), first, what="the validator looks again")


SPAN = 100
"""Seconds; a block has one, and every tenth opens a case that ends with a conviction."""


class History(View):
    """A book in memory with so many convictions in a row; counts how often it is read."""

    def __init__(self, convictions: int) -> None:
        super().__init__(book_schema.connect(None))
        entries, self.reads, self.last = Entries(self._db, 1), 0, 10 * convictions
        validator, found = Key.generate().address, []
        for number in range(convictions):
            node, block = f"0x{number:040x}", 10 * (number + 1)
            opened: Any = Challenged(1, node, bytes(32), 0, 0, validator, True, bytes(32), node, 1)  # type: ignore[arg-type]
            closed: Any = Settled(1, node, 1, int(CaseStage.UPHELD), 1, 0, True, 0, 0)  # type: ignore[arg-type]
            for index, data in enumerate((opened, closed)):
                place = bytes([index]) + block.to_bytes(31, "big")
                found.append(Log(block, index, place, place, type(data), astuple(data)))
        with entries.transaction():
            entries.enter(found)

    def now(self) -> int:
        return self.last

    def time(self, of: Any) -> int:
        return int(of.block)

    def rows(self, *query: Any) -> list[Any]:
        self.reads += 1
        return super().rows(*query)


@pytest.mark.parametrize("convictions", [100, 1_000])
def test_a_start_looks_back_no_further_than_stakes_answer_however_old_the_run(convictions: int) -> None:
    connection: Any = SimpleNamespace(run=1, key=Key.generate(), policy=SimpleNamespace(span=SPAN))
    book: Any = History(convictions)
    looked: list[bytes] = []

    def receipts(submission: bytes) -> dict[str, Receipt]:
        looked.append(submission)
        return {}

    Impeachment(connection, None, book, receipts, 1.0).turn()  # type: ignore[arg-type]
    assert len(looked) == 2 * SPAN // 10 + 1
    assert book.reads <= 5 * len(looked)


@pytest.mark.parametrize("samples", [2**256 - 1, 0], ids=["that names rows", "that names none"])
def test_a_friend_who_accuses_first_saves_nobody_who_accepted_false_rows(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch, samples: int
) -> None:
    """A case about the seat's sums names no row, and nobody could be impeached by it: it shields from none that does."""
    world, node = stage.world, stage.seated()
    friend = stage.validator()
    stage.publish()
    services = panel.seat(), panel.seat(), panel.seat()
    made, submission = inflated(stage, node)
    careless, first, second = in_line(stage, submission, *services)
    disagrees(careless, monkeypatch)
    careless._receipts.request(submission, 0)
    rounds(careless, count=3)
    world.accuse(friend, made.ref, samples)
    for service in services:
        service._receipts.request(submission, 0)
    rounds(first, second, count=4)
    world.anvil.advance(world.chain.policy(world.run).appeal + 1)
    world.sender(friend).send(world.chain.settle(world.run, node.address, 1))
    rounds(first, second, careless, count=8)
    assert impeached(stage)
