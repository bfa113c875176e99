"""Gossip of a run between real hosts, each with its own look at the chain: trainer, validator, node, and a stranger who makes things up."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.gossip.messages import HEAD as HEAD_KIND
from protocol.gossip.messages import VERDICT
from protocol.gossip.run_gossip import ROLE, RunGossip
from protocol.hub.need import NEED_SECONDS, SignedNeed
from protocol.identity import Key
from protocol.p2p import GossipLimits, Host, Service
from protocol.p2p.discovery import Discovery
from protocol.signing import Need
from tests.clock import eventually
from tests.gossip.run import HEAD, NOW, RUN, FakeChain, GossipRun
from tests.p2p.network import Network, listening_on

LIMITS = GossipLimits(heartbeat=0.2, look=0.5)


@pytest.fixture
def network() -> Any:
    made = Network()
    yield made
    made.close()


class Member:
    """A host of the run, with its own look at the chain."""

    def __init__(self, network: Network, bootnode: Host, chain: FakeChain, key: Key, **options: Any) -> None:
        self.host = network.host(bootnode, key=key, **options)
        services = tuple(Service(31337, chain.domain.contract, RUN, role) for role in (ROLE, "hub"))
        self.gossip = RunGossip(self.host, chain, RUN, services, max_lag=lambda: 2, limits=LIMITS)  # type: ignore[arg-type]
        self.gossip.start()
        self.words = self.gossip.heard_words

    def meets(self, count: int) -> None:
        async def meshed(discovery: Discovery) -> int:
            return len(discovery.gossip.mesh.meshed) if discovery.gossip else 0

        def has_met() -> bool:
            return self.host.run_inside(meshed, deadline=20, what="looking at the mesh") >= count

        eventually(has_met, within=30, what=f"a mesh of {count}")


def test_after_a_bootnode_restarts_those_who_gossip_are_found_through_it_again(network: Network) -> None:
    run, key = GossipRun(), Key.generate()
    bootnode = network.host(key=key)
    place = listening_on(bootnode)
    Member(network, bootnode, run.chain, run.trainer)
    eventually(lambda: bootnode.status().records == 1, what="the record of one who gossips")
    bootnode.close()
    again = network.host(key=key, listen=place)
    eventually(lambda: again.status().records == 1, what="its being placed anew")


def test_news_of_trainer_and_validator_reach_a_node_that_only_dials_out_and_a_strangers_reach_nobody(
    network: Network,
) -> None:
    run = GossipRun()
    bootnode, chain = network.host(), run.chain
    trainer = Member(network, bootnode, chain, run.trainer)
    validator = Member(network, bootnode, chain, run.validator)
    node = Member(network, bootnode, chain, run.node, listen=None)
    stranger = Key.generate()
    liar = Member(network, bootnode, chain, stranger)
    for each in (trainer, validator, node, liar):
        each.meets(2)

    verdicts: list[Any] = []
    node.words.on(VERDICT, verdicts.append)
    need = Need(RUN, HEAD, 60, 16, 200, 5, 9, 950, NOW + NEED_SECONDS)
    signed = SignedNeed.issue(need, run.trainer, chain.domain)
    liar.host.publish(run.version(key=stranger, step=HEAD + 2))
    trainer.gossip.tell_version(HEAD_KIND, HEAD + 1, b"d" * 32, run.trainer)
    trainer.gossip.tell_need(signed)
    validator.host.publish(run.verdict())
    eventually(
        lambda: node.words.head and node.words.need and verdicts and validator.words.head,
        within=30,
        what="hearing all",
    )
    assert node.words.head is not None
    assert node.words.head.step == HEAD + 1
    assert node.words.need == signed
    assert verdicts[0].signer(chain.domain) == run.validator.address
    assert validator.words.head is not None
    assert validator.words.head.step == HEAD + 1
