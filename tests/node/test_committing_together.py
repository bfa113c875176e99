"""A node that makes files faster than it commits them: several in one transaction, none of them late or lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from node.contributor import submission_log as states
from node.contributor.generation import Made
from node.contributor.worker import Worker
from node.engine.torch_engine import TorchEngine
from protocol.chain.events import Submitted
from protocol.errors import RpcUnavailable
from protocol.identity import Key
from tests.clock import eventually
from tests.node.stage import Stage, running
from tests.node.working import QUICK, hooked, stored, submitted, told, waits_because

LONG = QUICK.model_copy(update={"commit_seconds": 3600})


def patient(stage: Stage, node: Key) -> Worker:
    """A worker that commits only where something else makes it."""
    return Worker(stage.connection(node), stage.home("node"), LONG, lambda dtype: TorchEngine(dtype))


def blocks(stage: Stage) -> list[int]:
    """Blocks of the submissions, in order."""
    return [event.block for event in stage.world.logs() if isinstance(event.data, Submitted)]


def held(worker: Worker, many: int) -> None:
    eventually(lambda: len(worker._made) >= many, within=40, what=f"{many} files are made")


def test_all_that_a_version_allows_is_committed_in_one_transaction(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = patient(stage, node)
    with running(worker):
        eventually(waits_because(stage, "done for this version"), within=60, what="all sequences are used")
        eventually(
            lambda: stored(stage, node) == len(submitted(stage)), within=20, what="the hub has what was committed"
        )
    most = stage.world.chain.policy(stage.world.run).max_per_step
    assert [s.sequence for s in submitted(stage)] == list(range(most))
    assert len(set(blocks(stage))) == 1
    assert len(worker.submissions.all(states.STORED)) == most


def test_a_new_version_makes_it_commit_to_what_it_has_of_the_last_one(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = patient(stage, node)
    with running(worker):
        held(worker, 2)
        stage.publish()
        eventually(lambda: stored(stage, node) >= 2, within=20, what="what was held is committed and uploaded")
        held(worker, 1)
        assert {s.step for s in submitted(stage)} == {0}
        assert worker._made[0].place.step == 1
        assert not worker.submissions.all(states.LOST)


def test_what_is_made_is_not_lost_where_the_endpoint_fails_before_it_is_noted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    worker = patient(stage, node)
    note, failures = worker._delivery.note, iter([RpcUnavailable("the endpoint is away")])

    def fail_once(files: Sequence[Made]) -> None:
        for error in failures:
            raise error
        note(files)

    monkeypatch.setattr(worker._delivery, "note", fail_once)
    most = stage.world.chain.policy(stage.world.run).max_per_step
    with running(worker):
        eventually(lambda: stored(stage, node) == most, within=60, what="all is committed and uploaded")
    assert len(worker.submissions.all(states.STORED)) == most


def test_who_stops_it_loses_nothing_of_what_is_made(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = patient(stage, node)
    with running(worker):
        held(worker, 2)
        assert not submitted(stage)
    found = submitted(stage)
    assert len(found) >= 2
    assert len(set(blocks(stage))) == 1
    assert stored(stage, node) == len(found)


def test_a_crash_after_the_commit_of_several_loses_none(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = patient(stage, node)

    class Killed(BaseException):
        """Stands for SIGKILL: nothing below may catch it."""

    def kill() -> None:
        raise Killed

    hooked(worker).after = kill
    with running(worker) as ended:
        held(worker, 2)
        stage.publish()
        assert ended.event.wait(20)
        assert isinstance(ended.error, Killed)
    many = len(submitted(stage))
    assert many >= 2
    assert stored(stage, node) == 0
    again = patient(stage, node)
    with running(again):
        eventually(lambda: stored(stage, node) == many, within=20, what="a new life uploads them all")
        assert not again.submissions.all(states.LOST)


def test_a_beacon_that_nobody_drew_is_drawn_before_its_block_is_out_of_reach(stage: Stage) -> None:
    """The trainer published and fell silent; another node's work is the same then as if the trainer had drawn it."""
    world, node = stage.world, stage.seated()
    step = world.chain.published(world.run)
    manifest = stage.origin.publish(stage.tiny.model, step)
    world.trainer.send(world.chain.publish(world.run, step, manifest.digest))
    worker = patient(stage, node)
    with running(worker):
        eventually(waits_because(stage, "a block that is still to come"), what="it says what it waits for")
        assert told(stage)["state"] == "waiting"
        world.anvil.request("anvil_mine", hex(70))
        eventually(lambda: world.chain.publication(world.run, step).is_drawn, within=20, what="the node draws it")
        held(worker, 1)
        assert worker._made[0].place.beacon == world.chain.publication(world.run, step).beacon


def test_a_beacon_is_known_to_a_node_before_anybody_has_drawn_it(stage: Stage) -> None:
    """Its own submission draws it."""
    world, node = stage.world, stage.seated()
    step = world.chain.published(world.run)
    manifest = stage.origin.publish(stage.tiny.model, step)
    world.trainer.send(world.chain.publish(world.run, step, manifest.digest))
    world.anvil.request("anvil_mine", hex(3))
    worker = Worker(stage.connection(node), stage.home("node"), QUICK, lambda dtype: TorchEngine(dtype))
    with running(worker):
        eventually(lambda: stored(stage, node) >= 1, within=30, what="it works")
        assert world.chain.publication(world.run, step).is_drawn
