"""Sources that go away while a version is on its way, and come back or do not: identical bytes in the end."""

from __future__ import annotations

import threading

import pytest

from protocol.shardcast import schedule as schedule_module
from protocol.shardcast.connection import Timeouts
from protocol.shardcast.server import ShardServer
from protocol.shardcast.source import Source

from . import faults
from .conftest import CHUNK, DEADLINE, Cast, origin_at, relay_at, wait_until
from .faults import Line, Request, Script, claim_everything
from .test_cut_through import CHUNKS, Fetching, content, gated, many_streams

__all__ = ["content", "many_streams"]  # fixtures

PATIENT = Timeouts(connect=1.0, idle=DEADLINE, floor_rate=1)


def serves(request: Request) -> str:
    """The relay that asks, by the last digit of where it serves."""
    return request.text.partition("Serves: ")[2].partition("\r\n")[0]


def test_when_the_origin_dies_two_relays_with_half_each_complete_each_other_and_the_nodes(
    cast: Cast, content: bytes
) -> None:
    manifest, honest = cast.origin({"model": content})
    stores = {name: cast.store(name) for name in ("a", "b")}
    servers = {name: cast.serve(store) for name, store in stores.items()}
    dead = threading.Event()

    def half(request: Request) -> None:
        is_a = serves(request) == servers["a"].url
        if dead.is_set() or (request.range[0] < CHUNKS // 2 * CHUNK) != is_a:
            dead.wait(DEADLINE)
            faults.drop(request)
        request.serve()

    origin = cast.scripted(honest.store.manifest(1), {"model": content}, half)
    relays = {
        name: Fetching(
            cast, name, manifest.digest, [origin_at(origin.url)], relays=True, serves=servers[name].url, store=stores[name],
            server=servers[name], timeouts=PATIENT,
        )
        for name in stores
    }  # fmt: skip
    wait_until(lambda: all(relay.present == CHUNKS // 2 for relay in relays.values()))
    for relay in relays.values():  # as after a restart: what they have, and the other's address
        relay.client.close()
    dead.set()
    for relay in relays.values():
        relay.thread.join()
    gone = origin_at(origin.url)
    origin.stop()
    sources = {name: relay_at(servers[name].url, name) for name in stores}
    again = [
        Fetching(
            cast, f"again-{name}", manifest.digest, [gone, sources[other]], relays=True, serves=servers[name].url,
            store=stores[name], server=servers[name],
        )
        for name, other in (("a", "b"), ("b", "a"))
    ]  # fmt: skip
    nodes = [
        Fetching(cast, f"node-{number}", manifest.digest, [gone, *sources.values()], relays=False)
        for number in range(3)
    ]
    assert all(fetching.finish() == {"model": content} for fetching in (*again, *nodes))
    assert all(fetching.client.statistics.resumed_chunks == CHUNKS // 2 for fetching in again)
    assert all("origin" not in fetching.client.statistics.bytes_from for fetching in (*again, *nodes))


def test_a_node_outlasts_that_all_relays_are_down_and_back(cast: Cast, content: bytes) -> None:
    digest, gate, origin = gated(cast, content, limit=4)
    relay = Fetching(cast, "relay", digest, [origin_at(origin.url)], relays=True, timeouts=PATIENT)
    node = Fetching(cast, "node", digest, [relay_at(relay.server.url)], relays=False)
    wait_until(lambda: node.present == 4)
    relay.server.close()
    wait_until(lambda: node.client._standings["relay"].last_failure != "not asked")
    gate.opened.set()
    relay.finish()
    assert node.present == 4
    with ShardServer(relay.store, port=relay.server.port):
        assert node.finish() == {"model": content}
    assert node.client.statistics.bytes_from["relay"] == len(content), "each byte came once"


def test_a_partition_heals_and_no_chunk_that_came_before_is_fetched_again(cast: Cast, content: bytes) -> None:
    """Nothing is closed: everything on the line is silent, for longer than a connection waits, and then goes on."""
    digest, gate, origin = gated(cast, content, limit=5)
    relay = Fetching(cast, "relay", digest, [origin_at(origin.url)], relays=True, timeouts=PATIENT)
    with Line(relay.server.port) as line:
        node = Fetching(cast, "node", digest, [relay_at(line.url)], relays=False)
        wait_until(lambda: node.present == 5)
        line.cut()
        gate.opened.set()
        relay.finish()
        wait_until(lambda: "timed out" in node.client._standings["relay"].last_failure)
        assert node.present == 5
        line.heal()
        assert node.finish() == {"model": content}
    assert node.client.statistics.bytes_from["relay"] == len(content)


def endless(request: Request) -> None:
    """All that was asked for, and then no end."""
    request.send(request.head() + request.body)
    while True:
        request.send(bytes(1 << 16))


def flip_the_last_bit(request: Request) -> None:
    body = bytearray(request.body)
    body[-1] ^= 1
    request.send(request.head() + body)


LIES: dict[str, tuple[Script, bool | None]] = {
    "wrong bytes": (flip_the_last_bit, True),
    "a short file": (faults.truncate, False),
    "an endless file": (endless, None),  # blamed if the surplus comes before the next answer
    "a file of another size": (faults.know_another_size, True),
    "a chunk of another place": (
        lambda request: request.send(request.head() + request.content[: len(request.body)][::-1]),
        True,
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_beside_a_relay_that_grows_a_lying_one_costs_nobody_more_than_a_chunk(
    cast: Cast, content: bytes, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims to have everything while the honest one has a third; a relay that believed it passes nothing on."""
    script, is_blamed = LIES[lie]
    monkeypatch.setattr(schedule_module, "_STREAMS_MIN", CHUNKS)
    digest, gate, origin = gated(cast, content, limit=4)
    signed = cast.origin({"model": content})[1].store.manifest(1)
    liar = cast.scripted(signed, {"model": content}, script, claim_everything)
    lying = relay_at(liar.url, "liar")
    relay = Fetching(cast, "relay", digest, [origin_at(origin.url), lying], relays=True, timeouts=PATIENT)
    nodes = [
        Fetching(cast, f"node-{number}", digest, [relay_at(relay.server.url), lying], relays=False)
        for number in range(2)
    ]
    # Where the lie is not noticed in time, the liar may have brought all of it.
    wait_until(lambda: all(fetching.present >= 4 or fetching.store.holds(1) for fetching in (relay, *nodes)))
    gate.opened.set()
    assert all(fetching.finish() == {"model": content} for fetching in (relay, *nodes))
    for fetching in (relay, *nodes):
        statistics = fetching.client.statistics
        assert set(statistics.violations) <= {"liar"}
        if is_blamed is False:
            assert not statistics.violations
        if is_blamed:
            assert "liar" not in statistics.bytes_from


def test_a_stale_manifest_beside_a_growing_relay_is_blamed_and_not_believed(cast: Cast, content: bytes) -> None:
    digest, gate, origin = gated(cast, content, limit=4)
    relay = Fetching(cast, "relay", digest, [origin_at(origin.url)], relays=True, timeouts=PATIENT)
    old = cast.bytes(len(content))
    stale = cast.scripted(cast.origin({"model": old})[1].store.manifest(1), {"model": old})
    sources: list[Source] = [relay_at(stale.url, "stale"), relay_at(relay.server.url)]
    wait_until(lambda: relay.present == 4)
    node = Fetching(cast, "node", digest, sources, relays=False)
    wait_until(lambda: node.present == 4)
    gate.opened.set()
    assert node.finish() == relay.finish() == {"model": content}
    assert set(node.client.statistics.bytes_from) == {"relay"}
    assert set(node.client.statistics.violations) <= {"stale"}
