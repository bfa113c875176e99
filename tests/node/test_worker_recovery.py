"""The worker through crashes and outages: nothing it committed to is lost, nothing is done twice."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response

from node.contributor import submission_log as states
from node.contributor.generation import Made, path_of
from node.contributor.worker import Worker
from node.engine.torch_engine import TorchEngine
from protocol.chain.types import State
from protocol.clock import SYSTEM
from protocol.errors import DeadlineExceeded, LockHeld
from protocol.submission import SubmissionRef
from tests.clock import eventually
from tests.node.stage import LiveHub, Stage, running
from tests.node.working import QUICK, a_worker, hooked, stored, submitted, told


def uploads(hub: LiveHub) -> int:
    return sum(method == "PUT" for method, _ in hub.requests)


def test_a_hub_that_is_down_for_a_while_costs_nothing(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    hooked(worker).after = stage.hub.stop
    with running(worker) as ended:
        eventually(lambda: told(stage).get("state") == "waiting", what="the status says that it waits")
        assert len(submitted(stage)) == 1, "nothing more is committed while a file cannot be delivered"
        stage.hub.start()
        eventually(lambda: stored(stage, node) >= 2, what="it uploads and goes on")
        assert not worker.submissions.all(states.LOST)
        assert not ended.event.is_set()


def test_a_hub_that_lags_behind_is_asked_again(stage: Stage) -> None:
    """A hub that does not know the commitment yet must not cost the node its submission."""
    node = stage.seated()
    stage.publish()
    refusals = iter([404, 404, 401, 409, 429, 500, 503])

    def refuse(method: str, path: str) -> Response | None:
        status = next(refusals, None) if method == "PUT" else None
        return PlainTextResponse("not yet", status) if status else None

    stage.hub.fault = refuse
    worker = a_worker(stage, node)
    with running(worker):
        eventually(lambda: stored(stage, node) >= 1, what="it uploads in the end")
        assert not worker.submissions.all(states.LOST)


def test_an_upload_that_came_too_late_is_given_up(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    hooked(worker).after = lambda: stage.world.anvil.advance(stage.tiny.spec.upload_grace_seconds + 1)
    with running(worker) as ended:
        eventually(lambda: worker.submissions.all(states.LOST), what="the late one is given up")
        eventually(lambda: stored(stage, node) >= 1, what="it goes on with the next")
        assert [s.ref.sequence for s in worker.submissions.all(states.LOST)] == [0]
        assert not ended.event.is_set()


class Killed(BaseException):
    """Stands for SIGKILL: nothing below may catch it."""


def test_a_crash_between_commit_and_upload_loses_nothing(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def kill() -> None:
        raise Killed

    hooked(worker).after = kill
    with running(worker) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, Killed)
    assert (len(submitted(stage)), stored(stage, node)) == (1, 0)
    again = a_worker(stage, node)
    with running(again):
        eventually(lambda: stored(stage, node) >= 2, what="a new life uploads the file and goes on")
        assert [s.sequence for s in submitted(stage)][:2] == [0, 1]
        first = [path for method, path in stage.hub.requests if method == "PUT" and _first(stage) in path]
        assert len(first) == 1, "it was uploaded once"
        assert not again.submissions.all(states.LOST)


def _first(stage: Stage) -> str:
    return submitted(stage)[0].id.hex()


def test_a_crash_before_the_commit_makes_the_same_submission_again(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def kill() -> None:
        raise Killed

    hooked(worker).before = kill
    with running(worker) as ended:
        assert ended.event.wait(15)
    made = worker.submissions.all()[0]
    with running(a_worker(stage, node)):
        eventually(lambda: stored(stage, node) >= 1, what="a new life submits")
    assert submitted(stage)[0].root == made.ref.root


def test_a_transaction_that_was_mined_after_all_is_not_lost(stage: Stage) -> None:
    """The answer to the first attempt got lost; the second is refused, because the work is there. Its file must stay."""
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def lose_answer() -> None:
        raise DeadlineExceeded("submitting work: not mined in 60 s")

    hooked(worker).after = lose_answer
    with running(worker):
        eventually(lambda: stored(stage, node) >= 2, what="it uploads both")
        assert not worker.submissions.all(states.LOST)
        assert [s.sequence for s in submitted(stage)][:2] == [0, 1]


def test_a_transaction_that_is_mined_late_is_noticed(stage: Stage) -> None:
    """The first attempt is mined only after it was given up on, while the same submission is being sent once more."""
    node, world = stage.seated(), stage.world
    stage.publish()
    worker = a_worker(stage, node)
    made: list[Made] = []
    sender = hooked(worker)

    def give_up() -> None:
        sender.before = mine_first
        raise DeadlineExceeded("submitting work: not mined in 60 s")

    def mine_first() -> None:
        made.append(stage.make(node))
        stage.commit(node, made[0].ref, made[0].units)

    sender.before = give_up
    with running(worker):
        eventually(lambda: stored(stage, node) >= 1, what="the file of the first attempt is uploaded")
        assert submitted(stage)[0].root == made[0].ref.root
        assert not worker.submissions.all(states.LOST)
        assert world.chain.state(world.run, made[0].ref) == State.SUBMITTED


def test_the_storage_receipt_is_kept(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    with running(worker):
        eventually(lambda: worker.submissions.all(states.STORED), what="a file is stored")
        submission = worker.submissions.all(states.STORED)[0]
    kept = json.loads(submission.storage)
    assert kept["submission"] == submission.id.hex()
    assert len(kept["signature"]) == 130


def test_two_workers_cannot_share_a_home(stage: Stage) -> None:
    node = stage.seated()
    first = a_worker(stage, node)
    try:
        with pytest.raises(LockHeld):
            a_worker(stage, node)
    finally:
        first.close()


def test_files_are_removed_once_nothing_can_be_claimed_for_them(stage: Stage) -> None:
    node, policy = stage.seated(), stage.world.chain.policy(stage.world.run)
    folder = stage.home("node").data / "rollouts"
    folder.mkdir(parents=True)
    life = policy.window + policy.span
    for name, age in (("old", life + 60), ("young", life - 60)):
        (folder / f"{name}.parquet").write_bytes(b"x")
        os.utime(folder / f"{name}.parquet", (time.time() - age,) * 2)
    stage.publish()
    worker = a_worker(stage, node)
    old = SubmissionRef(node.address, 0, 900, bytes(32))
    worker.submissions.add(old, b"old", 1, int(time.time()) - life - 60)
    worker.submissions.advance(b"old", states.ACCEPTED)
    with running(worker):
        eventually(lambda: submitted(stage), what="it works")
    assert worker.submissions.get(b"old") is None
    assert not (folder / "old.parquet").exists()
    assert (folder / "young.parquet").exists()


class Behind:
    """The system's clock, but for the time of day."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wall(self) -> float:
        return SYSTEM.wall() - self._seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(SYSTEM, name)


