"""Where a host says it is, and where others are dialled: several addresses, IPv6, names, and those that mean nothing here."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from typer.testing import CliRunner

from protocol.errors import ConfigError, Unavailable
from protocol.identity import Key
from protocol.p2p import HostLimits, Timing, node
from protocol.p2p.address import ADDRESSES_MAX, Address, PeerAddress, plain_ip, usable_addresses
from protocol.p2p.listener import Listener
from protocol.p2p.node import Node
from protocol.p2p.transport import Identity
from protocol.p2p.wire import KademliaAnswer, Kind, Question
from protocol.places import household
from protocol.shardcast.guest import neighbourhood
from protocol.shell.commands import bootnode as command
from protocol.shell.connection import connect, host_of
from protocol.shell.home import Home
from protocol.shell.peers import PeerSettings
from tests.p2p.network import Network, find, listening_on, port_of

KEY = Key.generate()
GOOD = Address.parse("/ip4/192.0.2.7/tcp/4001")
QUIC = bytes.fromhex("04c000020791020fa1cc03")  # /ip4/192.0.2.7/udp/4001/quic-v1
WEBSOCKET = GOOD.encode() + bytes.fromhex("dd03")


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def as_bytes(**fields: Any) -> bytes:
    from libp2p.kad_dht.pb.kademlia_pb2 import Message

    return bytes(Message(**fields).SerializeToString())


def test_a_foreign_address_in_a_message_is_skipped_and_the_message_is_not() -> None:
    from libp2p.kad_dht.pb.kademlia_pb2 import Message

    somebody = Key.generate().peer
    mixed = {"id": KEY.peer, "addrs": [QUIC, b"", b"\xff" * 300, WEBSOCKET, GOOD.encode()]}
    none = {"id": somebody, "addrs": [QUIC, WEBSOCKET]}

    answer = KademliaAnswer.decode(as_bytes(type=Message.FIND_NODE, closerPeers=[none, mixed]), Kind.FIND_NODE)
    question = Question.decode(as_bytes(type=Message.FIND_NODE, key=b"k", closerPeers=[none]))

    assert [(each.peer, each.addresses) for each in answer.closer] == [(KEY.peer, (GOOD,))]
    assert question.sender is None  # nobody could dial it


def test_of_many_addresses_the_first_few_are_taken_and_each_once() -> None:
    many = [Address("ip4", "192.0.2.7", port).encode() for port in range(1, 1000)]
    assert [each.port for each in usable_addresses([many[0], *many], KEY.peer)] == list(range(1, ADDRESSES_MAX + 1))
    assert usable_addresses([b"\x00"] * 100_000 + many, KEY.peer) == ()  # nor is all of a long list looked at


def test_an_address_that_ends_in_its_owners_peer_id_is_that_address_and_one_of_somebody_else_is_none() -> None:
    mine, others = (b"\xa5\x03\x27" + peer for peer in (KEY.peer, Key.generate().peer))
    assert usable_addresses([GOOD.encode() + mine], KEY.peer) == (GOOD,)
    assert usable_addresses([GOOD.encode() + others], KEY.peer) == ()


def test_an_ipv4_address_seen_through_an_ipv6_socket_is_one_of_ipv4() -> None:
    assert plain_ip("::ffff:192.0.2.7") == "192.0.2.7"
    assert plain_ip("2001:db8::1") == "2001:db8::1"
    assert Address.parse("/ip6/::ffff:127.0.0.1/tcp/22").is_loopback


# ---- the settings ----


def test_the_announced_addresses_of_the_settings_reach_the_host(network: Network, tmp_path: Path) -> None:
    announced = ["/dns4/node.example.org/tcp/4001", "/ip6/2001:db8::1/tcp/4001", "/ip4/192.0.2.7/tcp/4001"]
    settings = PeerSettings(listen="/ip4/127.0.0.1/tcp/0", announce=tuple(announced))
    with host_of(KEY, settings, tmp_path / "peers.json") as host:
        assert list(host.addresses) == [f"{place}/p2p/{KEY.peer_id}" for place in announced]
    with pytest.raises(ConfigError):
        host_of(KEY, PeerSettings(announce=("/ip4/192.0.2.7/udp/1",)), None)


def test_a_bootnodes_announced_addresses_reach_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr("protocol.p2p.run_bootnode", lambda key, listen, **options: seen.update(options))
    for method in ("new_key", "open_key"):
        monkeypatch.setattr(Home, method, lambda *_, **__: KEY)
    monkeypatch.setattr("protocol.shell.checkup.require_startable", lambda *_: None)  # there is no keystore
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    made = CliRunner().invoke(
        command.app, ["init", "--home", str(tmp_path), "--announce", "/dns4/boot.example.org/tcp/4001"]
    )
    assert made.exit_code == 0, made.output
    assert CliRunner().invoke(command.app, ["start", "--home", str(tmp_path)]).exit_code == 0
    assert tuple(seen["announce"]) == ("/dns4/boot.example.org/tcp/4001",)
    assert seen["peers_file"] == tmp_path / "data" / "peers.json"


@pytest.mark.parametrize(
    ("address", "is_told"), [("/ip4/0.0.0.0/tcp/1", True), ("/ip6/::/tcp/1", True), ("/dns4/b.example/tcp/1", False)]
)
def test_a_bootnode_that_nobody_can_dial_is_told_to_announce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, is_told: bool
) -> None:
    host = SimpleNamespace(addresses=[f"{address}/p2p/{KEY.peer_id}"])
    monkeypatch.setattr("protocol.p2p.run_bootnode", lambda key, listen, *, ready, **_: ready(host))
    for method in ("new_key", "open_key"):
        monkeypatch.setattr(Home, method, lambda *_, **__: KEY)
    monkeypatch.setattr("protocol.shell.checkup.require_startable", lambda *_: None)  # there is no keystore
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    assert CliRunner().invoke(command.app, ["init", "--home", str(tmp_path)]).exit_code == 0
    started = CliRunner().invoke(command.app, ["start", "--home", str(tmp_path)])
    assert (started.exit_code, "put announce = " in started.stderr) == (0, is_told), started.output


def test_a_role_without_bootnodes_starts_where_it_remembers_peers_and_else_says_what_is_missing(tmp_path: Path) -> None:
    settings: Any = SimpleNamespace(open=lambda: SimpleNamespace(located=lambda run: b""), run=1)
    peers, file = PeerSettings(listen="/ip4/127.0.0.1/tcp/0"), tmp_path / "peers.json"
    with pytest.raises(ConfigError, match="no bootnode"), connect(settings, peers, KEY, peers_file=file):
        pass
    file.write_bytes(b"[]")
    with connect(settings, peers, KEY, peers_file=file):
        pass


# ---- dialling ----


def test_a_host_that_announces_a_dead_address_and_a_name_is_found_at_the_name(network: Network) -> None:
    bootnode = network.host()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    provider = network.provider(
        bootnode,
        listen=f"/ip4/127.0.0.1/tcp/{port}",
        announce=["/ip4/127.0.0.1/tcp/1", f"/dns4/localhost/tcp/{port}"],
    )
    assert set(find(network.host(bootnode))) == {provider.peer_id}


@needs_ipv6
def test_hosts_that_listen_on_ipv6_find_each_other(network: Network) -> None:
    bootnode = network.host(listen="/ip6/::1/tcp/0")
    provider = network.provider(bootnode, listen="/ip6/::1/tcp/0")
    assert set(find(network.host(bootnode, listen="/ip6/::1/tcp/0"))) == {provider.peer_id}


@needs_ipv6
def test_any_interface_of_ipv6_is_any_interface_of_ipv4_too(network: Network) -> None:
    bootnode = network.host(listen="/ip6/::/tcp/0")
    by_four = f"/ip4/127.0.0.1/tcp/{port_of(bootnode)}/p2p/{bootnode.peer_id}"
    by_six = f"/ip6/::1/tcp/{port_of(bootnode)}/p2p/{bootnode.peer_id}"
    provider = network.provider(by_four, listen="/ip6/::/tcp/0")

    assert set(find(network.host(by_six))) == {provider.peer_id}
    assert set(find(network.host(by_four))) == {provider.peer_id}


def test_a_name_counts_as_the_addresses_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a stranger's name for 127.0.0.1 would send others into their own machines."""
    behind = ["127.0.0.1", "192.0.2.1", "0.0.0.0", "2001:db8::1", "fe80::1%eth0", "192.0.2.2", "192.0.2.3"]
    families: list[int] = []

    def look_up(host: str, port: int, family: int, kind: int) -> list[Any]:
        families.append(family)
        if host == "unknown.example":
            raise socket.gaierror(-2, "Name or service not known")
        return [(family, kind, 6, "", (ip, port)) for ip in behind]

    monkeypatch.setattr(node, "getaddrinfo", look_up)

    async def resolve(kind: str, host: str, *, loopback: bool) -> list[str]:
        made = Node(Identity(KEY), HostLimits(), Timing(), loopback=loopback)
        return [place.host for place in await made.resolve(Address(kind, host, 4001))]

    async def run() -> None:
        assert await resolve("dns", "a.example", loopback=False) == ["192.0.2.1", "2001:db8::1"]
        assert await resolve("dns4", "a.example", loopback=True) == ["127.0.0.1", "192.0.2.1", "2001:db8::1"]
        with pytest.raises(Unavailable, match="name or service not known"):
            await resolve("dns6", "unknown.example", loopback=False)

    trio.run(run)
    assert families == [socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6]


