"""Deadlines that follow the machine's speed, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from swarm.pace import Patience, slowness


class Machine:
    """`slowness` at each second of a virtual clock."""

    def __init__(self, slowness: Callable[[float], float]) -> None:
        self._slowness = slowness
        self.now = 1000.0
        self.measured = 0

    def measure(self) -> float:
        self.measured += 1
        return self._slowness(self.now - 1000.0)

    def wait_in_vain(self, seconds: float) -> Patience:
        patience = Patience(seconds, clock=lambda: self.now, measure=self.measure)
        while not patience.ended():
            self.now += 0.25
        return patience


@pytest.mark.parametrize("seconds", [0.5, 5, 120])
def test_a_free_machine_waits_as_long_as_the_deadline_says(seconds: float) -> None:
    patience = Machine(lambda now: 1.0).wait_in_vain(seconds)
    assert patience.waited == pytest.approx(seconds, abs=1)
    assert str(patience) == f"{seconds:g} s"


def test_a_machine_four_times_as_slow_waits_four_times_as_long() -> None:
    patience = Machine(lambda now: 4.0).wait_in_vain(120)
    assert patience.waited == pytest.approx(480, abs=2)
    assert str(patience) == f"120 s of a free machine ({patience.waited:.0f} s of this one, which is 4.0 times as slow just now)"  # fmt: skip


def test_what_it_lost_while_it_was_busy_is_given_back() -> None:
    assert Machine(lambda now: 10.0 if now <= 100 else 1.0).wait_in_vain(120).waited == pytest.approx(210, abs=2)


def test_it_is_measured_now_and_then_and_not_at_every_look() -> None:
    machine = Machine(lambda now: 1.0)
    machine.wait_in_vain(120)
    assert machine.measured <= 13


def test_a_wait_ends_however_slow_the_machine_is() -> None:
    assert Machine(lambda now: 100.0).wait_in_vain(2).waited <= 201


def test_this_machine_is_measured_by_work_it_does() -> None:
    assert 1.0 <= slowness() <= 100.0
