"""A node that works and has nothing accepted says so and ends; one that waits for others never does."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from node.contributor import submission_log as states
from node.contributor import watchdog as watchdog_module
from node.contributor.submission_log import SubmissionLog
from node.contributor.wanted import AT_AN_END
from node.contributor.watchdog import NoProgress, ProgressWatch, end_of_hanging, may_start_fresh
from node.contributor.worker import Worker
from node.engine.torch_engine import TorchEngine
from protocol.chain.types import Publication, Seat
from protocol.errors import RpcUnavailable, Unavailable
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.clock import VirtualClock
from tests.node.stage import Stage
from tests.node.working import QUICK, judged, submitted

HOUR = 3600.0


class Desk:
    """A watchdog that expects something within an hour of work, and a log of what became of submissions."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.log, self._made = VirtualClock(), SubmissionLog(folder / states.FILE), 0
        self.watchdog = ProgressWatch(self.log, HOUR, self.clock)

    def works(self, seconds: float, state: str = "generating", **more: str) -> None:
        self.watchdog.says(state, **more)
        self.clock.advance(seconds)
        self.watchdog.says("waiting")

    def hands_in(self, state: str) -> None:
        """A submission that comes to be in this state."""
        self._made += 1
        submission = bytes([self._made]) * 32
        self.log.add(SubmissionRef("0x" + "11" * 20, 1, self._made, submission), submission, 100, 1)
        self.log.advance(submission, state)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# ---- what counts, and what follows


def test_work_of_which_nothing_is_handed_in_ends_the_node_and_says_what_it_did(desk: Desk) -> None:
    desk.works(HOUR / 2)
    desk.works(HOUR / 3, "checking")
    desk.watchdog.look()
    desk.works(HOUR / 2)
    with pytest.raises(
        NoProgress, match="nothing was accepted in 1 h 20 min of work: nothing was handed in, generating took 1 h"
    ) as error:
        desk.watchdog.look()
    assert error.value.exit_code == 5


def test_troubles_of_its_own_count_and_are_named(desk: Desk) -> None:
    for _ in range(7):
        desk.works(HOUR / 6, "waiting", trouble="KeyError: 'x'")
    with pytest.raises(NoProgress, match="waiting after KeyError: 'x' took 1 h 10 min"):
        desk.watchdog.look()


