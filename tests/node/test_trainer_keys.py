"""The trainer's key was replaced, and replaced again: what each of the keys published can still be had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from node.contributor.mail import Mail
from node.versions import Versions
from protocol.hub.listing import Mark
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


def test_a_node_that_goes_on_believes_the_hub_of_whoever_is_the_trainer_now() -> None:
    trainer, believed = "0xa", []

    def news(*_: object, trainer: str, **__: object) -> Any:
        believed.append(trainer)
        return SimpleNamespace(need=None, tag="", challenge="", receipts=[])

    hub: Any = SimpleNamespace(news=news)
    mail = Mail("0xnode", lambda: trainer)
    assert list(mail.fetch(hub, Mark(0))) == []
    trainer = "0xb"
    assert list(mail.fetch(hub, Mark(0))) == []
    assert believed == ["0xa", "0xb"]
