"""The server gives away exactly the files of complete versions, to many at once, and nobody can hold it up."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import PreflightError, ProtocolViolation
from protocol.shardcast import server as server_module
from protocol.shardcast.guest import neighbourhood
from protocol.shardcast.http1 import HEAD_BYTES_MAX, parse_head
from protocol.shardcast.opened import OpenedVersion
from protocol.shardcast.opening import ChunkList, Opening
from protocol.shardcast.server import ServerLimits, ShardServer
from protocol.shardcast.uplink import SMALL_BYTES_MAX, Uplink

from .conftest import CHUNK, DEADLINE, RUN, Cast, contents, origin_at, wait_until

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

WAIT = 5.0
BIG = bytes(32 << 20)  # more than socket buffers hold: whoever does not read it keeps the server busy


class Peer:
    """A raw connection to a server."""

    def __init__(self, server: ShardServer) -> None:
        self.sock = socket.create_connection((server.host, server.port), timeout=WAIT)
        self.data = bytearray()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, text: str | bytes) -> None:
        self.sock.sendall(text.encode("latin-1") if isinstance(text, str) else text)

    def get(self, target: str, *fields: str) -> tuple[int, bytes]:
        self.send("\r\n".join([f"GET {target} HTTP/1.1", "Host: x", *fields, "", ""]))
        return self.answer()

    def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer, which must say its length."""
        self._read_until(lambda: b"\r\n\r\n" in self.data)
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        self.head = head.decode()
        length = int(re.search(r"Content-Length: (\d+)", self.head)[1])  # type: ignore[index]
        self._read_until(lambda: len(self.data) >= length)
        body = bytes(self.data[:length])
        del self.data[:length]
        return int(self.head.split(" ")[1]), body

    def is_closed(self) -> bool:
        """Waits until the server ends the connection."""
        with suppress(ConnectionError):
            while self.sock.recv(1 << 16):
                pass
        return True

    def _read_until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            piece = self.sock.recv(1 << 20)
            assert piece, f"closed after {len(self.data)} bytes"
            self.data += piece


@pytest.fixture
def content(cast: Cast) -> bytes:
    return cast.bytes(3 * CHUNK + 5)


@pytest.fixture
def server(cast: Cast, content: bytes) -> ShardServer:
    return cast.origin({"model": content, "empty": b""})[1]


