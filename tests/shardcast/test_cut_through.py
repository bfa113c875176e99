"""Chunks travel on before a version is whole: relays pass on what has verified, nodes wait for them, and lies cost the liar."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol.shardcast import feed as feed_module
from protocol.shardcast import schedule as schedule_module
from protocol.shardcast.arriving import Arriving
from protocol.shardcast.connection import Timeouts
from protocol.shardcast.holding import Holding, holding_target
from protocol.shardcast.server import ShardServer
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore

from .conftest import CHUNK, DEADLINE, Cast, contents, origin_at, relay_at, wait_until
from .faults import Request, Scripted, hang, not_have_it

CHUNKS = 12


class Gate:
    """A script of an origin that gives out chunks before `limit` at once, and the others when it is opened."""

    def __init__(self, limit: int) -> None:
        self.limit = limit * CHUNK
        self.opened = threading.Event()

    def __call__(self, request: Request) -> None:
        if request.range[0] >= self.limit:
            self.opened.wait(DEADLINE)
        request.serve()


@pytest.fixture
def content(cast: Cast) -> bytes:
    return cast.bytes(CHUNKS * CHUNK - 100)


def gated(cast: Cast, content: bytes, limit: int) -> tuple[bytes, Gate, Scripted]:
    """The digest of a version of `content`, and an origin that gives out its first chunks only."""
    manifest, server = cast.origin({"model": content})
    gate = Gate(limit)
    return manifest.digest, gate, cast.scripted(server.store.manifest(1), {"model": content}, gate)


class Fetching:
    """A fetch in a thread of its own, by a relay or a node, whose store is served."""

    def __init__(
        self, cast: Cast, name: str, digest: bytes, sources: list[Source], *, relays: bool, store: VersionStore | None = None,
        server: ShardServer | None = None, **options: object,
    ) -> None:  # fmt: skip
        self.store: VersionStore = store or cast.store(name)
        self.server: ShardServer = server or cast.serve(self.store)
        options = {"relays": relays, "streams": CHUNKS, "serves": self.server.url, "patience": DEADLINE} | options
        self.client = cast.client(self.store, **options)
        self.failed: list[Exception] = []

        def fetch() -> None:
            try:
                self.client.fetch(1, digest, sources, DEADLINE)
            except Exception as error:  # noqa: BLE001  shown by `finish`
                self.failed.append(error)

        self.thread = threading.Thread(target=fetch)
        self.thread.start()

    @property
    def present(self) -> int:
        growing = self.store.growing(1)
        return 0 if growing is None else int(growing.holding(0, 0.0).held.sum())

    def finish(self) -> dict[str, bytes]:
        self.thread.join()
        assert not self.failed, self.failed
        return contents(self.store.folder(1))


@pytest.fixture(autouse=True)
def many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate holds back requests: enough of them must be under way to get at everything else."""
    monkeypatch.setattr(schedule_module, "_STREAMS_MIN", CHUNKS)


def test_a_chunk_travels_through_a_chain_before_the_relays_have_the_version(cast: Cast, content: bytes) -> None:
    digest, gate, origin = gated(cast, content, limit=5)
    first = Fetching(cast, "first", digest, [origin_at(origin.url)], relays=True)
    second = Fetching(cast, "second", digest, [relay_at(first.server.url, "first")], relays=True)
    node = Fetching(cast, "node", digest, [relay_at(second.server.url, "second")], relays=False)
    wait_until(lambda: node.present == 5)
    assert (first.present, second.present) == (5, 5)
    assert not first.store.holds(1)
    gate.opened.set()
    assert node.finish() == second.finish() == first.finish() == {"model": content}


def test_relays_take_different_chunks_from_the_origin_and_the_rest_from_each_other(cast: Cast, content: bytes) -> None:
    """An origin that gives each chunk out once is enough for three relays."""
    manifest, server = cast.origin({"model": content})
    given: Counter[int] = Counter()

    def once(request: Request) -> None:
        given[request.range[0]] += 1
        (request.serve if given[request.range[0]] == 1 else lambda: not_have_it(request))()

    origin = cast.scripted(server.store.manifest(1), {"model": content}, once)
    names = ("a", "b", "c")
    stores = {name: cast.store(name) for name in names}
    servers = {name: cast.serve(stores[name]) for name in names}
    threads = []
    for name in names:
        others = [relay_at(servers[other].url, other) for other in names if other != name]
        client = cast.client(stores[name], relays=True, patience=DEADLINE)
        fetch = lambda client=client, others=others: client.fetch(  # noqa: E731
            1, manifest.digest, [origin_at(origin.url), *others], DEADLINE
        )
        threads.append(threading.Thread(target=fetch))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert all(contents(stores[name].folder(1)) == {"model": content} for name in names)


