"""The hardware class of a seat: proposed at the full needs of the run's table, kept down to a part of them, never refused for noise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from swarm.tiny_run import TinyRun

from node.contributor.seat_class import SeatClass, propose, require_class
from node.engine.hardware import Measurement
from protocol.errors import PreflightError
from protocol.runspec import RunSpec
from tests.clock import VirtualClock

GIB = 2**30
TABLE = [
    {"number": 1, "name": "80 GB", "memory_gib": "79", "matrix_tflops": "30", "bandwidth_gb": "1500"},
    {"number": 0, "name": "24 GB", "memory_gib": "23", "matrix_tflops": "10", "bandwidth_gb": "600"},
]
LARGE = Measurement("a GPU", 80 * GIB, 70 * GIB, {"float32": 50e12, "bfloat16": 900e12}, 3000e9)
SMALL = replace(LARGE, memory=24 * GIB, matrix={"float32": 29e12, "bfloat16": 300e12}, bandwidth=900e9)


@pytest.fixture
def spec(tiny_run: TinyRun) -> RunSpec:
    """A run that computes in float32, with two classes."""
    return RunSpec.model_validate(tiny_run.spec.model_dump(mode="json") | {"hardware": TABLE})


class Machine:
    """Measures as it is told to, the last one for ever."""

    def __init__(self, *measured: Measurement) -> None:
        self._left: Iterator[Measurement] = iter(measured)
        self._last = measured[-1]
        self.times = 0

    def __call__(self) -> Measurement:
        self.times += 1
        return next(self._left, self._last)


def checked(spec: RunSpec, machine: Machine, clock: VirtualClock | None = None) -> SeatClass:
    return SeatClass(spec, machine, threading.Event(), clock or VirtualClock())


@pytest.mark.parametrize(
    ("found", "number"),
    [
        (LARGE, 1),
        (SMALL, 0),
        (replace(LARGE, memory=78 * GIB), 0),
        (replace(LARGE, matrix={"float32": 29e12, "bfloat16": 900e12}), 0),
        (replace(LARGE, bandwidth=1499e9), 0),
        (replace(SMALL, memory=22 * GIB), None),
    ],
    ids=["all", "less", "memory", "the run's dtype counts", "bandwidth", "none"],
)
def test_a_machine_is_of_the_first_class_whose_needs_it_reaches(
    spec: RunSpec, found: Measurement, number: int | None
) -> None:
    proposed = propose(spec, found)
    assert (None if proposed is None else proposed.number) == number


def test_a_machine_of_no_class_is_told_what_it_lacks(spec: RunSpec) -> None:
    with pytest.raises(
        PreflightError, match=r"class 0 \(24 GB\), the least of them, it has memory 22 of 23 GiB"
    ) as said:
        require_class(spec, replace(SMALL, memory=22 * GIB))
    assert "node hardware" in said.value.hint


@pytest.mark.parametrize("share", [0.99, 0.51])
def test_a_busy_machine_keeps_the_class_that_it_was_seated_in(spec: RunSpec, share: float) -> None:
    busy = replace(LARGE, matrix={"float32": share * 30e12}, bandwidth=share * 1500e9, free=GIB)
    machine = Machine(busy)
    checked(spec, machine).require(1)
    assert machine.times == 1
    assert propose(spec, busy) is None or share < 1


def test_a_machine_that_recovers_within_some_looks_is_not_refused(spec: RunSpec) -> None:
    """What is counted is the best of each quantity, in whichever look it came."""
    stalled = replace(LARGE, matrix={"float32": 1e12}, bandwidth=10e9)
    one = replace(stalled, bandwidth=2000e9)
    other = replace(stalled, matrix={"float32": 20e12})
    clock = VirtualClock()
    machine = Machine(stalled, one, stalled, other)
    checked(spec, machine, clock).require(1)
    assert machine.times == 4
    assert clock.waits == sorted(clock.waits)


def test_a_machine_that_became_another_is_refused_with_the_class_that_it_is_of(spec: RunSpec) -> None:
    machine = Machine(SMALL)
    seat = checked(spec, machine)
    with pytest.raises(PreflightError) as refused:
        seat.require(1)
    assert "no longer reaches hardware class 1 (80 GB)" in str(refused.value)
    assert "memory 24 of 75 GiB" in str(refused.value)
    assert "node stake --hardware 0" in refused.value.hint
    assert refused.value.exit_code == 5
    assert machine.times == 5
    seat.require(0)


def test_it_measures_once_for_a_class_and_never_where_the_run_has_no_table(spec: RunSpec, tiny_run: TinyRun) -> None:
    machine = Machine(LARGE)
    seat = checked(spec, machine)
    for _ in range(3):
        seat.require(1)
    assert machine.times == 1
    seat.require(0)
    assert machine.times == 2
    unused = Machine(SMALL)
    checked(tiny_run.spec, unused).require(1)
    assert unused.times == 0


def test_a_node_that_is_told_to_stop_looks_no_further(spec: RunSpec) -> None:
    stop, clock, machine = threading.Event(), VirtualClock(), Machine(SMALL)
    clock.meanwhile = stop.set
    SeatClass(spec, machine, stop, clock).require(1)
    assert machine.times == 1
