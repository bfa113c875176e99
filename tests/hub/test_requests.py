"""Nothing that comes over a socket stops the hub, hangs it or makes it grow."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from swarm.processes import wait_until

from protocol.errors import IntegrityError, PreflightError
from tests.hub.desk import Desk, damaged, some_file
from trainer.hub import app as app_module
from trainer.hub.server import HubServer


def raw(desk: Desk, data: bytes, *, read: bool = True) -> bytes:
    """Sends bytes as they are and returns what comes back until the hub is done or silent."""
    with socket.create_connection(("127.0.0.1", httpx.URL(desk.url).port), timeout=5) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")) if read else b""
        except OSError:
            return b""


GARBAGE = {
    "noise": os.urandom(5000),
    "a line without end": b"GET /" + b"a" * 200_000,
    "huge headers": b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 1_000_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % i for i in range(50_000)) + b"\r\n",
    "tls": bytes.fromhex("16030100f4010000f00303") + os.urandom(200),
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths": b"POST /v1/runs/1/receipts HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
    "a negative length": b"POST /v1/runs/1/receipts HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    "a length beyond all bounds": b"PUT /v1/runs/1/submissions/" + b"0" * 64 + b" HTTP/1.1\r\nhost: x\r\ncontent-length: "
    + b"9" * 5000 + b"\r\n\r\n",
    "a bad chunk": b"POST /v1/runs/1/receipts HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "a websocket": b"GET /v1/runs/1/status HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n",
    "a body that never comes": b"POST /v1/runs/1/receipts HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_on_the_socket_stops_nothing(desk: Desk, data: bytes) -> None:
    answer = raw(desk, data)
    assert b" 200 " not in answer.split(b"\r\n")[0] or b"websocket" in data
    assert desk.is_alive()
    assert desk.new_files() == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("receipts?after=-1", 422), ("receipts?after=x", 422), ("receipts?after=9999999999999999999999", 422),
        ("receipts?after=1e3", 422), ("receipts?wait=-1", 422), ("receipts?wait=1000000", 422), ("opinions?after=-1", 422),
        ("files/xyz", 422), ("files/" + "ab" * 31, 422), ("files/" + "zz" * 32, 422), ("files/..%2f..%2fhub.sqlite", 404),
        ("files/" + "ab" * 32, 404), ("submissions/" + "ab" * 32, 404), ("submissions/" + "ab" * 33, 422), ("nothing", 404),
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_the_right_status(desk: Desk, path: str, status: int) -> None:
    answer = httpx.get(f"{desk.url}/v1/runs/{desk.world.run}/{path}", timeout=60)
    assert answer.status_code == status
    assert desk.is_alive()
    if status == 422:
        assert desk.hub.refused == {"Malformed": 1}
        assert len(answer.text) < 300  # never the input again at length


def test_another_runs_routes_are_not_here(desk: Desk) -> None:
    assert httpx.get(f"{desk.url}/v1/runs/{desk.world.run + 1}/status", timeout=60).status_code == 404


def test_a_chunked_body_over_the_cap_is_cut_off(desk: Desk) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 100 << 20:
            sent += 1 << 16
            yield bytes(1 << 16)

    answer = httpx.post(f"{desk.url}/v1/runs/{desk.world.run}/receipts", content=endless(), timeout=30)
    assert answer.status_code == 413
    assert desk.hub.refused == {"Oversized": 1}


BEGUN = "x" * 40_000
"""So much of a body that its request counts (trainer/hub/server.py)."""


def test_a_slow_body_holds_up_nobody_and_ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_BODY_SECONDS_MAX", 0.3)
    head = f"POST /v1/runs/{desk.world.run}/receipts HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n" + BEGUN
    with ExitStack() as stack:
        address = ("127.0.0.1", httpx.URL(desk.url).port)
        slow = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(30)]
        for connection in slow:
            connection.sendall(head.encode())
        assert desk.is_alive()
        wait_until(lambda: desk.hub.refused["Unavailable"] == 30, deadline=10, what="all have been given up")
        assert all(b"503" in connection.recv(100) for connection in slow)


def test_a_sender_that_went_away_is_no_error_of_the_hub(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """Or anybody could fill its disk with tracebacks."""
    body = f"POST /v1/runs/{desk.world.run}/receipts HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n" + BEGUN
    for _ in range(3):
        raw(desk, body.encode(), read=False)
    wait_until(lambda: desk.hub.refused["Unavailable"] == 3, deadline=10, what="the hub notices")
    assert "Traceback" not in capfd.readouterr().err


def test_idle_and_dawdling_connections_are_cut() -> None:
    """Each takes one of the hub's places: silent ones, headers that never end, and answers that are never read."""
    app = FastAPI()

    @app.get("/large")
    async def large() -> str:
        return "x" * (64 << 20)

    with HubServer(app, "127.0.0.1", 0, head_seconds=0.3, request_seconds=0.6) as server, ExitStack() as stack:
        made = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(4)]
        silent, dawdling, unread, finished = (stack.enter_context(connection) for connection in made)
        dawdling.sendall(b"GET / HTTP/1.1\r\nx: ")
        unread.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        finished.sendall(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b'"}'):
            answer += finished.recv(1000)
        assert answer.startswith(b"HTTP/1.1 404")
        connections = server._server.server_state.connections
        wait_until(lambda: not connections, deadline=10, what="all are cut")
        for connection in (silent, dawdling, finished):
            with suppress(ConnectionResetError):
                assert connection.recv(10) == b""


