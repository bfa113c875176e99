"""A contributor among gossiping peers: it gets to a new version though the hub rings no bell and nothing is asked in time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.responses import PlainTextResponse, Response

from node.contributor.worker import Worker
from node.engine.torch_engine import TorchEngine
from protocol.gossip.messages import HEAD
from protocol.identity import Key
from protocol.p2p import Host
from protocol.p2p.discovery import Discovery
from tests.clock import eventually
from tests.node.stage import Stage, Wired, running
from tests.node.working import QUICK, submitted, waits_because
from tests.p2p.network import Network

NEVER = 3600.0
"""Seconds between looks at the chain: none comes by itself."""


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


def joined(stage: Stage, network: Network, bootnode: Host, key: Key) -> Wired:
    """A connection that gossips, as role.py makes them."""
    connection = stage.connection(key, poll_seconds=NEVER)
    connection._host = network.host(bootnode, key=key)
    connection.join_gossip()
    return connection


def meets(connection: Wired) -> None:
    async def meshed(discovery: Discovery) -> bool:
        return bool(discovery.gossip and discovery.gossip.mesh.meshed)

    def has_met() -> bool:
        return connection._host.run_inside(meshed, deadline=20, what="looking at the mesh")

    eventually(has_met, within=60, what="a peer to gossip with")


def test_a_contributor_gets_to_a_new_version_by_gossip_while_the_hubs_bell_is_silent(
    stage: Stage, network: Network
) -> None:
    def silent(method: str, path: str) -> Response | None:
        return PlainTextResponse("", 503) if "/nodes/" in path else None

    bootnode, node = network.host(), stage.seated()
    trainer = joined(stage, network, bootnode, stage.world.trainer.key)
    contributor = joined(stage, network, bootnode, node)
    stage.hub.fault = silent
    stage.publish()
    worker = Worker(contributor, stage.home("node"), QUICK, lambda dtype: TorchEngine(dtype))
    with running(worker):
        eventually(waits_because(stage, "done for this version"), within=60, what="all sequences are used")
        meets(trainer)
        meets(contributor)
        published = stage.publish()
        assert all(each.step < published.step for each in submitted(stage))
        assert trainer.gossip is not None
        trainer.gossip.tell_version(HEAD, published.step, published.manifest, stage.world.trainer.key)
        eventually(
            lambda: any(each.step == published.step for each in submitted(stage)),
            within=60,
            what="a submission of the new version",
        )
