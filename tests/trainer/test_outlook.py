"""What is still expected of submissions on their way."""

from __future__ import annotations

import pytest

from tests.clock import VirtualClock
from trainer.rollouts.outlook import Outlook


def names(count: int) -> list[bytes]:
    return [bytes([number]) for number in range(count)]


def test_a_submission_is_on_its_way_until_it_is_known_what_it_is_good_for() -> None:
    outlook = Outlook(VirtualClock())
    for name in names(3):
        outlook.committed(name, 5)
    assert outlook.settled(5) == 0
    outlook.settle(b"\x00", 1.0)
    outlook.settle(b"\x01", 0.0)
    assert outlook.settled(5) == 2
    assert outlook.settled(6) == 0
    outlook.settle(b"\x01", 1.0)  # the first word counts
    outlook.committed(b"\x00", 5)  # a reorg may tell of it again
    assert outlook.settled(5) == 2
    assert outlook.usable == pytest.approx(0.5)


def test_what_a_reorg_takes_back_is_neither_on_its_way_nor_settled() -> None:
    outlook = Outlook(VirtualClock())
    outlook.committed(b"a", 5)
    outlook.settle(b"a", 1.0)
    outlook.taken_back(b"a")
    assert outlook.settled(0) == 0


def test_what_takes_far_longer_than_any_lately_is_given_up() -> None:
    """A file that is never uploaded must not keep nodes from working."""
    clock = VirtualClock()
    outlook = Outlook(clock)
    outlook.committed(b"never", 5)
    clock.advance(1000)
    assert outlook.settled(5) == 0  # nothing is known of how long it takes
    outlook.committed(b"quick", 5)
    clock.advance(10)
    outlook.settle(b"quick", 1.0)
    assert outlook.settled(5) == 2
    outlook.committed(b"slow", 5)
    clock.advance(29)
    assert outlook.settled(5) == 2
    clock.advance(2)
    assert outlook.settled(5) == 3


def test_a_run_in_which_little_is_of_use_asks_for_more_up_to_a_bound() -> None:
    outlook = Outlook(VirtualClock())
    assert outlook.usable == 0.25  # nothing is known yet, and a first batch must not wait for verdicts on cheats
    for name in names(100):
        outlook.committed(name, 1)
        outlook.settle(name, 0.5)
    assert outlook.usable == pytest.approx(0.5, abs=0.02)
    for name in names(200)[100:]:
        outlook.committed(name, 1)
        outlook.settle(name, 0.0)
    assert outlook.usable == 0.25


def test_versions_that_no_batch_can_hold_are_forgotten() -> None:
    outlook = Outlook(VirtualClock())
    outlook.committed(b"a", 1)
    outlook.committed(b"b", 2)
    outlook.settle(b"b", 1.0)
    outlook.forget_before(3)
    assert outlook.settled(0) == 0
    assert outlook._on_the_way == outlook._settled == {}