def test_any_http_client_can_read_files_and_ranges(server: ShardServer, content: bytes) -> None:
    with httpx.Client(base_url=server.url, timeout=WAIT) as http:
        whole = http.get("/v/1/files/model")
        assert (whole.status_code, whole.content) == (200, content)
        part = http.get("/v/1/files/model", headers={"Range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, content[10:20])
        assert part.headers["content-range"] == f"bytes 10-19/{len(content)}"
        assert http.get("/v/1/files/empty").content == b""
        assert http.get("/v/1/manifest").json().keys() == {"manifest", "signature"}


NOWHERE = [
    "/",
    "/v",
    "/v/1",
    "/v/1/",
    "/v/1/files",
    "/v/1/files/",
    "/v/2/manifest",
    "/v/2/files/model",
    "/v/1/files/absent",
    "//v/1/manifest",
    "/v/01/manifest",
    "/v/-1/manifest",
    "/v/99999999999/manifest",
    "/v/1/manifest/",
    "/v/1/manifest?x",
    "/v/1/files/model#x",
    "/v/1/files/../manifest",
    "/v/1/files/..",
    "/v/1/files/.manifest.json",
    "/v/1/files/%6dodel",
    "/v/1/files/../../../.lock",
    "/v/1/files/%2e%2e/%2e%2e/.lock",
    "/v/../complete/1/model",
]


@pytest.mark.parametrize("target", NOWHERE)
def test_nothing_but_files_of_versions_is_found(server: ShardServer, target: str) -> None:
    with Peer(server) as peer:
        assert peer.get(target) == (404, b"")
        assert peer.get("/v/1/files/empty") == (200, b"")


RANGES = {
    206: ["0-0", "3-196612", "196612-196612"],
    416: ["196613-196613", "0-196613", "5-4", "0-9999999999999999"],
    400: ["5-", "-5", "0-1,3-4", "a-b", "0-99999999999999999999", "", "٣-٤"],
}


@pytest.mark.parametrize(("wanted", "status"), [(wanted, status) for status in RANGES for wanted in RANGES[status]])
def test_a_range_is_served_exactly_or_not_at_all(server: ShardServer, content: bytes, wanted: str, status: int) -> None:
    with Peer(server) as peer:
        peer.send(f"GET /v/1/files/model HTTP/1.1\r\nHost: x\r\nRange: bytes={wanted}\r\n\r\n".encode())
        got, body = peer.answer()
    first, _, last = wanted.partition("-")
    assert (got, body) == (status, content[int(first) : int(last) + 1] if status == 206 else b"")


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("POST /v/1/manifest HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        ("GET /v/1/manifest HTTP/1.0\r\nHost: x\r\n\r\n", 400),
        ("GET /v/1/manifest HTTP/1.1\r\n\r\n", 400),
        ("GET  /v/1/manifest HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET http://x/v/1/manifest HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("get /v/1/manifest HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET /v/1/manifest HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 400),
        ("GET /v/1/manifest HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("GET /v/1/files/model HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\nRange: bytes=2-3\r\n\r\n", 400),
        ("GET /v/1/manifest HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n", 400),
        ("GET /v/1/manifest HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        ("GET /v/1/manifest HTTP/1.1\nHost: x\r\n\r\n", 400),
        ("\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\r\n\r\n", 400),
        ("GET /" + "a" * HEAD_BYTES_MAX, 400),
    ],
)
def test_what_is_no_proper_request_is_refused_and_ends_the_connection(
    server: ShardServer, request_text: str, status: int
) -> None:
    with Peer(server) as peer:
        peer.send(request_text)
        assert peer.answer() == (status, b"")
        assert peer.is_closed()


@given(st.text(alphabet=st.characters(max_codepoint=255), max_size=60))
def test_no_head_raises_anything_but_a_violation(text: str) -> None:
    with suppress(ProtocolViolation):
        parse_head(text)


def test_a_connection_serves_many_requests_even_when_they_come_at_once(server: ShardServer, content: bytes) -> None:
    with Peer(server) as peer:
        request = "GET /v/1/files/model HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n"
        peer.send(request * 3 + request[:20])
        for _ in range(3):
            assert peer.answer() == (206, content[:10])
        peer.send(request[20:])
        assert peer.answer() == (206, content[:10])
        assert peer.get("/v/1/files/empty", "Connection: close") == (200, b"")
        assert peer.is_closed()


def test_idle_connections_do_not_hold_up_others(cast: Cast, content: bytes) -> None:
    """The published shardcast serves one connection after the other: a single idle one stops it."""
    limits = ServerLimits(connections=4, per_address=4, head=60.0, eviction_age=0.0)
    manifest, server = cast.origin({"model": content}, limits=limits)
    idle = [Peer(server) for _ in range(4)]
    idle[1].send("GET /v/1/fi")  # half a request is idle too
    wait_until(lambda: server.counts.connections == 4)
    folder = cast.client().fetch(1, manifest.digest, [origin_at(server.url)], DEADLINE)
    assert contents(folder) == {"model": content}
    for peer in idle:
        peer.sock.close()


def test_the_longest_idle_gives_way_and_no_other(cast: Cast, content: bytes) -> None:
    limits = ServerLimits(connections=2, per_address=2, eviction_age=0.0)
    _, server = cast.origin({"model": content}, limits=limits)
    with Peer(server) as silent:
        wait_until(lambda: server.counts.connections == 1)
        with Peer(server) as busy:
            assert busy.get("/v/1/files/absent") == (404, b"")
            with Peer(server) as newcomer:
                assert newcomer.get("/v/1/files/model") == (200, content)
                assert silent.is_closed()
                assert busy.get("/v/1/files/model") == (200, content)


@pytest.mark.parametrize(
    "limits", [ServerLimits(connections=2), ServerLimits(per_address=2)], ids=["all", "one address"]
)
def test_connections_beyond_the_cap_are_told_that_the_house_is_full(cast: Cast, limits: ServerLimits) -> None:
    _, server = cast.origin({"model": BIG}, limits=limits)
    with Peer(server) as first, Peer(server) as second:
        for peer in (first, second):
            peer.send("GET /v/1/files/model HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: server.counts.requests == 2)
        with Peer(server) as third:
            assert third.answer() == (503, b"")
            assert third.is_closed()
        assert server.counts.refused == 1
        assert first.answer() == (200, BIG)


def test_the_address_of_a_guest_is_parsed_when_it_comes_and_not_again_for_others(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def parse(address: str) -> str:
        parsed.append(address)
        return neighbourhood(address)

    monkeypatch.setattr(server_module, "neighbourhood", parse)
    _, server = cast.origin({"model": b"x"})
    with ExitStack() as stack:
        for _ in range(10):
            assert stack.enter_context(Peer(server)).get("/v/1/files/model") == (200, b"x")
    assert parsed == ["127.0.0.1"] * 10


def test_a_request_that_trickles_in_is_cut(cast: Cast) -> None:
    _, server = cast.origin({"model": b"x"}, limits=ServerLimits(head=0.1))
    with Peer(server) as peer:
        peer.send("GET")
        assert peer.is_closed()


def test_a_connection_that_stays_idle_is_ended(cast: Cast) -> None:
    _, server = cast.origin({"model": b"x"}, limits=ServerLimits(idle=0.05))
    with Peer(server) as peer:
        assert peer.get("/v/1/files/model") == (200, b"x")
        assert peer.is_closed()


def is_serving() -> bool:
    return any(thread.name == "shardcast-127.0.0.1" for thread in threading.enumerate())


def test_a_reader_that_stands_still_is_cut(cast: Cast) -> None:
    _, server = cast.origin({"model": BIG}, limits=ServerLimits(stall=0.1))
    with Peer(server) as peer:
        peer.send("GET /v/1/files/model HTTP/1.1\r\nHost: x\r\n\r\n")
        peer.sock.recv(1)
        wait_until(lambda: not is_serving())


def test_a_reader_that_never_rests_but_is_too_slow_is_cut(cast: Cast) -> None:
    _, server = cast.origin({"model": BIG}, limits=ServerLimits(stall=0.8, floor_rate=1 << 40))
    with Peer(server) as peer:
        peer.send("GET /v/1/files/model HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: bool(peer.sock.recv(1 << 13)) and not is_serving())
    assert server.counts.bytes_served < len(BIG)


def test_every_byte_served_is_counted_and_reported(cast: Cast, content: bytes) -> None:
    seen: Counter[tuple[int, str]] = Counter()
    guests: Counter[tuple[str | None, int]] = Counter()
    _, server = cast.origin(
        {"model": content, "empty": b""},
        progress=lambda step, name, count: seen.update({(step, name): count}),
        sent_to=lambda guest, step, count: guests.update({(guest.serves, step): count}),
    )
    with Peer(server) as peer:
        peer.get("/v/1/files/model")
        peer.get("/v/1/files/model", "Range: bytes=0-9", "Serves: http://127.0.0.1:9")
        peer.get("/v/1/files/empty")
        peer.get("/v/1/files/absent")
    wait_until(lambda: seen == {(1, "model"): len(content) + 10})
    assert guests == {(None, 1): len(content), ("http://127.0.0.1:9", 1): 10}
    assert server.counts.bytes_served == len(content) + 10
    assert server.counts.requests == 4


class Pauses:
    """Time that passes only for who pauses for the cap; safe to share, for the bucket lets one pause at a time."""

    def __init__(self) -> None:
        self.paused = 0.0

    def clock(self) -> float:
        return 1000.0 + self.paused

    def sleep(self, seconds: float) -> None:
        self.paused += seconds


RATE = 64 << 10
SMALL, LARGE = {"model": b"x"}, {f"model-{number:04d}": b"x" for number in range(1000)}


@pytest.mark.parametrize("files", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("target", ["/v/1/manifest", "/v/2/opening?of=" + "0" * 64 + "&after=0&wait=0"])
def test_what_is_signed_counts_against_the_cap_as_chunks_do(cast: Cast, files: dict[str, bytes], target: str) -> None:
    pauses = Pauses()
    _, server = cast.origin(files, uplink=Uplink(RATE, pauses.clock, pauses.sleep))
    opening = Opening(RUN, 2, tuple((name, CHUNK) for name in files), "0" * 32, 2, CHUNK)
    listing = ChunkList(opening)
    listing.sign([bytes(32)] * len(files), cast.key, cast.domain)
    server.store.show_opened(2, OpenedVersion(listing, lambda name: None))
    sent = 0
    with Peer(server) as peer, Peer(server) as other:
        while sent < 8 * RATE:
            for one in (peer, other):
                status, body = one.get(target)
                assert status == 200
                sent += len(body)
    assert (len(body) > SMALL_BYTES_MAX) == (files is LARGE)
    assert pauses.paused >= (sent - len(body)) / RATE - 0.5


def test_what_a_server_says_it_holds_counts_against_the_cap(cast: Cast) -> None:
    pauses = Pauses()
    _, server = cast.origin(SMALL, uplink=Uplink(RATE, pauses.clock, pauses.sleep))
    opening = Opening(RUN, 2, (("model", 30_000 * CHUNK),), "0" * 32, 2, CHUNK)
    listing = ChunkList(opening)
    listing.sign([bytes(32)], cast.key, cast.domain)
    server.store.show_opened(2, OpenedVersion(listing, lambda name: None))
    with Peer(server) as peer:
        sent = sum(len(peer.get(f"/v/2/opened/{opening.id}/holding?after=0&wait=0")[1]) for _ in range(50))
    assert sent > 5 * RATE
    assert pauses.paused >= 0.9 * sent / RATE


def test_an_answer_without_a_cap_or_below_it_is_not_delayed(cast: Cast) -> None:
    pauses = Pauses()
    _, server = cast.origin(SMALL, uplink=Uplink(1 << 20, pauses.clock, pauses.sleep))
    with Peer(server) as peer:
        assert peer.get("/v/1/manifest")[0] == peer.get("/v/1/holding?after=0&wait=0")[0] == 200
    assert pauses.paused == 0.0


def test_small_answers_take_no_turn_behind_chunks(cast: Cast) -> None:
    uplink = Uplink(clock=lambda: 1000.0)  # time stands still: whoever has a turn keeps others waiting
    _, server = cast.origin(SMALL, uplink=uplink)
    with ExitStack() as under_way, Peer(server) as peer, Peer(server) as waiting:
        for _ in range(2):
            under_way.enter_context(uplink.turn(CHUNK, first=True, deadline=1000.0))
        waiting.send("GET /v/1/files/model HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: uplink.waiting == 1)
        assert peer.get("/v/1/manifest")[0] == peer.get("/v/1/holding?after=0&wait=0")[0] == 200
        assert uplink.waiting == 1


def test_who_would_wait_too_long_for_a_small_answer_is_told_to_come_back(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.shardcast.answers._SMALL_QUEUE_SECONDS", 0.0)
    paused, go_on = threading.Event(), threading.Event()

    def pause(seconds: float) -> None:
        paused.set()
        assert go_on.wait(DEADLINE)

    uplink = Uplink(RATE, lambda: 1000.0, pause)
    _, server = cast.origin(SMALL, uplink=uplink)
    uplink.bucket.spend(RATE)
    holder = threading.Thread(target=uplink.bucket.spend, args=(1,))
    holder.start()
    assert paused.wait(DEADLINE)
    with Peer(server) as peer:
        assert peer.get("/v/1/manifest") == (503, b"")
        assert "Retry-After: 2" in peer.head
        go_on.set()
        holder.join()
        assert peer.get("/v/1/manifest")[0] == 200


def test_a_version_that_is_retired_while_it_is_read_is_read_to_its_end(cast: Cast) -> None:
    _, server = cast.origin({"model": BIG})
    with Peer(server) as peer:
        peer.send("GET /v/1/files/model HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: server.counts.bytes_served > 0)
        server.store.discard(1)
        assert peer.answer() == (200, BIG)
        assert peer.get("/v/1/files/model") == (404, b"")


def test_closing_ends_every_connection_and_thread(cast: Cast) -> None:
    before = set(threading.enumerate())
    _, server = cast.origin({"model": BIG}, progress=lambda *_: threading.Event().wait(0.2) and None)
    with Peer(server) as idle, Peer(server) as reading, Peer(server) as asking:
        reading.send("GET /v/1/files/model HTTP/1.1\r\nHost: x\r\n\r\n")
        asking.send("GET ")
        wait_until(lambda: server.counts.connections == 3 and server.counts.requests == 1)
        server.close()
        assert set(threading.enumerate()) <= before
        assert idle.is_closed() and reading.is_closed() and asking.is_closed()
    with pytest.raises(ConnectionRefusedError):
        Peer(server)


def test_a_taken_port_is_a_preflight_error(cast: Cast, server: ShardServer) -> None:
    with pytest.raises(PreflightError, match="listen") as caught, ShardServer(cast.store("other"), port=server.port):
        pass
    assert "another host or port" in caught.value.hint


def test_an_address_that_fills_the_house_makes_way_for_others_however_often_it_asks(cast: Cast, content: bytes) -> None:
    limits = ServerLimits(connections=4, per_address=4, eviction_age=60.0)
    _, server = cast.origin({"model": content}, limits=limits)
    with ExitStack() as stack:
        crowd = [stack.enter_context(Peer(server)) for _ in range(4)]
        for peer in crowd:
            assert peer.get("/v/1/files/absent") == (404, b"")
        with socket.create_connection(("127.0.0.1", server.port), 10, source_address=("127.0.0.2", 0)) as newcomer:
            newcomer.sendall(b"GET /v/1/files/absent HTTP/1.1\r\nHost: x\r\n\r\n")
            assert newcomer.recv(100).startswith(b"HTTP/1.1 404")
            with Peer(server) as another:
                assert another.answer()[0] == 503, "of its own address nobody makes way for it so soon"


def test_a_guest_that_gets_news_while_a_newcomer_looks_for_room_costs_it_no_place(cast: Cast) -> None:
    """Threads that answer say when a guest begins to wait and when no longer, and take no lock for it."""

    class GetsNews:
        busy_since, sent_before, leaving = 0.0, 0, False
        wire = SimpleNamespace(sent=0, shut=lambda: None)

        def __init__(self) -> None:
            self.waited_since = iter([0.0, None, None, None])

        @property
        def idle_since(self) -> float | None:
            return next(self.waited_since)

    server = cast.serve(cast.store("any"))
    guest = GetsNews()
    assert server._send_away([guest])  # type: ignore[list-item]
    assert guest.leaving