def test_nodes_leave_the_origin_alone_while_a_relay_is_fetching(
    cast: Cast, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, seconds in (
        (schedule_module, "_ALIVE_SECONDS"),
        (schedule_module, "_LAG_SECONDS"),
        (feed_module, "_STARVING_SECONDS"),
    ):
        monkeypatch.setattr(module, seconds, DEADLINE)  # on a busy machine a relay may be quiet for long
    digest, gate, origin = gated(cast, content, limit=3)
    patient = Timeouts(
        idle=DEADLINE
    )  # a request that the gate holds back is not made a second time, nor one that a busy machine is slow to answer
    relay = Fetching(cast, "relay", digest, [origin_at(origin.url)], relays=True, timeouts=patient)
    sources = [origin_at(origin.url), relay_at(relay.server.url)]
    nodes = [Fetching(cast, f"node-{number}", digest, sources, relays=False, timeouts=patient) for number in range(3)]
    wait_until(lambda: all(node.present == 3 for node in nodes))
    gate.opened.set()
    assert all(node.finish() == {"model": content} for node in nodes)
    relay.finish()
    brought = [(dict(node.client.statistics.bytes_from), node.client.statistics.failovers) for node in nodes]
    assert [set(of) for of, _ in brought] == [{"relay"}] * 3, brought


def test_a_node_that_hears_of_a_version_before_the_relay_waits_for_it(cast: Cast, content: bytes) -> None:
    manifest, server = cast.origin({"model": content})
    store = cast.store("relay")
    relay = cast.serve(store)
    node = Fetching(
        cast, "node", manifest.digest, [origin_at(server.url), relay_at(relay.url)], relays=False
    )  # fmt: skip
    wait_until(lambda: relay.counts.requests >= 4)  # it was told several times that nothing is there
    assert node.present == 0
    cast.client(store, relays=True).fetch(1, manifest.digest, [origin_at(server.url)], DEADLINE)
    assert node.finish() == {"model": content}
    assert set(node.client.statistics.bytes_from) == {"relay"}


def test_without_a_relay_that_answers_the_origin_is_asked_at_once(cast: Cast, content: bytes) -> None:
    manifest, server = cast.origin({"model": content})
    dead = cast.serve(cast.store("dead"))
    dead.close()
    node = Fetching(cast, "node", manifest.digest, [origin_at(server.url), relay_at(dead.url)], relays=False)
    assert node.finish() == {"model": content}
    assert set(node.client.statistics.bytes_from) == {"origin"}


def promise_everything(request: Request) -> None:
    """Nothing is here, and all of it is on its way, for ever."""
    told = Holding(1, np.zeros(CHUNKS, np.bool_), np.ones(CHUNKS, np.bool_)).encode()
    request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(told) + told)