def test_a_clock_that_is_set_right_forgets_nothing_that_can_be_disputed(stage: Stage) -> None:
    node, policy = stage.seated(), stage.world.chain.policy(stage.world.run)
    stage.publish()
    seconds = policy.window + policy.span + 3600
    worker = Worker(
        stage.connection(node), stage.home("node"), QUICK, lambda dtype: TorchEngine(dtype), clock=Behind(seconds)
    )
    with running(worker):
        eventually(lambda: stored(stage, node), what="it works")
    made = submitted(stage)
    for file in worker._workbench.rollouts.glob("*.parquet"):
        os.utime(file, (time.time() - seconds,) * 2)
    stage.publish()
    worker = a_worker(stage, node)
    with running(worker):
        eventually(lambda: stored(stage, node) > len(made), what="it goes on")
    for submission in made:
        known = worker.submissions.get(submission.id)
        assert known is not None
        assert known.made_at == stage.world.chain.submission(stage.world.run, submission.ref).time
        assert path_of(worker._workbench.rollouts, submission.root).exists()


def test_nothing_is_forgotten_while_a_case_is_open(stage: Stage) -> None:
    node, policy = stage.seated(), stage.world.chain.policy(stage.world.run)
    stage.publish()
    worker = a_worker(stage, node)
    with running(worker):
        eventually(lambda: stored(stage, node), what="it works")
    first = submitted(stage)[0]
    worker.submissions.advance(first.id, states.ACCEPTED)
    stage.world.anvil.advance(policy.window + policy.span + 60)
    stage.publish()
    worker = a_worker(stage, node)
    seat = replace(stage.world.chain.seat(stage.world.run, node.address), next=0)  # whose last work is kept anyway
    worker._tidy(replace(seat, open_cases=1))
    assert worker.submissions.get(first.id) is not None
    worker._tidy(seat)
    assert worker.submissions.get(first.id) is None
    worker.close()
