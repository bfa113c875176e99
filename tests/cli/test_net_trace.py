"""`murmur net trace`: what an operator sees of lookups, of dead ways in, and of peers that lie."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from swarm.world import World

from protocol.identity import Key
from protocol.p2p.discovery import ENDPOINT_PROTOCOL, Discovery
from protocol.p2p.stream import Stream
from protocol.shell.location import RunLocation
from tests.cli.conftest import SPEC
from tests.cli.net import OTHER_SPEC, narrow, world
from tests.cli.operator import ESCAPE, Operator
from tests.clock import eventually
from tests.p2p.network import Network

__all__ = ["world"]


def test_trace_follows_a_lookup_to_the_hub_and_what_it_serves(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    url = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()})
    bootnode, hub = operator.hub(network, url)
    operator.settle(bootnode, dead := network.gone())

    done = operator.net("trace")
    assert done.code == 0, done.out + done.err
    parts = ["1. The way in", "2. Who was asked", "3. Who is said to provide it", "4. What it serves"]
    assert [part for part in parts if part in done.out] == parts
    assert re.search(f"✗ {re.escape(dead.partition('/p2p')[0])}.*refused", done.out)
    assert "its run spec is the chain's" in done.out
    assert f"✓ hub of run {world.run} at {url}" in done.out
    assert narrow(done.out)

    found = operator.json("trace", "hub")
    assert (found["found"], found["stopped"]) == (f"hub of run {world.run} at {url}", None)
    (claimant,) = found["claimants"]  # type: ignore[misc]
    assert (claimant["peer"], claimant["address"]) == (hub.peer_id, world.trainer.key.address)
    assert (claimant["trusted"], claimant["url"], claimant["check"]["ok"]) == (True, url, True)
    assert bootnode.peer_id in claimant["named_by"]


def test_trace_says_that_every_way_in_is_dead(operator: Operator, network: Network) -> None:
    operator.settle(network.gone(), network.gone())
    done = operator.net("trace")
    assert (done.code, "It stops here: none of 2 ways into the network answers" in done.out) == (1, True)
    assert done.out.count("nothing listens on that port") == 1
    assert narrow(done.out)


def test_trace_says_that_nobody_knows_a_hub(operator: Operator, network: Network) -> None:
    operator.settle(network.host())
    done = operator.net("trace")
    assert (done.code, "the one peer that answered does not know a hub" in re.sub(r"\s+", " ", done.out)) == (1, True)


def test_trace_does_not_take_a_strangers_word_for_the_hub(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    bootnode = network.host()
    stranger = network.host(bootnode)
    operator.announce(stranger, "hub", served({f"/v1/runs/{world.run}/spec": SPEC.canonical()}))
    operator.settle(bootnode)
    done = operator.net("trace", "hub")
    assert done.code == 1
    assert f"none holds the trainer's key {world.trainer.key.address}" in re.sub(r"\s+", " ", done.out)
    assert "not the trainer's key; not asked" in done.out


def test_trace_tells_a_hub_whose_http_is_dead_from_one_that_serves_another_spec(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    bootnode = network.host()
    hub = network.host(bootnode, key=world.trainer.key)
    operator.settle(bootnode)
    operator.announce(hub, "hub", "http://127.0.0.1:9")
    dead = operator.json("trace", "hub")
    assert "the endpoint was found, and what it serves is not to be had: the hub did not answer" in str(dead["stopped"])

    operator.announce(hub, "hub", served({f"/v1/runs/{world.run}/spec": OTHER_SPEC.canonical()}))
    done = operator.net("trace", "hub")
    assert (done.code, "✗ It stops here: the endpoint was found" in done.out) == (8, True), done.out


def test_the_chains_word_counts_where_peers_find_nobody_and_not_where_the_hub_is_dead(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    """A role that has found the hub stays with it: what trace and status tell is what the role does."""
    right = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()})
    world.owner.send(world.chain.locate(world.run, RunLocation(hub=right).encode()))
    bootnode = network.host()
    operator.settle(bootnode)
    alone = operator.json("trace", "hub")
    assert alone["found"] == f"hub of run {world.run} at {right}, by the chain"

    operator.announce(network.host(bootnode, key=world.trainer.key), "hub", "http://127.0.0.1:9")
    done, found = operator.net("trace", "hub"), operator.json("trace", "hub")
    assert (done.code, found["found"], [word["used"] for word in found["words"]]) == (1, None, [False])
    assert "the endpoint was found, and what it serves is not to be had" in str(found["stopped"])

    status = operator.json("status")
    assert status["hub"] == "http://127.0.0.1:9"
    assert "http://127.0.0.1:9, where peers say that the hub is: the hub did not answer" in str(status["problems"])
    assert "✗ http://127.0.0.1:9" in operator.net("status").out


def test_trace_shows_a_liar_that_answers_nonsense_about_where_it_serves(
    operator: Operator, network: Network, world: World
) -> None:
    bootnode = network.host()
    hub = network.host(bootnode, key=world.trainer.key)
    operator.announce(hub, "hub", "http://127.0.0.1:9")
    operator.settle(bootnode)

    async def lie(stream: Stream) -> None:
        await stream.read_message(64, "key")
        await stream.write_message(
            json.dumps({"http": f"http://{ESCAPE}[31m:1", "role": "hub", "run": str(world.run)}).encode()
        )

    async def start(discovery: Discovery) -> None:
        discovery.node.handle(ENDPOINT_PROTOCOL, lie)

    hub.run_inside(start, deadline=5, what="starting to lie")
    done = operator.net("trace", "hub")
    assert done.code == 8
    assert "does not say where it serves" in done.out


def test_trace_finds_relays_that_serve_something_else_than_the_chain_says(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    bootnode = network.host()
    operator.announce(network.host(bootnode), "relay", served({}))
    operator.settle(bootnode)
    assert "it answers; nothing is published yet" in operator.net("trace", "relay").out

    digest = bytes(range(32))
    world.trainer.send(world.chain.publish(world.run, 0, digest))
    behind = operator.net("trace", "relay")
    assert (behind.code, "404 when asked for version 0" in behind.out) == (1, True)

    operator.announce(network.host(bootnode), "relay", served({"/v/0/manifest": b"x" * 200}))
    lying = operator.json("trace", "relay")
    checks = [claimant["check"] for claimant in lying["claimants"]]  # type: ignore[attr-defined]
    assert sorted(check["ok"] for check in checks) == [False, False]


def test_trace_of_a_peer_says_who_knows_it_and_whether_it_answers_there(operator: Operator, network: Network) -> None:
    bootnode = network.host()
    host = network.host(bootnode)
    operator.settle(bootnode)
    eventually(lambda: bootnode.status().peers == 1, what="one peer at the bootnode")
    known = operator.net("trace", host.peer_id)
    assert (known.code, "told by 1; answers from here" in known.out) == (0, True), known.out

    host.close()
    dead = operator.net("trace", host.peer_id)
    assert (dead.code, "it does not answer there" in dead.out) == (1, True), dead.out

    nobody = operator.net("trace", Key.generate().peer_id)
    assert (nobody.code, "does not know where it is" in nobody.out) == (1, True)


@pytest.mark.parametrize("target", ["hubb", "16Uiu2HAm", "0x" + "ab" * 20, f"{ESCAPE}[2J"], ids=repr)
def test_what_cannot_be_traced_is_a_wrong_argument(operator: Operator, network: Network, target: str) -> None:
    operator.settle(network.host())
    done = operator.net("trace", target)
    assert (done.code, "hub, origin, relay, seeder" in done.err) == (2, True)