def test_a_relay_that_only_promises_holds_nobody_up_for_long(
    cast: Cast, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_STARVING_SECONDS", 0.2)
    monkeypatch.setattr(schedule_module, "_ALIVE_SECONDS", 0.2)
    manifest, server = cast.origin({"model": content})
    liar = cast.scripted(server.store.manifest(1), {"model": content}, hang, promise_everything)
    node = Fetching(cast, "node", manifest.digest, [origin_at(server.url), relay_at(liar.url, "liar")], relays=False)
    assert node.finish() == {"model": content}
    assert not node.client.statistics.violations, "it may yet have kept its promise"


def test_a_relay_that_claims_what_it_does_not_have_is_replaced(cast: Cast, content: bytes) -> None:
    manifest, server = cast.origin({"model": content})
    liar = cast.scripted(server.store.manifest(1), {"model": content}, not_have_it)
    node = Fetching(cast, "node", manifest.digest, [origin_at(server.url), relay_at(liar.url, "liar")], relays=False)
    assert node.finish() == {"model": content}
    assert set(node.client.statistics.bytes_from) == {"origin"}


@pytest.mark.parametrize("body", [b"", b"\0" * 11, b"\0" * 64, b"\xff" * 16], ids=["empty", "short", "other", "bits"])
def test_a_relay_that_tells_nonsense_of_what_it_holds_is_not_asked_again(
    cast: Cast, content: bytes, body: bytes
) -> None:
    def nonsense(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    manifest, server = cast.origin({"model": content})
    liar = cast.scripted(server.store.manifest(1), {"model": content}, None, nonsense)
    node = Fetching(cast, "node", manifest.digest, [origin_at(server.url), relay_at(liar.url, "liar")], relays=False)
    assert node.finish() == {"model": content}
    assert node.client.statistics.violations == {"liar": 1}


def test_a_relay_that_dies_amid_its_fetch_is_replaced_by_the_origin(cast: Cast, content: bytes) -> None:
    digest, gate, origin = gated(cast, content, limit=4)
    relay = Fetching(cast, "relay", digest, [origin_at(origin.url)], relays=True)
    whole = cast.origin({"model": content})[1]
    node = Fetching(cast, "node", digest, [origin_at(whole.url), relay_at(relay.server.url)], relays=False)
    wait_until(lambda: node.present == 4)
    relay.client.close()
    relay.server.close()
    assert node.finish() == {"model": content}
    gate.opened.set()
    relay.thread.join()


def test_a_version_that_is_shown_is_still_lost_with_the_fetch_that_failed(cast: Cast, content: bytes) -> None:
    """What a relay shows is never taken for complete."""
    digest, gate, origin = gated(cast, content, limit=4)
    relay = Fetching(cast, "relay", digest, [origin_at(origin.url)], relays=True)
    wait_until(lambda: relay.present == 4)
    relay.client.close()
    gate.opened.set()
    relay.thread.join()
    assert relay.store.growing(1) is None
    assert not relay.store.holds(1)
    assert relay.store.newest() == -1


def test_a_version_that_becomes_complete_while_a_chunk_of_it_is_looked_for_is_served_all_the_same(
    cast: Cast, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node asks for several chunks at this moment. Were they refused, all would take the relay for one that fails, and go to the origin."""
    digest, gate, origin = gated(cast, content, limit=4)
    relay = Fetching(cast, "relay", digest, [origin_at(origin.url)], relays=True)
    wait_until(lambda: relay.present == 4)
    asked, complete, look = threading.Event(), threading.Event(), Arriving.open_range

    def slowly(arriving: Arriving, name: str, first: int, last: int) -> int | None:
        asked.set()
        complete.wait(DEADLINE)
        return look(arriving, name, first, last)

    monkeypatch.setattr(Arriving, "open_range", slowly)
    with socket.create_connection((relay.server.host, relay.server.port), timeout=DEADLINE) as sock:
        sock.sendall(b"GET /v/1/files/model HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\nConnection: close\r\n\r\n")
        assert asked.wait(DEADLINE)
        gate.opened.set()
        relay.finish()
        complete.set()
        assert sock.makefile("rb").read().endswith(b"\r\n\r\n" + content[:10])


def test_a_relay_whose_fetch_has_ended_tells_nothing_of_what_it_no_longer_shows(cast: Cast) -> None:
    """Nodes would ask for it, be refused several times at once, and take the relay for one that fails."""
    store, asked = cast.store("relay"), threading.Event()
    server = cast.serve(store)

    def nothing_new(after: int, seconds: float) -> Holding:
        asked.set()
        time.sleep(min(seconds, 0.05))
        return Holding(3, np.ones(CHUNKS, np.bool_), np.zeros(CHUNKS, np.bool_))

    shown: Any = SimpleNamespace(signed=b"", has_delta=False, holding=nothing_new)
    with socket.create_connection((server.host, server.port), timeout=DEADLINE) as sock:
        with store.show(1, shown):
            sock.sendall(
                f"GET {holding_target(1, 3, 10_000)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
            )
            assert asked.wait(DEADLINE)
        assert sock.makefile("rb").readline() == b"HTTP/1.1 404 Not Found\r\n"


def test_a_relay_gives_no_chunk_that_has_not_verified(cast: Cast, content: bytes) -> None:
    digest, gate, origin = gated(cast, content, limit=4)
    relay = Fetching(cast, "relay", digest, [origin_at(origin.url)], relays=True)
    wait_until(lambda: relay.present == 4)

    def status(first: int, last: int) -> str:
        with socket.create_connection((relay.server.host, relay.server.port), timeout=DEADLINE) as sock:
            head = (
                f"GET /v/1/files/model HTTP/1.1\r\nHost: x\r\nRange: bytes={first}-{last}\r\nConnection: close\r\n\r\n"
            )
            sock.sendall(head.encode())
            return sock.recv(12).decode()

    assert status(0, 4 * CHUNK - 1) == "HTTP/1.1 206"
    assert status(0, 4 * CHUNK) == "HTTP/1.1 404", "one byte of the fifth chunk"
    assert status(5 * CHUNK, 5 * CHUNK) == "HTTP/1.1 404"
    assert status(0, 1 << 50) == "HTTP/1.1 404"
    gate.opened.set()
    relay.finish()
