"""`murmur net ping` and `murmur net peers`: who is there, and what the chain says of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from swarm.world import World

from protocol.chain.sync import Book
from protocol.identity import Key
from protocol.p2p.address import PeerAddress
from protocol.p2p.discovery import Discovery
from protocol.p2p.identify import IDENTIFY
from protocol.p2p.stream import Stream
from protocol.settings import write_toml
from tests.cli.conftest import Console
from tests.cli.net import flat, narrow, world
from tests.cli.operator import ESCAPE, Operator
from tests.clock import eventually
from tests.p2p.network import Network

__all__ = ["world"]


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


def test_peers_without_the_chain_end_as_a_chain_does_that_is_down(operator: Operator, network: Network) -> None:
    operator.settle(network.host())
    config = operator.home / "relay.toml"
    config.write_text(config.read_text().replace(operator.world.anvil.rpc, "http://127.0.0.1:9"))
    done = operator.net("peers")
    assert (done.code, "of roles on chain nothing is known" in flat(done.out)) == (4, True)
    assert "connection refused" in flat(done.out)
    assert "ConnectionError" not in done.out


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