LARGE = 8 << 20
"""Of an answer: more than the system takes from a server whose peer reads nothing."""
LAST = b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def large(size: int = LARGE) -> FastAPI:
    app = FastAPI()

    @app.get("/large")
    async def whole() -> PlainTextResponse:
        return PlainTextResponse("x" * size)

    return app


def unread(server: HubServer, stack: ExitStack, requests: bytes) -> socket.socket:
    """A peer that reads nothing."""
    made = stack.enter_context(socket.socket())
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", server.port))
    made.sendall(requests)
    return made


@pytest.mark.parametrize(
    ("size", "requests"), [(LARGE, LAST), (20_000, LAST.replace(b"connection: close\r\n", b"") + LAST)],
    ids=["a large one", "a small one behind another"],
)  # fmt: skip
def test_a_last_answer_that_nobody_reads_has_deadlines_too(size: int, requests: bytes) -> None:
    """The connection is closing for as long as some of it is here: what the system does not take, whose buffers others may have filled."""
    with HubServer(large(size), "127.0.0.1", 0, slow_seconds=0.5) as server, ExitStack() as stack:
        server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for _ in range(3):
            unread(server, stack, requests)
        connections = server._server.server_state.connections
        wait_until(lambda: len(connections) == 3, deadline=10, what="all are in")
        wait_until(lambda: not connections, deadline=10, what="all are cut")


def test_who_does_not_read_a_last_answer_gives_way_to_a_newcomer() -> None:
    with HubServer(large(), "127.0.0.1", 0, connections=2, eviction_seconds=0) as server, ExitStack() as stack:
        for _ in range(2):
            unread(server, stack, LAST)
        connections = server._server.server_state.connections
        wait_until(
            lambda: [each.transport.is_closing() for each in connections] == [True] * 2, deadline=10, what="both end"
        )
        assert answer_to(connect(server, stack, "127.0.0.1")) == b"HTTP/1.1 404"


ASK = b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"


def connect(server: HubServer, stack: ExitStack, source: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), timeout=10, source_address=(source, 0))
    return stack.enter_context(made)


def answer_to(connection: socket.socket) -> bytes:
    """The beginning of the answer, all of which is read; empty when the hub has hung up."""
    answer = b""
    with suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(ASK)
        while not answer.endswith(b'"}') and (part := connection.recv(1000)):
            answer += part
    return answer[:12]


def test_an_answer_waits_for_no_acknowledgement() -> None:
    """Nagle's algorithm would hold the body of every answer back for 40 ms."""
    with HubServer(FastAPI(), "127.0.0.1", 0) as server, httpx.Client() as client:
        client.get(f"http://127.0.0.1:{server.port}/")
        (connection,) = server._server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_one_address_cannot_take_all_places() -> None:
    """And what it holds open costs nobody else anything."""
    with HubServer(FastAPI(), "127.0.0.1", 0, per_address=5) as server, ExitStack() as stack:
        held = [connect(server, stack, "127.0.0.1") for _ in range(5)]
        wait_until(lambda: len(server._server.server_state.connections) == 5, deadline=10, what="all are in")
        refused = connect(server, stack, "127.0.0.1")
        assert refused.recv(1000).startswith(b"HTTP/1.1 503")
        assert refused.recv(1) == b""
        assert answer_to(connect(server, stack, "127.0.0.2")) == b"HTTP/1.1 404"
        assert answer_to(held[0]) == b"HTTP/1.1 404"
        held.pop().close()
        connections = server._server.server_state.connections
        wait_until(lambda: len(connections) == 5, deadline=10, what="it has left")  # four of these and the other's
        assert answer_to(connect(server, stack, "127.0.0.1")) == b"HTTP/1.1 404"


