"""Cases against a node: it judges its work once more and appeals where it finds nothing wrong."""

from __future__ import annotations

import shutil

from protocol.chain.types import State
from tests.node.stage import Stage, eventually, running
from tests.node.working import a_worker, ref_of, stored, submitted, waits_because


def test_it_appeals_by_itself_against_a_false_accusation(stage: Stage) -> None:
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    with running(a_worker(stage, node)) as ended:
        eventually(lambda: stored(stage, node) >= 1, what="it works")
        ref = ref_of(submitted(stage)[0])
        world.accuse(liar, ref)
        eventually(lambda: world.chain.state(world.run, ref) == State.APPEALED, what="it appeals")
        assert not ended.event.is_set()


def test_it_does_not_appeal_for_what_it_finds_false_itself(stage: Stage) -> None:
    """Somebody else used the node's key; or its disk changed the file."""
    node, validator, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    worker = a_worker(stage, node)
    made = stage.make(node)
    work = stage.commit(node, made.ref, made.units + 1)
    worker.journal.add(made.ref, work, made.units + 1, 0)
    (stage.home("node").data / "rollouts").mkdir(exist_ok=True)
    shutil.copy(made.path, stage.home("node").data / "rollouts" / made.path.name)
    world.accuse(validator, made.ref)
    with running(worker):
        eventually(waits_because(stage, "hard case"), what="the status says so")
        eventually(lambda: 1 in worker._defence._done, what="it has looked")
        assert world.chain.state(world.run, made.ref) == State.CHALLENGED
