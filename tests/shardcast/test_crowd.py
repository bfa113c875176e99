"""Many relays that claim everything and bring nothing: the honest serve meanwhile, and no fetch waits for the others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from protocol.constants import SHARDCAST_CHUNK_BYTES
from protocol.shardcast import schedule
from protocol.shardcast.connection import Timeouts
from protocol.shardcast.server import ServerLimits, ShardServer

from . import faults
from .conftest import CHUNK, DEADLINE, Cast, contents, origin_at, relay_at, wait_until
from .faults import Script

FOR_EVER = Timeouts(connect=1.0, idle=10 * DEADLINE, floor_rate=1)
"""As far as a socket is concerned: only the schedule can end what hangs."""


@pytest.mark.parametrize("script", [faults.hang, faults.stall_within_the_body, faults.trickle])
@pytest.mark.parametrize("honest", ["origin", "relay"])
def test_a_crowd_that_claims_everything_and_hangs_does_not_hold_up_a_fetch(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, script: Script, honest: str
) -> None:
    """No deadline of a connection ends here before that of the fetch."""
    monkeypatch.setattr(schedule, "_LAG_SECONDS", 0.1)
    files = {"model": cast.bytes(60 * CHUNK)}
    manifest, origin = cast.origin(files)
    hanging = cast.scripted(origin.store.manifest(1), files, script)
    sources = [relay_at(hanging.url, f"crowd {number}") for number in range(15 if honest == "relay" else 30)]
    sources.append(relay_at(origin.url, "honest") if honest == "relay" else origin_at(origin.url, "honest"))
    client = cast.client(timeouts=FOR_EVER)
    assert contents(client.fetch(1, manifest.digest, sources, DEADLINE)) == files
    assert set(client.statistics.bytes_from) == {"honest"}
    assert not client.statistics.violations, "a slow one is not a liar"


# ---- the other side: a relay with many bad guests


GET_MODEL = b"GET /v/1/files/model HTTP/1.1\r\nHost: x\r\n"


class Guests:
    """Connections from the addresses 127.0.`net`.1, .2, …: `each` from one of them."""

    def __init__(self, server: ShardServer, net: int, count: int, each: int = 60) -> None:
        self.sockets = []
        for number in range(count):
            source = (f"127.0.{net}.{1 + number // each}", 0)
            self.sockets.append(socket.create_connection((server.host, server.port), DEADLINE, source))

    def __enter__(self) -> Guests:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self.sockets:
            sock.close()

    def send(self, data: bytes) -> None:
        for sock in self.sockets:
            with suppress(OSError):
                sock.send(data)

    def read_a_byte(self) -> None:
        for sock in self.sockets:
            with suppress(OSError):
                sock.recv(1)


@contextmanager
def repeated(*acts: Callable[[], None]) -> Iterator[None]:
    """Does these again and again while the block lasts."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            for act in acts:
                act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_house_full_of_readers_at_a_byte_a_moment_lets_an_honest_node_in(cast: Cast) -> None:
    limits = ServerLimits(connections=16, per_address=16, lateness=0.2)
    content = bytes(32 << 20)  # more than the buffers of sockets hold
    manifest, server = cast.origin({"model": content}, limits=limits)
    with Guests(server, 1, 16) as slow:
        slow.send(GET_MODEL + b"\r\n")
        with repeated(slow.read_a_byte):
            wait_until(lambda: server.counts.requests == 16)
            folder = cast.client(timeouts=FOR_EVER).fetch(1, manifest.digest, [relay_at(server.url)], DEADLINE)
    assert contents(folder) == {"model": content}


def test_idle_trickling_and_slow_guests_by_the_hundred_do_not_keep_nodes_from_a_relay(cast: Cast) -> None:
    """With the limits that a relay has, but for the moments after which a guest may be sent away."""
    limits = ServerLimits(eviction_age=0.0, lateness=0.2)
    files = {"model": cast.bytes(40 * CHUNK), "large": bytes(32 << 20)}
    manifest, server = cast.origin(files, limits=limits)
    with Guests(server, 1, 300) as idle, Guests(server, 2, 60) as heads, Guests(server, 3, 60) as bodies:
        bodies.send(GET_MODEL.replace(b"model", b"large") + b"\r\n")
        heads.send(b"GET /v/1/")
        with repeated(lambda: heads.send(b"x"), bodies.read_a_byte, lambda: idle.sockets[0].fileno()):
            folder = cast.client(timeouts=FOR_EVER).fetch(1, manifest.digest, [relay_at(server.url)], DEADLINE)
    assert contents(folder) == files


def test_a_slow_reader_of_a_huge_file_is_cut_within_the_time_of_one_chunk(cast: Cast) -> None:
    """A deadline for the whole file would let it stay for days."""
    content = bytes(32 << 20)
    _, server = cast.origin({"model": content}, limits=ServerLimits(stall=0.5, floor_rate=SHARDCAST_CHUNK_BYTES))
    with Guests(server, 1, 1) as slow:
        slow.send(GET_MODEL + b"\r\n")
        began = time.monotonic()
        taken = 0
        with suppress(ConnectionError):
            while piece := slow.sockets[0].recv(1 << 17):
                taken += len(piece)
                threading.Event().wait(0.1)  # never still, and three times as slow as it must be
        assert taken < len(content)
        assert time.monotonic() - began < DEADLINE