def test_an_accepted_submission_begins_a_new_hour(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MURMUR_FRESH_START", "1")
    assert not may_start_fresh(True)
    for _ in range(5):
        desk.works(HOUR * 0.9)
        desk.hands_in(states.ACCEPTED)
        desk.watchdog.look()
    assert may_start_fresh(True), "and lets the node start afresh once more"


def test_rejected_work_alone_ends_the_node(desk: Desk) -> None:
    for _ in range(3):
        desk.hands_in(states.SOFT)
    desk.hands_in(states.STORED)
    desk.works(HOUR)
    with pytest.raises(NoProgress, match="all 3 submissions that were judged were rejected"):
        desk.watchdog.look()


def test_one_rejected_while_others_wait_to_be_judged_ends_no_node(desk: Desk) -> None:
    for _ in range(20):
        desk.hands_in(states.STORED)
    desk.works(HOUR)
    desk.watchdog.look()
    desk.hands_in(states.STORED)
    desk.log.advance(bytes([1]) * 32, states.SOFT)
    desk.works(HOUR)
    desk.watchdog.look()
    later = ProgressWatch(desk.log, HOUR, desk.clock)  # after a restart, with as many pending
    desk.log.advance(bytes([2]) * 32, states.SOFT)
    desk.hands_in(states.STORED)
    later.says("generating")
    desk.clock.advance(HOUR)
    later.look()


@pytest.mark.parametrize("rejected", [0, 2])
def test_silent_validators_are_told_of_and_end_no_node(
    desk: Desk, rejected: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(rejected):
        desk.hands_in(states.SOFT)
    for round_ in range(3):
        desk.hands_in(states.STORED)
        desk.works(HOUR)
        with caplog.at_level(logging.WARNING, "node"):
            desk.watchdog.look()
        assert len(caplog.records) == round_ + 1
    assert f"of {1 + rejected} submissions that were handed in validators have judged {rejected}" in caplog.text


def test_a_slow_machine_has_ten_times_as_long_as_it_takes(desk: Desk) -> None:
    desk.watchdog.took(HOUR)
    desk.works(9 * HOUR)
    desk.watchdog.look()
    desk.works(HOUR)
    with pytest.raises(NoProgress):
        desk.watchdog.look()


def test_none_is_kept_where_the_settings_want_none(desk: Desk) -> None:
    watchdog = ProgressWatch(desk.log, 0, desk.clock)
    watchdog.says("generating")
    desk.clock.advance(1000 * HOUR)
    watchdog.look()


def test_work_that_does_not_come_to_an_end_is_noticed_from_outside(desk: Desk) -> None:
    desk.watchdog.says("generating")
    found: list[NoProgress] = []
    stop = Event()

    def end(why: NoProgress) -> None:
        found.append(why)
        stop.set()

    desk.watchdog.watch(stop, end)
    assert str(found[0]) == "generating has lasted for 1 h 1 min and does not come to an end"


def test_a_process_that_was_stopped_for_long_has_not_hung(desk: Desk) -> None:
    desk.watchdog.says("generating")
    stop = Event()

    def meanwhile() -> None:
        desk.clock.advance(5 * HOUR if len(desk.clock.waits) == 3 else 0)
        if len(desk.clock.waits) > 20:
            stop.set()

    desk.clock.meanwhile = meanwhile
    desk.watchdog.watch(stop, lambda why: pytest.fail(str(why)))
    desk.watchdog.look()


def test_a_long_wait_for_others_is_no_work_that_hangs(desk: Desk) -> None:
    desk.watchdog.says("fetching weights")
    stop = Event()
    desk.clock.meanwhile = lambda: stop.set() if len(desk.clock.waits) > 600 else None
    desk.watchdog.watch(stop, lambda why: pytest.fail(str(why)))


# ---- a worker that waits for others


def paused(stage: Stage, worker: Worker, patch: pytest.MonkeyPatch) -> None:
    stage.publish()
    stage.world.owner.send(stage.world.chain.pause(stage.world.run, True))
    stage.world.anvil.advance(61)  # the notice


def over(stage: Stage, worker: Worker, patch: pytest.MonkeyPatch) -> None:
    stage.publish()
    assert worker._demand is not None
    patch.setattr(worker._demand, "reason_to_wait", lambda head: AT_AN_END)


def unfunded(stage: Stage, worker: Worker, patch: pytest.MonkeyPatch) -> None:
    world = stage.world
    stage.publish()
    world.owner.send(world.chain.defund(world.run, world.chain.funds(world.run).free))
    world.anvil.advance(61)  # the notice


def unpublished(stage: Stage, worker: Worker, patch: pytest.MonkeyPatch) -> None:
    pass


def suspended(stage: Stage, worker: Worker, patch: pytest.MonkeyPatch) -> None:
    stage.publish()
    patch.setattr(Seat, "suspended_until", lambda seat, policy, now: now + 1000)


def without_the_version(stage: Stage, worker: Worker, patch: pytest.MonkeyPatch) -> None:
    def nowhere(publication: Publication) -> Path:
        raise Unavailable("no source is left")

    stage.publish()
    patch.setattr(worker._workbench._versions, "folder", nowhere)


def without_a_chain(stage: Stage, worker: Worker, patch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise RpcUnavailable("no endpoint answers")

    patch.setattr(worker, "_look", away)


def without_a_hub(stage: Stage, worker: Worker, patch: pytest.MonkeyPatch) -> None:
    def away(head: Publication | None) -> bool:
        raise Unavailable("the hub does not answer")

    stage.publish()
    patch.setattr(worker._delivery, "deliver_all", away)


WAITS: list[Callable[[Stage, Worker, pytest.MonkeyPatch], None]] = [
    paused, over, unfunded, unpublished, suspended, without_the_version, without_a_chain, without_a_hub,
]  # fmt: skip


@pytest.mark.parametrize("so_that_it_waits", WAITS)
def test_waiting_for_others_never_ends_a_node(
    stage: Stage, so_that_it_waits: Callable[[Stage, Worker, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, clock = a_watched_worker(stage)
    so_that_it_waits(stage, worker, monkeypatch)
    try:
        for _ in range(4):
            turn(worker)
            assert stage.home("node").read_status()["state"] in ("waiting", "fetching weights")  # type: ignore[index]
            clock.advance(HOUR)
    finally:
        worker.close()


def test_a_worker_whose_device_makes_nothing_ends_and_one_whose_work_is_accepted_does_not(stage: Stage) -> None:
    validator = stage.validator()
    worker, clock = a_watched_worker(stage)
    stage.publish()
    try:
        turn(worker)
        (submission,) = submitted(stage)
        judged(stage, validator, submission.id, Outcome.ACCEPT)
        worker._verdicts.turn()
        worker._watchdog.says("generating")
        clock.advance(2 * HOUR)
        turn(worker)
        worker._workbench.engine.generate = broken  # type: ignore[method-assign]
        stage.publish()
        with pytest.raises(NoProgress, match=r"waiting after RuntimeError: CUDA error took [12] h"):
            for _ in range(3):
                turn(worker)
                clock.advance(HOUR)
    finally:
        worker.close()


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("CUDA error")


def a_watched_worker(stage: Stage) -> tuple[Worker, VirtualClock]:
    clock, settings = VirtualClock(), QUICK.model_copy(update={"progress_minutes": 60.0})
    node = stage.seated()
    worker = Worker(stage.connection(node), stage.home("node"), settings, lambda dtype: TorchEngine(dtype), clock=clock)
    return worker, clock


def turn(worker: Worker) -> None:
    """As the loop does."""
    worker._try_turn()
    worker._watchdog.look()


# ---- a fresh start

AGAIN = """
import sys
from node.contributor.watchdog import NoProgress, fresh_start, may_start_fresh
print("started with", *sys.argv[1:], flush=True)
if may_start_fresh(asks_nobody=True):
    fresh_start(NoProgress("it does not get on"))
raise SystemExit(NoProgress.exit_code)
"""


def test_a_fresh_start_is_the_same_command_once(tmp_path: Path) -> None:
    script = tmp_path / "node"
    script.write_text(AGAIN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("MURMUR_FRESH_START", None)
    done = subprocess.run(
        [sys.executable, str(script), "start", "--home", "here"], capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, "started with start --home here\n" * 2), done.stderr
    assert "it does not get on; starting afresh, once" in done.stderr


def test_a_person_who_typed_the_password_is_not_asked_again() -> None:
    assert not may_start_fresh(asks_nobody=False)


def test_what_hangs_ends_with_the_stacks_of_all_threads(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(watchdog_module.os, "_exit", codes.append)
    end_of_hanging(asks_nobody=False)(NoProgress("generating has lasted for 61 min and does not come to an end"))
    assert codes == [5]
    assert "most recent call first" in capfd.readouterr().err
