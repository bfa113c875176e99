"""An origin that is busy with relays names them, and a node goes there: by the rules for every source, and nowhere nearer than the origin is."""

from __future__ import annotations

import ipaddress
import time

import pytest

from protocol.errors import RpcUnavailable, Unavailable
from protocol.identity import Key
from protocol.p2p import Endpoint, Provider
from protocol.reach import Reach
from protocol.shardcast.connection import ConnectionPool
from protocol.shardcast.schedule import _ADDED_MAX, Schedule
from protocol.shardcast.source import Source, Standing, referred
from protocol.shardcast.task import Statistics
from protocol.shell.connection import Connection
from protocol.shell.peers import PeerSettings

from . import faults
from .conftest import CHUNK, DEADLINE, QUICK, Cast, contents, origin_at, relay_at
from .faults import Request, Script


def send_to(*urls: str) -> Script:
    def script(request: Request) -> None:
        named = " ".join(urls)
        request.send(f"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nRelays: {named}\r\nContent-Length: 0\r\n\r\n".encode())

    return script


def test_a_node_that_knows_no_relay_goes_where_the_origin_sends_it(cast: Cast) -> None:
    files = {"model": cast.bytes(10 * CHUNK)}
    manifest, origin = cast.origin(files)
    relay = cast.relay(manifest, [origin_at(origin.url)])
    busy = cast.scripted(origin.store.manifest(1), files, send_to("http://127.0.0.1:1", relay.url))
    client = cast.client()
    assert contents(client.fetch(1, manifest.digest, [origin_at(busy.url)], DEADLINE)) == files
    assert client.statistics.bytes_from == {relay.url: manifest.total_bytes}
    assert not client.statistics.violations


def test_a_named_relay_that_lies_is_blamed_itself(cast: Cast) -> None:
    files = {"model": cast.bytes(3 * CHUNK)}
    manifest, origin = cast.origin(files)
    lying = cast.scripted(origin.store.manifest(1), files, faults.flip_a_bit)

    def serve_once_it_lied(request: Request) -> None:
        request.serve() if client.statistics.violations else send_to(lying.url)(request)

    busy = cast.scripted(origin.store.manifest(1), files, serve_once_it_lied)
    client = cast.client()
    assert contents(client.fetch(1, manifest.digest, [origin_at(busy.url)], DEADLINE)) == files
    assert set(client.statistics.violations) == {lying.url}


def test_what_a_relay_says_of_others_is_not_heard(cast: Cast) -> None:
    manifest, origin = cast.origin({"model": cast.bytes(CHUNK)})
    other = cast.scripted(origin.store.manifest(1))
    relay = cast.scripted(origin.store.manifest(1), {}, send_to(other.url))
    with pytest.raises(Unavailable):
        cast.client().fetch(1, manifest.digest, [relay_at(relay.url)], DEADLINE / 8)
    assert relay.file_requests
    assert not other.requests


