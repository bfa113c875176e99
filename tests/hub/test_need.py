"""The hub signs what the trainer says that it needs, as long as it says something."""

from __future__ import annotations

import os

from protocol.hub.need import NEED_SECONDS, REPEATED_SECONDS, SignedNeed
from protocol.shell.home import write_json
from tests.hub.desk import Desk

SAID = {"step": 3, "last": 60, "groups": 16, "ahead": 200, "ready": 5, "settled": 9, "usable": 950}


def told(desk: Desk) -> SignedNeed | None:
    return desk.client().need(desk.key.address)


def test_a_trainer_that_says_nothing_needs_nothing_in_particular(desk: Desk) -> None:
    (desk.folder / "need.json").unlink(missing_ok=True)
    assert told(desk) is None


def test_what_the_trainer_says_is_signed_and_holds_for_a_while(desk: Desk) -> None:
    write_json(desk.folder / "need.json", SAID)
    first = told(desk)
    assert first is not None
    assert {name: getattr(first.need, name) for name in SAID} == SAID
    assert first.need.until == desk.hub.now + NEED_SECONDS
    assert told(desk) == first  # signed once
    write_json(desk.folder / "need.json", SAID | {"ready": 6})
    second = told(desk)
    assert second is not None
    assert second.need.ready == 6


def test_what_is_still_true_is_signed_anew_before_it_runs_out(desk: Desk) -> None:
    write_json(desk.folder / "need.json", SAID)
    first = told(desk)
    desk.world.anvil.advance(NEED_SECONDS)
    desk.hub.learn()
    second = told(desk)
    assert first is not None
    assert second is not None
    assert second.need.until >= first.need.until + NEED_SECONDS


def aged(desk: Desk, seconds: float) -> None:
    """So long ago the trainer said it."""
    said = desk.clock.wall() - seconds
    os.utime(desk.folder / "need.json", (said, said))


def test_what_a_trainer_does_not_say_again_is_not_repeated_for_ever(desk: Desk) -> None:
    write_json(desk.folder / "need.json", SAID)
    aged(desk, REPEATED_SECONDS - 60)
    assert told(desk) is not None, "a training may take that long"
    aged(desk, REPEATED_SECONDS + 60)
    assert told(desk) is None
    aged(desk, -REPEATED_SECONDS - 60)
    assert told(desk) is None, "of a clock that was set back"
    write_json(desk.folder / "need.json", SAID)
    assert told(desk) is not None


def test_that_nothing_more_is_wanted_stays_true(desk: Desk) -> None:
    write_json(desk.folder / "need.json", SAID | {"step": SAID["last"]})
    aged(desk, 10 * REPEATED_SECONDS)
    found = told(desk)
    assert found is not None and found.need.step == found.need.last
