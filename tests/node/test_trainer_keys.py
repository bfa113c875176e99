"""The trainer's key was replaced, and replaced again: what each of the keys published can still be had."""

from __future__ import annotations

from node.versions import Versions
from protocol.identity import Key
from tests.node.stage import Stage


def test_a_role_that_starts_later_takes_what_any_former_key_signed(stage: Stage) -> None:
    world, first, second = stage.world, stage.world.trainer, Key.generate()
    world.anvil.give(second.address, 10**18)
    published = []
    for sender in (first, world.sender(second), first):
        if world.chain.trainer(world.run) != sender.key.address:
            world.owner.send(world.chain.appoint(world.run, sender.key.address))
            world.anvil.advance(world.chain.policy(world.run).notice)
        world.trainer = sender
        stage.origin._key = sender.key
        published.append(stage.publish())
    versions = Versions(stage.connection(Key.generate()), stage.home("node").data / "weights")
    for publication in published:
        assert versions.folder(publication).is_dir()
    versions.close()