# ---- caps ----


def test_a_whole_ipv6_64_counts_as_one_peer_wherever_addresses_are_counted() -> None:
    async def run() -> None:
        limits = HostLimits(accept_burst=3, accept_rate=0.001)
        made = Listener(Identity(KEY), limits, Timing(), Counter(), lambda upgraded, ends: None)
        taken = [made.admits(node.network_of(f"2001:db8:0:1::{number:x}")) for number in range(1, 6)]
        assert taken == [True, True, True, False, False]
        assert made.admits(node.network_of("2001:db8:0:2::1"))

    trio.run(run)


def test_a_bootnode_is_named_by_each_of_its_addresses(network: Network) -> None:
    bootnode = network.host(announce=["/dns4/boot.example.org/tcp/4001", "/ip4/192.0.2.7/tcp/4001"])
    assert [PeerAddress.parse(each).address.kind for each in bootnode.addresses] == ["dns4", "ip4"]
    assert listening_on(bootnode) == "/dns4/boot.example.org/tcp/4001"


@pytest.mark.parametrize("counted", [node.network_of, neighbourhood, household], ids=["p2p", "shardcast", "hub"])
def test_peers_shardcast_and_hub_count_the_same_addresses_as_one(counted: Callable[[str], str]) -> None:
    assert counted("2001:db8:0:1::1") == counted("2001:db8:0:1:ffff:ffff:ffff:ffff") != counted("2001:db8:0:2::1")
    assert counted("::ffff:192.0.2.7") == counted("192.0.2.7") != counted("192.0.2.8")
    assert counted("fe80::1%eth0") == counted("fe80::2%eth0")


# ---- one question and its answer ----


def test_who_asks_says_that_it_has_ended_only_when_the_answer_is_there() -> None:
    """Not every implementation answers a stream whose other end has finished; py-libp2p's does not."""
    order: list[str] = []

    class Recorded:
        async def read_message(self, cap: int, what: str) -> bytes:
            order.append("answer read")
            return b"answer"

        async def finish(self) -> None:
            order.append("finished")

        async def expect_end(self) -> None:
            order.append("their end")

    class Asking(Node):
        @asynccontextmanager
        async def stream(self, connection: Any, protocol: str, *messages: bytes) -> AsyncIterator[Any]:
            order.append("asked")
            yield Recorded()

    async def run() -> None:
        made = Asking(Identity(KEY), HostLimits(), Timing(), loopback=False)
        connection: Any = None
        assert await made._exchange(connection, "/echo", (b"question",), 100, "answer") == b"answer"

    trio.run(run)
    assert order == ["asked", "answer read", "finished", "their end"]
