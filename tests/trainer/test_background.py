"""Work beside the training is done in order, once, and fails where somebody sees it; phases know their times."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from protocol.errors import DeadlineExceeded, PreflightError
from protocol.metrics import REGISTRY
from tests.clock import VirtualClock
from trainer.loop.background import Line
from trainer.telemetry.phases import Phases


@pytest.fixture
def phases() -> Phases:
    return Phases()


def test_a_job_runs_beside_whoever_started_it(phases: Phases) -> None:
    line: Line[int] = Line("publishing", phases, 30)
    released = threading.Event()
    line.start(lambda: int(released.wait(30)))
    assert line.is_busy
    assert line.take() is None
    released.set()
    assert line.finish() == 1
    assert line.finish() is None  # once


def test_jobs_follow_one_another(phases: Phases) -> None:
    line: Line[None] = Line("publishing", phases, 30)
    done: list[int] = []
    gate = threading.Event()

    def first() -> None:
        gate.wait(30)
        done.append(1)

    line.start(first)
    threading.Timer(0.05, gate.set).start()
    line.start(lambda: done.append(2))
    line.finish()
    assert done == [1, 2]
    assert set(phases.seconds) == {"publishing", "waiting for publishing"}


def test_a_job_that_failed_raises_at_the_next_one(phases: Phases) -> None:
    line: Line[None] = Line("publishing", phases, 30)

    def fail() -> None:
        raise PreflightError("the disk is full")

    line.start(fail)
    with pytest.raises(PreflightError, match="disk is full"):
        line.start(lambda: None)


def test_a_job_that_hangs_is_not_waited_for_for_ever(phases: Phases) -> None:
    line: Line[bool] = Line("publishing", phases, 0.05)
    released = threading.Event()
    line.start(lambda: released.wait(30))
    with pytest.raises(DeadlineExceeded, match="publishing"):
        line.finish()
    released.set()


def test_the_times_of_a_thread_add_up_and_the_next_deadline_is_known() -> None:
    clock, changes = VirtualClock(), []
    running = REGISTRY["murmur_trainer_running_phase_seconds"]
    phases = Phases(clock, lambda: changes.append(1))
    with phases("starting", 100):
        clock.advance(3)
        with phases("saving", 20):
            clock.advance(5)
            urgent = phases.most_urgent()
            assert urgent is not None
            assert (urgent[0], urgent[1].name) == (15, "saving")
            assert [told["name"] for told in phases.as_json()] == ["saving"]
            assert phases.as_json()[0]["seconds"] == 5
            phases.measure()
            assert running.values() == {("saving",): 5}
        clock.advance(93)
        urgent = phases.most_urgent()
        assert urgent is not None
        assert (urgent[0], urgent[1].name) == (-1, "starting")
        phases.measure()
        assert running.values() == {("starting",): 101}
    phases.measure()
    assert running.values() == {}
    assert phases.seconds == {"starting": 96, "saving": 5}
    assert phases.most_urgent() is None
    assert len(changes) == 4, "two beginnings and two ends"


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "publishing":
            thread.join(10)
            assert not thread.is_alive()
