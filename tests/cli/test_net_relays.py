"""`murmur net status` of relays: what they serve, to whom, and whether strangers reach it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from swarm.world import World

from protocol.p2p import GossipLimits, GossipSubject, report
from protocol.shardcast.server import ServerLimits, ShardServer
from protocol.shardcast.store import VersionStore
from protocol.shell import reachability
from protocol.shell.home import write_json
from tests.cli.conftest import SPEC
from tests.cli.net import flat, narrow, world
from tests.cli.operator import Operator
from tests.clock import eventually
from tests.p2p.gossip_world import PlainRules
from tests.p2p.network import Network, quick

__all__ = ["world"]


def test_status_of_a_running_relay_shows_what_it_says_and_what_a_stranger_sees(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    bootnode = network.host()
    hub = network.host(bootnode, key=world.trainer.key)
    operator.announce(hub, "hub", served({f"/v1/runs/{world.run}/spec": SPEC.canonical()}))
    data = operator.home / "data"
    relay = network.host(bootnode, report_file=data / "network.json", timing=quick(report=0.05))
    operator.announce(relay, "relay", url := served({}))
    operator.settle(bootnode)
    for each in (hub, relay):
        keys = (b"\x12\x20" + b"g" * 32,)
        each.gossip_about(GossipSubject("t", keys, PlainRules(), GossipLimits(heartbeat=0.2, look=0.5)))
    hub.publish(b"trainer:1")

    def told() -> bool:
        said = report.read(data / "network.json") or {}
        is_heard = said.get("gossip") and said["gossip"]["heard"] and said["gossip"]["mesh"]
        return bool(is_heard and said.get("known") and said["provides"] and said["provides"][0]["holders"])

    eventually(told, what="a report of a relay that is announced")
    done = operator.net("status")
    assert done.code == 0, done.out + done.err
    assert f"relay of run {world.run}: runs" in done.out
    assert relay.peer_id in done.out
    assert "nothing is wrong" in done.out
    assert f"relay at {url}, known to" in done.out
    assert "gossips    with 1 peer, 1 of them in the mesh; heard 1 message" in done.out
    assert "answers from here" in done.out.partition("Where it serves weights")[2]
    assert narrow(done.out)
    found = operator.json("status")
    assert (found["running"], found["peer"], found["problems"]) == (True, relay.peer_id, [])
    assert found["relays"] == [url]
    assert found["hub"]
    (outside,) = found["outside"]  # type: ignore[misc]
    assert (outside["answers"], bootnode.peer_id in outside["told_by"]) == (True, True)


def test_status_of_a_relay_says_whether_its_public_url_leads_to_it(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    bootnode, file = network.host(), operator.home / "data" / "network.json"
    relay = network.host(bootnode, report_file=file, timing=quick(report=0.05))
    operator.settle(bootnode)

    def status_with(url: str) -> tuple[str, list[dict[str, object]]]:
        operator.announce(relay, "relay", url)
        told = lambda: [each["http"] for each in (report.read(file) or {}).get("provides", [])]  # noqa: E731
        eventually(lambda: told() == [url], what="a report of where it serves")
        found = operator.json("status")
        return re.sub(r"\s+", " ", operator.net("status").out), found["served_at"]  # type: ignore[return-value]

    dead, tried = status_with("http://127.0.0.1:9")
    assert [each["answers"] for each in tried] == [False]
    assert "✗ http://127.0.0.1:9, where others fetch weights from this role: it does not answer" in dead
    assert "let serve.public_url lead to it" in dead
    assert "✗ http://127.0.0.1:9 this role" in dead.partition(" Relays ")[2], "the same as where it serves weights"

    plain = served({})
    said, _ = status_with(plain.replace("http://", "https://"))
    assert "https needs a reverse proxy or serve.tls_certificate" in said

    world.trainer.send(world.chain.publish(world.run, 0, bytes(range(32))))
    behind, tried = status_with(plain)
    assert [(each["answers"], bool(each["problem"])) for each in tried] == [(True, True)]
    assert "where others fetch weights from this role" not in behind, "it may just be fetching the version"


def test_status_of_a_relay_that_nobody_can_reach_says_so(operator: Operator, network: Network) -> None:
    """It announces an address at which nothing of it listens, so whom it asks dials it back in vain and tells nobody of it."""
    bootnode = network.host()
    elsewhere = network.gone().partition("/p2p/")[0]
    relay = network.host(
        bootnode, announce=[elsewhere], report_file=operator.home / "data" / "network.json", timing=quick(report=0.05)
    )
    operator.settle(bootnode)
    operator.announce(relay, "relay", "http://127.0.0.1:8460")
    eventually(lambda: (report.read(operator.home / "data" / "network.json") or {}).get("provides"), what="a report")
    done = operator.net("status")
    said = re.sub(r"\s+", " ", done.out)
    assert done.code == 1
    assert "nobody tells where this role is" in said
    assert "peers.announce" in said


def test_status_lists_what_a_relay_says_is_wrong_and_how_far_it_is_behind(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    bootnode, file = network.host(), operator.home / "data" / "network.json"
    relay = network.host(bootnode, report_file=file, timing=quick(report=0.05))
    operator.settle(bootnode)
    operator.announce(relay, "relay", served({}))
    for step in range(3):
        world.trainer.send(world.chain.publish(world.run, step, bytes(range(32))))
    doing = {"state": "serving", "versions": [0], "pid": os.getpid()}
    write_json(operator.home / "status.json", doing | {"problem": "no origin: nobody was found"})
    done = operator.net("status")
    said = re.sub(r"\s+", " ", done.out)
    assert done.code == 1
    assert "✗ the relay says: no origin: nobody was found" in said
    assert "✗ the relay is 2 versions behind the chain: it has version 0" in said
    assert narrow(done.out)

    write_json(operator.home / "status.json", doing | {"problem": "of an earlier life", "pid": os.getpid() + 1})
    assert "an earlier life" not in operator.net("status").out


def test_status_of_a_relay_that_serves_other_networks_only_claims_nothing(
    operator: Operator, network: Network, world: World, tmp_path: Path
) -> None:
    file = operator.home / "data" / "network.json"
    bootnode, _hub = operator.hub(network, "http://127.0.0.1:9")
    relay = network.host(bootnode, report_file=file, timing=quick(report=0.05))
    operator.settle(bootnode)
    world.trainer.send(world.chain.publish(world.run, 0, bytes(range(32))))
    with (
        closing(VersionStore(tmp_path / "weights", keep=1)) as store,
        ShardServer(store, host="127.0.0.1", port=0, limits=ServerLimits(allow=("10.9.8.0/24",))) as server,
    ):
        operator.announce(relay, "relay", server.url)
        eventually(lambda: (report.read(file) or {}).get("provides"), what="a report of where it serves")
        out = operator.net("status").out
    assert f"– {server.url}" in out.partition("Where it serves weights")[2]
    assert f"✓ {server.url}" not in out
    said = re.sub(r"\s+", " ", out)
    assert "it serves only networks of serve.allow: cannot be judged from here" in said
    assert "where others fetch weights from this role" not in said


def test_status_tries_every_relay_before_it_calls_it_good(
    operator: Operator,
    network: Network,
    served: Callable[[dict[str, bytes]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootnode = network.host()
    operator.settle(bootnode)
    operator.announce(network.host(bootnode), "relay", "http://127.0.0.1:9")
    operator.announce(network.host(bootnode), "relay", alive := served({}))
    relays = operator.net("status").out.partition("Relays")[2]
    assert "✗ http://127.0.0.1:9" in relays
    assert f"✓ {alive}" in relays
    monkeypatch.setattr(reachability, "_RELAYS_TRIED", 1)
    assert operator.net("status").out.partition("Relays")[2].count("not tried") == 1


def test_a_relay_that_waits_for_its_first_hub_is_not_said_to_go_on_by_itself(
    operator: Operator, network: Network
) -> None:
    bootnode = network.host()
    network.host(bootnode, report_file=operator.home / "data" / "network.json")
    operator.settle(bootnode)
    first = flat(operator.net("status").out)
    assert "gives up after 60 s: start it again when the hub is up (murmur relay start --home" in first
    (operator.home / "spec.json").write_bytes(SPEC.canonical())
    assert "it goes on by itself" in flat(operator.net("status").out)
