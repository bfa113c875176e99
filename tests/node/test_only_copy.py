"""Two copies of a validator with one key: the second stops before it contradicts the first; honest losses can go on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from node.validator import receipt_log
from node.validator.service import ValidatorService
from protocol.chain import transaction_log
from protocol.chain.types import State
from protocol.clock import SYSTEM
from protocol.errors import LockHeld
from protocol.hub.client import Heard
from protocol.hub.listing import Mark
from protocol.shell.connection import is_fatal
from protocol.verdict import Outcome
from tests.clock import VirtualClock
from tests.node.judging import inflated
from tests.node.stage import Panel, Stage, rounds, until


def stops(service: ValidatorService, said: str) -> None:
    """It ends at once, and by itself."""
    with pytest.raises(LockHeld, match=said) as caught:
        rounds(service, count=3)
    assert is_fatal(caught.value)
    assert caught.value.exit_code == 7
    assert service._address in str(caught.value)
    assert "murmur validator start --no-other-copy-runs" in caught.value.hint


def test_a_copy_stops_before_it_judges_and_the_first_goes_on(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    first = panel.seat()
    stage.submit(node, stage.make(node, 0))
    rounds(first)
    new = stage.submit(node, stage.make(node, 1))
    copy = panel.start(first._c.key, copy="-copy")
    stops(copy, "signed a receipt")
    assert not copy._judgements.totals()
    rounds(first)
    assert panel.receipts(new)[first._address].outcome == Outcome.ACCEPT


def test_a_copy_judges_nothing_before_it_has_heard_all_that_was_said(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of a long run comes in several turns, and its own receipts may be the last of it."""
    node = stage.seated()
    stage.publish()
    first = panel.seat()
    stage.submit(node, stage.make(node, 0))
    rounds(first)
    stage.submit(node, stage.make(node, 1))
    copy = panel.start(first._c.key, copy="-copy")
    monkeypatch.setattr(receipt_log, "LISTED_MOST", 1)
    monkeypatch.setattr(receipt_log, "PAGE", 1)
    told = copy._c.hub.heard

    def first_another(receipts: Mark, opinions: Mark) -> Heard:
        return told(Mark(), opinions) if receipts.number else Heard([(1, b"{}")], [])

    def then_a_further(after: Mark) -> Iterator[tuple[int, bytes]]:
        yield from [(2, b"{}")] if after.number == 1 else []

    monkeypatch.setattr(copy._c.hub, "heard", first_another)
    monkeypatch.setattr(copy._c.hub, "receipts", then_a_further)
    copy.turn()
    assert not copy._receipts.is_complete
    assert not copy._judgements.totals()
    stops(copy, "signed a receipt")
    assert not copy._judgements.totals()


def test_a_copy_of_the_whole_home_is_noticed_when_the_first_has_judged_more(stage: Stage, panel: Panel) -> None:
    """It is either of the two that hears the other first."""
    node = stage.seated()
    stage.publish()
    first = panel.seat()
    stage.submit(node, stage.make(node, 0))
    rounds(first)
    home = stage.home(panel.end(first._c.key), "validator").path
    shutil.copytree(home, home.with_name(f"{home.name}-copy"))
    first, copy = panel.start(first._c.key), panel.start(first._c.key, copy="-copy")
    rounds(first, copy, count=2)
    stage.submit(node, stage.make(node, 1))
    rounds(first, count=2)
    stops(copy, "signed a receipt")


def test_a_case_of_another_copy_is_noticed_without_the_hub(stage: Stage, panel: Panel) -> None:
    from starlette.responses import PlainTextResponse

    node = stage.seated()
    stage.publish()
    first = panel.seat()
    made, _ = inflated(stage, node)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, first, what="the challenge")
    stage.hub.fault = lambda method, path: (
        PlainTextResponse("", 503) if path.endswith(("/listings", "/receipts")) else None
    )
    stops(panel.start(first._c.key, copy="-copy"), "brought case 1")
    rounds(panel.start(first._c.key))


def test_a_vote_of_another_copy_is_noticed(stage: Stage, panel: Panel) -> None:
    node, world, liar, key = stage.seated(), stage.world, stage.validator(), stage.validator()
    stage.publish()
    made = stage.make(node)
    stage.submit(node, made)
    world.accuse(liar, made.ref)
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    juror = panel.start(key)
    world.sender(key).send(world.chain.vote(world.run, node.address, 1, 0, 0, bytes(32)))
    stops(juror, "voted on case 1")


def test_a_validator_whose_data_was_lost_goes_on_and_judges_nothing_twice(stage: Stage, panel: Panel) -> None:
    node, cheat, world = stage.seated(), stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    stage.submit(node, stage.make(node, 0))
    made, _ = inflated(stage, cheat)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")
    rounds(service)
    before, key = panel.all_receipts(), service._c.key
    shutil.rmtree(stage.home(panel.end(key), "validator").data)
    stops(panel.start(key), "brought case 1")
    service = panel.start(key, adopt=True)
    new = stage.submit(node, stage.make(node, 1))
    until(lambda: panel.receipts(new), service, what="it judges what is new")
    assert [r.submission for r in panel.all_receipts()] == [*(r.submission for r in before), new]
    assert service._judgements.totals() == {int(Outcome.ACCEPT): 2, int(Outcome.HARD): 1}
    service = panel.start(key)  # said once and for all
    world.anvil.advance(world.chain.policy(world.run).appeal)
    until(lambda: panel.state(made.ref) == State.REVOKED, service, what="it settles the case of its earlier life")


def test_a_log_of_judgements_that_was_restored_is_told_from_the_present(stage: Stage, panel: Panel) -> None:
    """What the hub lists is read once; the log of receipts remembers it for the log of judgements that came back."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    rounds(service, count=1)
    key = service._c.key
    data = stage.home(panel.end(key), "validator").data
    shutil.copy(data / "judgements.sqlite", stage.folder / "backup.sqlite")
    service = panel.start(key)
    submission = stage.submit(node, stage.make(node, 0))
    rounds(service)
    assert panel.receipts(submission)
    panel.end(key)
    shutil.copy(stage.folder / "backup.sqlite", data / "judgements.sqlite")
    stops(panel.start(key), "signed a receipt")
    rounds(panel.start(key, adopt=True))
    assert len(panel.all_receipts()) == 1


def test_an_old_case_in_a_book_read_anew_is_no_other_copys(stage: Stage, panel: Panel) -> None:
    """By then the log of transactions has forgotten it."""
    cheat, world = stage.seated(), stage.world
    stage.publish()
    service = panel.seat()
    made, _ = inflated(stage, cheat)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")
    policy = world.chain.policy(world.run)
    world.anvil.advance(policy.appeal + 1)
    until(lambda: panel.state(made.ref) == State.REVOKED, service, what="it is settled")
    world.anvil.advance(2 * policy.span + 3600)
    rounds(service, count=3)
    data = stage.home(panel.end(service._c.key), "validator").data
    for file in data.glob("chain.sqlite*"):
        file.unlink()
    rounds(panel.start(service._c.key), count=3)


def test_a_clock_that_is_behind_makes_no_case_another_copys(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheat = stage.seated()
    stage.publish()
    service = panel.seat()
    seconds = 2 * stage.world.chain.policy(stage.world.run).span + 600
    clock = VirtualClock(wall=time.time() - seconds)
    monkeypatch.setattr(transaction_log, "time", SimpleNamespace(time=clock.wall))
    monkeypatch.setattr(service, "_clock", SimpleNamespace(wall=clock.wall, monotonic=SYSTEM.monotonic))
    made, _ = inflated(stage, cheat)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")
    rounds(service, count=3)
