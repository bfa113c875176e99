"""`murmur net …`: what an operator sees of a network of real hosts, a dead bootnode and peers that lie."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from swarm.anvil import Anvil
from swarm.world import World

from protocol.chain.sync import Book
from protocol.deadline import Transport, why, within
from protocol.errors import Unavailable
from protocol.identity import Key
from protocol.p2p import GossipLimits, GossipSubject, report
from protocol.p2p.address import Address, PeerAddress
from protocol.p2p.discovery import ENDPOINT_PROTOCOL, Discovery
from protocol.p2p.identify import IDENTIFY
from protocol.p2p.stream import Stream
from protocol.settings import write_toml
from protocol.shardcast.server import ServerLimits, ShardServer
from protocol.shardcast.store import VersionStore
from protocol.shell import reachability, remedy, standpoint
from protocol.shell.home import write_json
from protocol.shell.location import RunLocation
from tests.cli.conftest import PASSWORD, SPEC, Console
from tests.cli.operator import ESCAPE, Operator
from tests.clock import eventually
from tests.p2p.gossip_world import PlainRules
from tests.p2p.network import Network, quick

OTHER_SPEC = SPEC.model_copy(update={"max_lag": SPEC.max_lag + 1})


@pytest.fixture
def world(anvil: Anvil) -> World:
    return World.fresh(anvil, spec_digest=SPEC.digest)


def narrow(text: str) -> bool:
    """What has no space in it, as a home's path, is never cut."""
    return all(len(line) <= 80 or len(line.split()) == 1 for line in text.splitlines())


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


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


# ---- ping ----


def test_ping_measures_round_trips_and_says_who_is_there(operator: Operator, network: Network, world: World) -> None:
    bootnode = network.host()
    relay = network.host(bootnode)
    operator.announce(relay, "relay", "http://127.0.0.1:8470")
    operator.settle(bootnode)
    known = relay.addresses[0]
    done = operator.net("ping", known, "--count", 3)
    assert done.code == 0, done.out + done.err
    assert re.search("✓ .*connected and proven in .* ms", done.out)
    assert "3 round trips: least" in done.out
    assert "relay at http://127.0.0.1:8470" in done.out
    assert "/murmuration/kad/" in done.out
    assert narrow(done.out)
    found = operator.json("ping", known)
    assert (found["peer"], found["answers"], len(found["round_trips"])) == (relay.peer_id, True, 4)  # type: ignore[arg-type]
    assert found["provides"] == {"relay": "http://127.0.0.1:8470"}


def test_ping_finds_a_peer_by_its_peer_id_and_by_the_address_of_its_key(operator: Operator, network: Network) -> None:
    bootnode, key = network.host(), Key.generate()
    relay = network.host(bootnode, key=key)
    operator.announce(relay, "relay", "http://127.0.0.1:8470")
    operator.settle(bootnode)
    for name in (relay.peer_id, key.address, key.address.lower()):
        found = operator.json("ping", name)
        assert (found["peer"], found["address"], found["answers"]) == (relay.peer_id, key.address, True)
    (operator.home / "data").mkdir()
    (operator.home / "data" / "peers.json").write_text(json.dumps(relay.addresses))
    by_both = operator.net("ping", relay.peer_id).out
    assert ("known to this role and told by peers" in re.sub(r"\s+", " ", by_both), narrow(by_both)) == (True, True)
    nobody = operator.net("ping", Key.generate().address)
    assert (nobody.code, "holds that key" in nobody.err) == (1, True)
    lost = operator.net("ping", Key.generate().peer_id)
    assert (lost.code, "nobody that was asked knows where it is" in lost.err) == (1, True)


def test_ping_finds_a_node_by_its_address_in_the_book_of_a_validator(
    operator: Operator, network: Network, world: World
) -> None:
    """The chain keeps the PeerID that a seat was taken with."""
    node, bootnode = Key.generate(), network.host()
    world.seat_node(Key.generate(), node)
    host = network.host(bootnode, key=node)
    operator.settle(bootnode)
    assert operator.net("ping", node.address).code == 1
    (operator.home / "data").mkdir()
    with closing(Book(world.chain, world.run, operator.home / "data" / "chain.sqlite")) as book:
        book.poll()
    eventually(lambda: bootnode.status().peers == 1, what="one peer at the bootnode")
    found = operator.json("ping", node.address)
    assert (found["peer"], found["answers"], found["found"]) == (host.peer_id, True, "told by peers")