def test_an_idle_connection_gives_way_to_a_new_one_of_its_address_and_a_busy_one_does_not() -> None:
    """Many nodes behind one address, each with a connection it keeps alive, must not lock each other out."""
    app, finished = FastAPI(), threading.Event()

    @app.get("/long")
    def long() -> str:
        finished.wait(20)
        return "done"

    with HubServer(app, "127.0.0.1", 0, per_address=2, eviction_seconds=0) as server, ExitStack() as stack:
        busy, idle = connect(server, stack, "127.0.0.1"), connect(server, stack, "127.0.0.1")
        busy.sendall(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_until(lambda: server._server.server_state.tasks, deadline=10, what="its request is under way")
        assert answer_to(idle) == b"HTTP/1.1 404"
        assert answer_to(connect(server, stack, "127.0.0.1")) == b"HTTP/1.1 404"
        assert answer_to(idle) == b""
        finished.set()
        assert busy.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_request_within_its_deadlines_is_not_cut(desk: Desk) -> None:
    with httpx.Client(base_url=desk.url, timeout=60) as client:  # one connection for all
        for _ in range(5):
            assert client.get(f"/v1/runs/{desk.world.run}/status").status_code == 200


def test_a_taken_port_is_said_at_once(desk: Desk) -> None:
    port = httpx.URL(desk.url).port
    assert port is not None
    with pytest.raises(PreflightError, match="cannot listen"):
        HubServer(FastAPI(), "127.0.0.1", port)


def test_the_spec_is_given_in_its_canonical_form(desk: Desk) -> None:
    assert desk.client().spec(desk.spec.digest) == desk.spec


def test_the_status_is_the_trainers_and_says_what_was_refused(desk: Desk) -> None:
    desk.status.write_text(json.dumps({"state": "training", "step": 3}))
    desk.get("files/xyz")
    told = desk.client().status()
    assert (told["state"], told["step"], told["hub"]["refused"]) == ("training", 3, {"Malformed": 1})
    desk.status.unlink()


def test_files_are_served_in_ranges(desk: Desk) -> None:
    node, data = desk.node(), some_file(5000)
    ref = desk.commit(node, data)
    desk.upload(node, ref, data)
    url = f"{desk.url}/v1/runs/{desk.world.run}/files/{ref.root.hex()}"
    answer = httpx.get(url, headers={"Range": "bytes=1000-1999"}, timeout=60)
    assert (answer.status_code, answer.content) == (206, data[1000:2000])


def test_a_lie_at_the_hub_is_found_by_whoever_downloads(desk: Desk, tmp_path: Path) -> None:
    from protocol.errors import HashMismatch, Oversized

    node, data = desk.node(), some_file(5000)
    ref = desk.commit(node, data)
    desk.upload(node, ref, data)
    with pytest.raises(Oversized):
        desk.client().download(ref.root, tmp_path / "x", cap=4999)
    desk.store.file(ref.root).write_bytes(damaged(data))
    with pytest.raises(HashMismatch):
        desk.client().download(ref.root, tmp_path / "x", cap=5000)
    assert not (tmp_path / "x").exists()


def test_what_is_damaged_is_for_the_hubs_log_and_not_for_strangers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def find(*_: object) -> object:
        raise IntegrityError("/var/lib/murmur/hub/packs.sqlite is damaged")

    monkeypatch.setattr(desk.hub, "stored", find)
    answer = httpx.get(f"{desk.url}/v1/runs/{desk.world.run}/submissions/{'11' * 32}")
    assert (answer.status_code, answer.text) == (500, "what the hub has stored is damaged")
    assert "packs.sqlite is damaged" in caplog.text