def test_an_origin_on_the_internet_leads_nobody_into_its_own_machine(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """127.0.0.1 stands for the Internet here."""
    files = {"model": cast.bytes(CHUNK)}
    manifest, origin = cast.origin(files)
    inside = cast.serve(origin.store, host="127.0.0.2")
    outside = ipaddress.ip_address("127.0.0.1")
    monkeypatch.setattr(Reach, "of", classmethod(lambda cls, ip: cls.FAR if ip == outside else cls.SELF))
    busy = cast.scripted(origin.store.manifest(1), files, send_to(inside.url))
    with pytest.raises(Unavailable):
        cast.client().fetch(1, manifest.digest, [origin_at(busy.url)], DEADLINE / 8)
    assert busy.file_requests
    assert not inside.counts.connections


@pytest.mark.parametrize("by", [Reach.FAR, Reach.NEAR, Reach.SELF])
def test_a_named_address_is_dialled_where_it_is_no_nearer_than_who_named_it(cast: Cast, by: Reach) -> None:
    server = cast.serve(cast.store("any"))
    (named,) = referred(f"http://localhost:{server.port}", by)
    pool = ConnectionPool(QUICK)
    if by < Reach.SELF:
        with pytest.raises(OSError, match="nearer"):
            pool.take(named, time.monotonic() + DEADLINE)
        assert not server.counts.connections
    else:
        pool.drop(pool.take(named, time.monotonic() + DEADLINE))


class Finding(Connection):
    """Peers and chain name one relay, in this machine, and the origin; one bootnode is in the settings."""

    def __init__(self, origin: str | None, bootnode: str, relays: int = 1) -> None:
        self.peers = PeerSettings(bootnodes=(f"{bootnode}/p2p/{Key.generate().peer_id}",))
        self.trainers, self.relays = origin, relays

    def origin(self) -> Source:
        if self.trainers is None:
            raise Unavailable("no origin was found")
        return origin_at(self.trainers)

    def _serving(self, role: str) -> list[Provider]:
        return [Provider("", "0xaa", Endpoint(role, 1, "http://127.0.0.1:8545"))] * (
            self.relays if role == "relay" else 0
        )


@pytest.mark.parametrize(
    ("origin", "bootnode", "reach"),
    [
        ("http://8.8.8.8:1", "/ip4/8.8.4.4/tcp/1", Reach.FAR), ("http://[2001:4860:4860::8888]:1", "/ip4/8.8.4.4/tcp/1", Reach.FAR),
        ("http://10.0.0.1:1", "/ip4/8.8.4.4/tcp/1", Reach.NEAR), ("http://8.8.8.8:1", "/ip4/192.168.0.1/tcp/1", Reach.NEAR),
        ("http://169.254.1.1:1", "/ip4/8.8.4.4/tcp/1", Reach.NEAR), ("http://localhost:1", "/ip4/8.8.4.4/tcp/1", Reach.SELF),
        ("http://no..host:1", "/ip4/8.8.4.4/tcp/1", Reach.FAR), ("not an address", "/ip4/8.8.4.4/tcp/1", Reach.FAR),
    ],
)  # fmt: skip
def test_a_relay_that_peers_name_is_dialled_no_nearer_than_origin_and_bootnodes_are(
    origin: str, bootnode: str, reach: Reach
) -> None:
    relay, trainers = Finding(origin, bootnode).sources()
    assert (relay.reach, trainers.reach) == (reach, Reach.NOWHERE)
    if reach < Reach.SELF:
        with pytest.raises(OSError, match="nearer"):
            ConnectionPool(QUICK).take(relay, time.monotonic() + DEADLINE)


@pytest.mark.parametrize(
    ("bootnode", "reach"),
    [("/ip4/8.8.4.4/tcp/1", Reach.FAR), ("/ip4/192.168.0.1/tcp/1", Reach.NEAR), ("/ip4/127.0.0.1/tcp/1", Reach.SELF)],
)
def test_without_the_origin_relays_are_asked_no_nearer_than_bootnodes_are(bootnode: str, reach: Reach) -> None:
    (relay,) = Finding(None, bootnode).sources()
    assert (relay.is_relay, relay.reach) == (True, reach)
    with pytest.raises(Unavailable, match="no origin was found"):
        Finding(None, bootnode, relays=0).sources()


class Losing(Finding):
    """One that is told how much of its time each look-up gives the origin."""

    def __init__(self, bootnode: str, relays: int) -> None:
        super().__init__(None, bootnode, relays)
        self._origin_lost, self.shares = False, list[float]()
        self.error: Exception = Unavailable("no origin was found")

    def origin(self) -> Source:
        return Connection.origin(self)

    def _trusted(self, role: str, share: float = 1.0) -> Provider:
        self.shares.append(share)
        raise self.error


@pytest.mark.parametrize("error", [Unavailable("no origin was found"), RpcUnavailable("the chain does not answer")])
def test_the_origin_is_looked_for_more_briefly_only_while_relays_are_there_without_it(error: Exception) -> None:
    losing = Losing("/ip4/127.0.0.1/tcp/1", relays=1)
    losing.sources()
    losing.sources()
    losing.relays, before, losing.error = 0, losing.error, error
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            losing.sources()
    losing.relays, losing.error = 1, before
    losing.sources()
    losing.sources()
    assert losing.shares == [1.0, 0.25, 0.25, 1.0, 1.0, 0.25]


def test_of_what_is_named_four_addresses_count_and_nothing_else() -> None:
    odd = "http://a:1/path ftp://b:2 http://user@c:3 https://d"
    assert [source.url for source in referred(odd, Reach.FAR)] == ["https://d"]
    assert len(referred(" ".join(f"http://r{n}:1" for n in range(9)), Reach.FAR)) == 4
    assert referred("x" * 10_000 + " http://a:1", Reach.FAR) == []
    assert referred("", Reach.FAR) == []


def test_a_fetch_takes_on_so_many_named_relays_and_none_twice() -> None:
    origin = Source("http://o:1", "origin", is_relay=False)
    known = Source("http://r:1", "0xaa", is_relay=True)
    standings = {source.name: Standing() for source in (origin, known)}
    schedule = Schedule(
        [1], [0], [origin, known], standings, {"http://liar:1"}, Statistics(), streams=1, describe=str, watched=["0xaa"]
    )
    added = [schedule.add(relay) for n in range(_ADDED_MAX + 2) for relay in referred(f"http://n{n}:1", Reach.FAR)]
    assert added == [True] * _ADDED_MAX + [False] * 2
    fresh = Schedule([1], [0], [origin, known], standings, {"http://liar:1"}, Statistics(), streams=1, describe=str)
    named = referred("http://r:1 http://liar:1 http://o:1 http://new:1", Reach.FAR)
    assert [fresh.add(relay) for relay in named] == [False, False, False, True]
    assert not fresh.add(named[-1])