def test_ping_needs_no_home_for_a_multiaddr(
    console: Console, network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert console.murmur("net", "ping", network.host().addresses[0]).code == 0
    asked = console.murmur("net", "ping", Key.generate().peer_id)
    assert (asked.code, "--bootnode" in asked.err) == (3, True)


def test_ping_says_in_a_sentence_what_is_wrong(console: Console, network: Network, tmp_path: Path) -> None:
    host, absent = network.host(), Key.generate()
    place = PeerAddress.parse(host.addresses[0]).address
    refused = console.murmur("net", "ping", network.gone())
    assert (refused.code, "nothing listens on that port" in refused.out) == (1, True)
    wrong = console.murmur("net", "ping", f"{place}/p2p/{absent.peer_id}")
    said = re.sub(r"\s+", " ", wrong.out)
    assert (wrong.code, f"somebody else answers there: {host.peer_id}" in said) == (1, True)
    assert "ask its operator for the present one" in said
    assert console.murmur("net", "ping", "/ip4/1.2.3.4/udp/1/p2p/x").code == 3


def test_ping_of_something_that_is_no_peer_says_so(console: Console, served: Callable[[dict[str, bytes]], str]) -> None:
    port = served({}).rpartition(":")[2]
    done = console.murmur("net", "ping", f"/ip4/127.0.0.1/tcp/{port}/p2p/{Key.generate().peer_id}")
    assert done.code != 0
    assert "no libp2p peer" in re.sub(r"\s+", " ", done.out), done.out


def test_what_a_peer_calls_itself_moves_no_cursor(console: Console, network: Network) -> None:
    from libp2p.identity.identify.pb.identify_pb2 import Identify

    host = network.host()

    async def boast(stream: Stream) -> None:
        said = Identify(agent_version=f"{ESCAPE}[2J{ESCAPE}]0;owned\x07\u202e\n", protocols=[f"/x{ESCAPE}[31m\r\n"])
        await stream.write_message(said.SerializeToString())

    async def start(discovery: Discovery) -> None:
        discovery.node.handle(IDENTIFY, boast)

    host.run_inside(start, deadline=5, what="starting to boast")
    done = console.murmur("net", "ping", host.addresses[0])
    assert done.code == 0
    assert r"\x1b[2J\x1b]0;owned\x07\u202e\n" in done.out
    for forbidden in (ESCAPE, "\x07", "\u202e", "\r"):
        assert forbidden not in done.out
    as_json = console.murmur("net", "ping", host.addresses[0], "--json")
    assert ESCAPE not in as_json.out
    assert as_json.json["agent"].startswith(ESCAPE)


# ---- peers ----


def test_peers_lists_who_is_known_and_what_the_chain_says_of_them(
    operator: Operator, network: Network, world: World
) -> None:
    bootnode = network.host()
    trainer = network.host(bootnode, key=world.trainer.key)
    relay = network.host(bootnode)
    operator.announce(relay, "relay", "http://127.0.0.1:8470")
    other = network.host(bootnode)
    data = operator.home / "data"
    own = network.host(bootnode, peers_file=data / "peers.json", report_file=data / "network.json")
    eventually(lambda: bootnode.status().peers == 4, what="four peers at the bootnode")
    operator.settle(bootnode)
    own.join(20)
    own.close()
    (data / "peers.json").write_text(json.dumps([network.gone()]))

    found = operator.json("peers")
    by = {each["peer"]: each for each in found["peers"]}  # type: ignore[attr-defined]
    roles = {
        name: by[host.peer_id]["role"] for name, host in (("b", bootnode), ("t", trainer), ("r", relay), ("o", other))
    }
    assert roles == {"b": "bootnode", "t": "trainer", "r": "relay", "o": "unknown"}
    assert own.peer_id not in by
    assert by[trainer.peer_id]["address"] == world.trainer.key.address
    assert by[bootnode.peer_id]["answers"] is True
    assert by[bootnode.peer_id]["seen"] > 0
    saved = [each for each in by.values() if each["known_from"] == ["saved"]]
    assert len(saved) == 1

    done = operator.net("peers")
    assert done.code == 0
    assert narrow(done.out)
    assert f"{trainer.peer_id}  trainer, answers" in done.out
    quiet = operator.net("peers", "--no-lookup", "--json")
    assert all(each["answers"] is None for each in quiet.json["peers"])


def test_peers_says_what_to_do_where_nobody_is_known_and_where_nobody_answers(
    operator: Operator, network: Network
) -> None:
    operator.settle()
    nobody = operator.net("peers", "--no-lookup")
    assert (nobody.code, "0 known" in nobody.out) == (1, True)
    assert "try: put peers.bootnodes into the config file, then murmur relay start" in flat(nobody.out)
    operator.settle(network.gone())
    down = operator.net("peers")
    assert (down.code, "1 known, 0 answered" in down.out) == (1, True)
    assert "try: murmur net ping ADDRESS" in down.out
    assert narrow(nobody.out)
    assert narrow(down.out)
    assert len(operator.json("peers")["problems"]) == 1  # type: ignore[arg-type]
    bootnode = operator.home.parent / "bootnode"
    write_toml(bootnode / "bootnode.toml", {"bootnodes": [network.gone()]}, "A bootnode that is down.")
    said = operator.console.murmur("net", "peers", "--home", bootnode).out
    assert f"try: murmur bootnode start --home {bootnode}" in flat(said)


# ---- status ----


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


def test_status_says_where_the_weights_came_from(
    operator: Operator, network: Network, served: Callable[[dict[str, bytes]], str]
) -> None:
    lines = [
        'murmur_weights_fetched_bytes_total{source="relay"} 3.0e+06',
        'murmur_weights_fetched_bytes_total{source="origin"} 1e6',
        "murmur_shardcast_served_bytes_total 5e6",
        "murmur_other nonsense",
    ]
    bootnode = network.host()
    network.host(bootnode, report_file=operator.home / "data" / "network.json")
    operator.settle(bootnode)
    url = served({"/metrics": "\n".join(lines).encode()})
    write_json(operator.home / "status.json", {"state": "serving", "metrics_url": url})
    done = operator.net("status")
    assert "3.0 MB from relay (75 %)" in done.out
    assert (done.code, "✗ the relay serves nothing yet" in done.out) == (1, True)
    assert "1.0 MB from origin (25 %)" in done.out
    assert "5.0 MB served to others" in done.out
    assert operator.json("status")["weights"] == {"relay": 3_000_000, "origin": 1_000_000}
    write_json(operator.home / "status.json", {"state": "serving"})
    assert "set [metrics] port" in operator.net("status").out


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


def test_status_names_a_dead_bootnode_and_a_hub_that_nobody_finds(operator: Operator, network: Network) -> None:
    operator.settle(network.gone())
    done = operator.net("status")
    said = re.sub(r"\s+", " ", done.out)
    assert done.code == 1
    assert "✗ no bootnode answers" in said
    assert "connection refused" in said
    assert "the role does not run" in said
    assert narrow(done.out)

    operator.settle(network.host())
    without = operator.net("status")
    assert (without.code, "the run's hub is not found" in without.out) == (1, True)
    assert "murmur net trace hub" in without.out


def test_a_role_that_has_just_started_is_said_to_be_joining(operator: Operator, network: Network) -> None:
    operator.settle(network.host())
    said = {
        "pid": os.getpid(),
        "at": time.time(),
        "state": report.RUNNING,
        "joined": False,
        "reason": "no bootnode is reachable",
    }
    (operator.home / "data").mkdir()
    write_json(operator.home / "data" / "network.json", said | {"joining": True})
    assert "the running role is still joining" in operator.net("status").out
    write_json(operator.home / "data" / "network.json", said | {"joining": False})
    assert "the running role knows nobody: no bootnode is reachable" in operator.net("status").out


def test_a_host_is_joining_until_a_bootnode_has_answered_or_failed(network: Network, tmp_path: Path) -> None:
    file = tmp_path / "network.json"

    def says(joining: bool) -> bool:
        said = report.read(file) or {}
        return (said.get("joined"), said.get("joining")) == (False, joining)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{Key.generate().peer_id}"
        network.host(mute, report_file=file, timing=quick(report=0.05))
        eventually(lambda: says(joining=True), what="it waits for the bootnode's first word")
    file = tmp_path / "other.json"
    network.host(network.gone(), report_file=file, timing=quick(report=0.05))
    eventually(lambda: says(joining=False), what="a bootnode that is down is an answer")


def test_a_bootnode_of_the_run_spec_is_a_way_in_for_commands_as_for_the_role(
    operator: Operator, network: Network
) -> None:
    """The role said in its report that it goes there; what --bootnode names takes its place too."""
    agreed, other = network.host(), network.host()
    own = network.host(report_file=operator.home / "data" / "network.json")
    own.add_bootnodes([PeerAddress.parse(agreed.addresses[0])])
    own.join(20)
    own.close()
    operator.settle()

    def ways(verb: str, *words: object) -> list[tuple[object, object]]:
        found = operator.json(verb, *words)["bootnodes" if verb == "status" else "ways_in"]
        return [(way["what"], way["answers"]) for way in found]  # type: ignore[attr-defined]

    assert ways("status") == ways("trace", "hub") == [("bootnode the role knows", True)]
    assert ways("status", "--bootnode", other.addresses[0]) == [("bootnode", True)]
    (known,) = operator.json("peers")["peers"]  # type: ignore[misc]
    assert (known["peer"], known["role"], known["answers"]) == (agreed.peer_id, "bootnode", True)
    agreed.close()
    down = operator.json("status")["problems"]
    assert "no bootnode answers" in [each["what"] for each in down]  # type: ignore[attr-defined]


def test_a_role_that_was_stopped_is_told_to_start_and_not_to_open_its_port(
    operator: Operator, network: Network
) -> None:
    bootnode = network.host()
    own = network.host(bootnode, report_file=operator.home / "data" / "network.json")
    operator.settle(bootnode)
    own.join(20)
    own.close()
    done = operator.net("trace", "me")
    assert (done.code, "It stops here: this role does not run" in done.out) == (1, True), done.out
    assert "peers.announce" not in done.out


def test_status_tells_a_machine_behind_nat(operator: Operator, network: Network) -> None:
    """By what the bootnodes see, of whom one may lie."""
    from libp2p.identity.identify.pb.identify_pb2 import Identify

    bootnodes = [network.host() for _ in range(3)]
    operator.settle(*bootnodes)
    here = operator.net("status")
    assert ("3 peers saw this machine at 127.0.0.1" in here.out, "NAT" in here.out) == (True, False), here.out

    async def see(stream: Stream) -> None:
        outside = Address("ip4", "203.0.113.7", 40_001).encode()
        await stream.write_message(Identify(observed_addr=outside).SerializeToString())

    async def start(discovery: Discovery) -> None:
        discovery.node.handle(IDENTIFY, see)

    bootnodes[0].run_inside(start, deadline=5, what="lying")
    assert operator.json("status")["behind_nat"] is False
    bootnodes[1].run_inside(start, deadline=5, what="seeing it so too")
    done = operator.net("status")
    assert "2 peers saw this machine at 203.0.113.7" in done.out
    assert "(127.0.0.1): it is behind NAT" in re.sub(r"\s+", " ", done.out)
    assert narrow(done.out)


def test_status_goes_through_saved_peers_where_no_bootnode_answers(operator: Operator, network: Network) -> None:
    operator.settle(network.gone())
    (operator.home / "data").mkdir(parents=True)
    (operator.home / "data" / "peers.json").write_text(json.dumps([network.host().addresses[0]]))
    assert "reached through a saved peer" in re.sub(r"\s+", " ", operator.net("status").out)


def test_status_survives_a_chain_that_is_down(operator: Operator, network: Network) -> None:
    operator.settle(network.host())
    config = operator.home / "relay.toml"
    config.write_text(config.read_text().replace(operator.world.anvil.rpc, "http://127.0.0.1:9"))
    done = operator.net("status")
    assert (done.code, "the chain does not say who the trainer is" in re.sub(r"\s+", " ", done.out)) == (1, True)
    assert "✓ /ip4/127.0.0.1" in done.out
    assert "the chain does not say where it is" not in done.out  # nobody knows


def test_status_of_a_bootnode_needs_no_chain(console: Console, network: Network, tmp_path: Path) -> None:
    home = tmp_path / "bootnode"
    write_toml(home / "bootnode.toml", {"listen": "/ip4/127.0.0.1/tcp/0"}, "A bootnode.")
    alone = console.murmur("net", "status", "--home", home)
    assert (alone.code, "the role does not run" in alone.out, "no bootnode" in alone.out) == (1, True, False)
    said = home / "data" / "network.json"
    network.host(report_file=said)
    eventually(said.exists, within=30, what="its first report")
    found = console.murmur("net", "status", "--home", home)
    assert (found.code, "bootnode: runs" in found.out, "Hub" in found.out) == (0, True, False), found.out


def test_a_trainers_hub_is_looked_at_by_its_run_file(operator: Operator, network: Network, tmp_path: Path) -> None:
    bootnode = network.host()
    operator.settle(bootnode)
    text = (operator.home / "relay.toml").read_text().replace("[serve]", "[trainer]\noutput = 'out'\n[serve]")
    (tmp_path / "run.toml").write_text(text)
    hub = network.host(bootnode, key=operator.world.trainer.key, report_file=tmp_path / "out" / "hub" / "network.json")
    found = operator.console.murmur("net", "status", "--home", f"@{tmp_path / 'run.toml'}", "--json").json
    assert (found["role"], found["running"], found["peer"]) == ("trainer", True, hub.peer_id)


def test_where_no_role_lives_the_error_says_how_to_name_one(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    none = console.murmur("net", "status")
    assert (none.code, "--home" in none.err) == (3, True)
    empty = console.murmur("net", "status", "--home", tmp_path)
    assert (empty.code, "is no role's home" in empty.err) == (3, True)
    for role in ("node", "relay"):
        home = tmp_path / "data" / "murmuration" / role
        home.mkdir(parents=True)
        (home / f"{role}.toml").write_text("")
    several = console.murmur("net", "status")
    assert (several.code, "several roles" in several.err) == (2, True)


def test_of_a_bootnode_that_is_down_status_says_that_alone(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no other bootnode."""
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    home = tmp_path / "alone"
    assert console.murmur("bootnode", "init", "--home", home, "--listen", "/ip4/127.0.0.1/tcp/4001").code == 0
    found = console.murmur("net", "status", "--home", home, "--json")
    assert found.code == 1
    assert [each["what"] for each in found.json["problems"]] == ["the role does not run"]


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


def test_a_hub_that_is_down_is_started_again_and_moves_nowhere(
    operator: Operator, network: Network, world: World
) -> None:
    """Advice follows the error: nobody opens the port of libp2p, or says another address on chain, for a hub that does not run."""
    closed = "http://127.0.0.1:9"
    world.owner.send(world.chain.locate(world.run, RunLocation(hub=closed).encode()))
    bootnode, hub = operator.hub(network, closed)
    operator.settle(bootnode)
    answers = flat(operator.net("trace", "hub").out)
    assert "connection refused" in answers
    assert "ConnectError" not in answers
    assert "try: its peer answers: hub.public_host leads elsewhere" in answers

    hub.close()
    status, trace = flat(operator.net("status").out), flat(operator.net("trace", "hub").out)
    hub_section = status.partition(" Hub ")[2].partition(" Relays ")[0]
    assert f"✗ {hub.peer_id} the trainer's peer, named by 1 peer" in hub_section
    assert "not found" not in hub_section
    for said in (status, trace):
        assert "the hub is not running: its operator starts it (murmur trainer run @run.toml)" in said
        assert "murmur run locate" not in said
        assert "peers.listen" not in said

    world.owner.send(world.chain.locate(world.run, RunLocation(origin=closed).encode()))
    known = flat(operator.net("status").out)
    assert "✗ the run's hub is known to peers, and does not answer: " in known
    assert "the hub is not running" in known
    assert "it does not say where it serves" not in known
    assert "peers.listen" not in flat(operator.net("trace", "hub").out)


def test_the_owner_is_told_to_locate_where_the_chain_names_another_service(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    operator.settle(network.host())
    world.owner.send(world.chain.locate(world.run, RunLocation(hub=served({})).encode()))
    assert "the run's owner: murmur run locate" in flat(operator.net("status").out)


@pytest.mark.parametrize(
    ("problem", "advised"),
    [
        ("it does not answer: no answer in time", "a firewall or NAT"),
        ("it does not answer: its name does not resolve", "DNS record"),
        ("it does not answer: connection refused", "the origin is not running"),
    ],
)
def test_advice_about_an_endpoint_follows_what_went_wrong(problem: str, advised: str) -> None:
    assert advised in remedy.of_endpoint("origin", Unavailable(problem))


def test_why_a_call_failed_is_said_in_the_systems_words() -> None:
    def failed(url: str) -> str:
        with within(5), httpx.Client(transport=Transport()) as client, pytest.raises(httpx.HTTPError) as error:
            client.get(url)
        return why(error.value)

    assert failed("http://127.0.0.1:9") == "connection refused"
    assert failed("http://nowhere.invalid:80") == "its name does not resolve"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with within(0.2), httpx.Client(transport=Transport()) as client, pytest.raises(httpx.HTTPError) as late:
            client.get(f"http://127.0.0.1:{mute.getsockname()[1]}")
        assert why(late.value) == "no answer in time"


def test_what_starts_a_role_is_the_command_for_its_home(operator: Operator, network: Network, tmp_path: Path) -> None:
    operator.settle(network.host())
    assert operator.json("status")["problems"][0]["try"] == f"murmur relay start --home {operator.home}"  # type: ignore[index]
    file = tmp_path / "my run.toml"
    file.write_text((operator.home / "relay.toml").read_text() + "\n[trainer]\noutput = 'out'\n")
    assert standpoint.find(f"@{file}").start == f"murmur trainer run '@{file}'"


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[None]:
    """Another user looks, who may enter the folder of the test."""
    if os.geteuid():
        pytest.skip("only root may become another user")
    for folder in (tmp_path, *tmp_path.parents):  # left so: other tests may be strangers in the same ones
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o55)
    os.seteuid(65_534)
    yield
    os.seteuid(0)


@pytest.mark.parametrize("closed", [".", "relay.toml", "data", "data/network.json"])
def test_the_home_of_another_user_is_looked_at_as_that_user(
    operator: Operator, network: Network, stranger: None, closed: str
) -> None:
    os.seteuid(0)
    operator.settle(network.gone())
    (operator.home / "data").mkdir()
    write_json(operator.home / "data" / "network.json", {"pid": 1})
    (operator.home / closed).chmod(0)
    os.seteuid(65_534)
    done = operator.net("status")
    assert (done.code, "error: this home belongs to user root\n" in done.err) == (3, True), done.err
    assert f"try: sudo -u root murmur net status --home {operator.home}" in done.err


def test_a_role_whose_keystore_is_closed_has_the_address_of_its_peer_id(
    operator: Operator, network: Network, stranger: None
) -> None:
    os.seteuid(0)
    operator.settle(network.gone())
    for name in ("data", "keys"):
        (operator.home / name).mkdir()
    key = Key.generate()
    write_json(operator.home / "data" / "network.json", {"peer": key.peer_id})
    write_json(operator.home / "keys" / "relay.json", {"address": key.address})
    (operator.home / "keys").chmod(0)
    os.seteuid(65_534)
    assert standpoint.find(str(operator.home)).key == key.address


@pytest.mark.parametrize(
    ("announce", "why"),
    [
        ("/dns4/boot.nowhere.invalid/tcp/4001", "the name does not resolve"),
        ("gone", "connection refused"),
        ("", "stands for any address: nobody can dial it"),
    ],
)
def test_status_of_a_bootnode_dials_what_it_announces(
    console: Console, network: Network, tmp_path: Path, announce: str, why: str
) -> None:
    home = tmp_path / "bootnode"
    write_toml(home / "bootnode.toml", {"listen": "/ip4/127.0.0.1/tcp/0"}, "A bootnode.")
    place = network.gone().partition("/p2p/")[0] if announce == "gone" else announce
    options = {"announce": [place]} if announce else {"listen": "/ip4/0.0.0.0/tcp/0"}
    host = network.host(report_file=home / "data" / "network.json", **options)
    place = place or host.addresses[0].partition("/p2p/")[0]
    eventually((home / "data" / "network.json").exists, within=30, what="its first report")
    found = console.murmur("net", "status", "--home", home)
    assert found.code == 1
    assert f"✗ {place}" in found.out.partition("What it announces")[2]
    assert why in flat(found.out)
    assert "peers." not in found.out
    assert narrow(found.out)


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


def test_a_first_bootnode_to_which_nobody_has_come_is_well(console: Console, network: Network, tmp_path: Path) -> None:
    home = tmp_path / "bootnode"
    write_toml(home / "bootnode.toml", {"listen": "/ip4/127.0.0.1/tcp/0"}, "A bootnode.")
    network.host(report_file=home / "data" / "network.json")
    eventually((home / "data" / "network.json").exists, within=30, what="its first report")
    for words, says in ((("peers",), "– nobody has come yet"), (("trace", "me"), "✓ it answers where it listens")):
        done = console.murmur("net", *words, "--home", home)
        assert (done.code, says in done.out) == (0, True), done.out


def test_a_roles_own_listener_is_no_network(operator: Operator, network: Network) -> None:
    operator.settle(network.gone())
    network.host(report_file=operator.home / "data" / "network.json")
    eventually((operator.home / "data" / "network.json").exists, within=30, what="its first report")
    out = flat(operator.net("status").out)
    assert "✗ no bootnode answers" in out
    assert "through a this role" not in out


def test_peers_without_the_chain_end_as_a_chain_does_that_is_down(operator: Operator, network: Network) -> None:
    operator.settle(network.host())
    config = operator.home / "relay.toml"
    config.write_text(config.read_text().replace(operator.world.anvil.rpc, "http://127.0.0.1:9"))
    done = operator.net("peers")
    assert (done.code, "of roles on chain nothing is known" in flat(done.out)) == (4, True)
    assert "connection refused" in flat(done.out)
    assert "ConnectionError" not in done.out


def test_that_no_node_serves_weights_is_the_default(operator: Operator, network: Network) -> None:
    operator.settle(network.host())
    assert "which is not the default" in flat(operator.net("trace", "seeder").out)


def test_ping_of_a_multiaddr_needs_no_home_where_there_are_several(
    console: Console, network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for role in ("node", "relay"):
        (tmp_path / "murmuration" / role).mkdir(parents=True)
        (tmp_path / "murmuration" / role / f"{role}.toml").write_text("")
    assert console.murmur("net", "ping", network.host().addresses[0]).code == 0
    assert console.murmur("net", "ping", Key.generate().peer_id).code == 2


def test_ping_says_that_a_name_does_not_resolve(console: Console) -> None:
    done = console.murmur("net", "ping", f"/dns4/nowhere.invalid/tcp/4001/p2p/{Key.generate().peer_id}")
    assert (done.code, "the name does not resolve" in flat(done.out)) == (1, True)


def test_the_summaries_of_net_are_whole(console: Console) -> None:
    out = console.murmur("net", "--help").out.partition("Commands:")[2]
    assert "..." not in out
    assert narrow(out)


def test_the_advice_about_a_way_in_stands_under_its_line(operator: Operator, network: Network) -> None:
    operator.settle(network.gone(), network.host())
    lines = operator.net("status").out.splitlines()
    (place,) = [number for number, line in enumerate(lines) if "connection refused" in line]
    assert "nothing listens on that port" in lines[place + 1]
