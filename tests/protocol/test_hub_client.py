"""A hub that answers slowly, endlessly or with the wrong thing holds nobody up: each call ends, with an error of its own."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from swarm.pace import Patience

from protocol.errors import Malformed, MurmurationError, Oversized, ProtocolViolation, Unavailable
from protocol.hub import client as hub_client
from protocol.hub.client import HubClient
from protocol.hub.wire import PAGE, RETRY_MOST, Refused, Stored, TryAgain
from protocol.identity import Key
from protocol.shell.connection import Connection, is_fatal
from protocol.shell.peers import PeerSettings
from protocol.signing import Domain, StorageReceipt
from tests.clock import VirtualClock

RUN, TIMEOUT = 3, 1.0  # half of it was too little for a page of a listing beside three other tests on two cores
DOMAIN = Domain(31337, Key.generate().address)
SUBMISSION, DATA = b"\x05" * 32, b"rollouts"
ROOT = hashlib.sha256(DATA).digest()


class FakeHub:
    """Listens on a real socket; `serve(connection, head)` answers whatever is asked, one request per connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.closing = threading.Event()
        self.serve: Callable[[socket.socket, str], None] = lambda connection, head: None
        self._welcomer = threading.Thread(target=self._welcome)
        self._welcomer.start()

    def _welcome(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self.closing.is_set():
                connection.close()
                return
            self._threads.append(threading.Thread(target=self._answer, args=(connection,)))
            self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client hangs up where it has had enough
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(4096)
            self.serve(connection, head.decode("latin-1"))

    def drip(self, connection: socket.socket, head: bytes, drop: bytes) -> None:
        """A drop every now and then, always before any timeout of a single read."""
        connection.sendall(head)
        while not self.closing.wait(TIMEOUT / 10):
            connection.sendall(drop)

    def says(self, body: bytes, status: str = "200 OK", *, header: str = "X: y") -> None:
        head = f"HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        self.serve = lambda connection, _: connection.sendall(head + body)

    def close(self) -> None:
        self.closing.set()
        with suppress(OSError):
            socket.create_connection(self._listener.getsockname()).close()
        self._welcomer.join()
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    made = FakeHub()
    yield made
    made.close()


@pytest.fixture
def client(hub: FakeHub) -> Iterator[HubClient]:
    made = HubClient(hub.url, RUN, DOMAIN, key=Key.generate(), now=lambda: 0, timeout=TIMEOUT)
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(DATA)
    return tmp_path / "file"


CALLS: dict[str, Callable[[HubClient, Path], Any]] = {
    "status": lambda client, _: client.status(),
    "receipts": lambda client, _: list(client.receipts(0)),
    "post": lambda client, _: client.post_receipt(b"{}"),
    "upload": lambda client, file: client.upload(SUBMISSION, ROOT, file, Key.generate().address),
    "download": lambda client, file: client.download(ROOT, file.with_name("target"), cap=1 << 20),
}
DRIPS = {
    "headers": (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
    "many headers": (b"HTTP/1.1 200 OK\r\n", b"X-Long: x\r\n"),
    "body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "refusal": (b"HTTP/1.1 409 Conflict\r\nContent-Length: 1000\r\n\r\n", b"x"),
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("drip", DRIPS.values(), ids=DRIPS)
def test_a_hub_that_drips_holds_no_call_beyond_its_deadline(
    hub: FakeHub, client: HubClient, file: Path, drip: tuple[bytes, bytes], call: Callable[[HubClient, Path], Any]
) -> None:
    hub.serve = lambda connection, _: hub.drip(connection, *drip)
    patience = Patience(10 * TIMEOUT)
    with pytest.raises(Unavailable):
        call(client, file)
    assert not patience.ended()


def test_a_hub_that_reads_an_upload_in_sips_holds_it_no_longer(
    hub: FakeHub, client: HubClient, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_client, "RATE_MIN", 1 << 30)
    file.write_bytes(bytes(64 << 20))

    def sip(connection: socket.socket, _: str) -> None:
        while not hub.closing.wait(TIMEOUT / 10) and connection.recv(256 << 10):
            pass

    hub.serve = sip
    patience = Patience(10 * TIMEOUT)
    with pytest.raises(Unavailable):
        client.upload(SUBMISSION, ROOT, file, Key.generate().address)
    assert not patience.ended()


def test_a_long_transfer_has_time_as_long_as_it_moves(
    hub: FakeHub, client: HubClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_client, "RATE_MIN", 1000)
    data = bytes(20 * 200)

    def serve(connection: socket.socket, _: str) -> None:
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        for _ in range(20):
            hub.closing.wait(0.1)
            connection.sendall(bytes(200))

    hub.serve = serve
    began = time.monotonic()
    assert client.download(hashlib.sha256(data).digest(), tmp_path / "target", cap=1 << 20)
    assert time.monotonic() - began > TIMEOUT
    assert (tmp_path / "target").read_bytes() == data


def test_no_answer_is_read_beyond_its_cap(
    hub: FakeHub, client: HubClient, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_client, "_JSON_BYTES_MAX", 1000)
    hub.says(b" " * 2000)
    for name in ("status", "receipts", "post", "upload"):
        with pytest.raises(Oversized):
            CALLS[name](client, file)
    with pytest.raises(Oversized):
        client.download(ROOT, file.with_name("target"), cap=1000)


def test_a_refusal_with_an_endless_reason_is_a_refusal(hub: FakeHub, client: HubClient, file: Path) -> None:
    for status, error in (("409 Conflict", Refused), ("503 Busy", Unavailable)):
        hub.says(b"x" * 100_000, status)
        for call in CALLS.values():
            with pytest.raises(error):
                call(client, file)


def test_a_listing_that_never_ends_is_read_in_bounded_parts(hub: FakeHub, client: HubClient) -> None:
    asked = []

    def serve(connection: socket.socket, head: str) -> None:
        after = int(head.split("after=")[1].split("&")[0])
        asked.append(after)
        entries = [{"id": after + 1 + i, "value": {"submission": SUBMISSION.hex()}} for i in range(PAGE)]
        body = json.dumps({"entries": entries}).encode()
        connection.sendall(
            f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        )

    hub.serve = serve
    first = list(client.opinions(0))
    assert len(first) == len(asked) * PAGE
    last = first[-1][0]
    assert next(client.opinions(last))[0] == last + 1, "the next call goes on where this one ended"


@pytest.mark.parametrize("number", ["Infinity", "-1", "0", '"x"', "null", str(1 << 63), "[]"])
def test_a_listing_with_impossible_numbers_is_malformed(hub: FakeHub, client: HubClient, number: str) -> None:
    hub.says(b'{"entries": [{"id": %s, "value": {}}]}' % number.encode())
    with pytest.raises(Malformed):
        list(client.receipts(0))


# ---- storage receipts --------------------------------------------------------------------------------------------------

HONEST = StorageReceipt(RUN, SUBMISSION, ROOT, len(DATA), 100)


def signed(key: Key, receipt: StorageReceipt) -> bytes:
    return json.dumps(Stored(receipt, receipt.sign(key, DOMAIN)).as_json()).encode()


def test_a_storage_receipt_of_this_submission_and_file_is_taken(hub: FakeHub, client: HubClient, file: Path) -> None:
    key = Key.generate()
    hub.says(signed(key, HONEST))
    assert client.upload(SUBMISSION, ROOT, file, key.address).receipt == HONEST
    found = client.stored(SUBMISSION, key.address)
    assert found is not None and found.receipt == HONEST


@pytest.mark.parametrize(
    "change",
    [{"run": RUN + 1}, {"submission": b"\x06" * 32}, {"root": b"\x07" * 32}, {"size": len(DATA) - 1}],
    ids=lambda change: next(iter(change)),
)
def test_a_storage_receipt_of_anything_else_is_malformed(
    hub: FakeHub, client: HubClient, file: Path, change: dict[str, Any]
) -> None:
    key = Key.generate()
    hub.says(signed(key, replace(HONEST, **change)))
    with pytest.raises(Malformed, match="another"):
        client.upload(SUBMISSION, ROOT, file, key.address)
    if "run" in change or "submission" in change:
        with pytest.raises(Malformed, match="another"):
            client.stored(SUBMISSION, key.address)


@pytest.mark.parametrize(
    "change",
    [{"time": -1}, {"size": 1 << 64}, {"run": "Infinity"}, {"submission": "05"}, {"root": "0g"}, {"time": None}, {"signature": "00"}],
    ids=str,
)  # fmt: skip
def test_a_storage_receipt_of_impossible_values_is_the_hubs_fault(
    hub: FakeHub, client: HubClient, file: Path, change: dict[str, Any]
) -> None:
    key = Key.generate()
    table = json.loads(signed(key, HONEST)) | {k: float("inf") if v == "Infinity" else v for k, v in change.items()}
    hub.says(json.dumps(table).encode())
    with pytest.raises(MurmurationError) as caught:
        client.upload(SUBMISSION, ROOT, file, key.address)
    assert isinstance(caught.value, ProtocolViolation)


@pytest.mark.parametrize(
    ("status", "may_pass"),
    [
        ("400 Bad Request", False), ("401 Unauthorized", True), ("403 Forbidden", False), ("404 Not Found", True),
        ("409 Conflict", True), ("413 Too Large", False), ("422 Unprocessable", False), ("451 Unavailable", False),
    ],
)  # fmt: skip
def test_a_hub_that_refuses_ends_no_role_whatever_it_says(
    hub: FakeHub, client: HubClient, status: str, may_pass: bool
) -> None:
    """A node has cases to answer and a validator votes to give: a hub could silence both by a word."""
    hub.says(b"no", status)
    with pytest.raises(Refused) as caught:
        client.ask_opinion(SUBMISSION)
    assert not is_fatal(caught.value)
    assert caught.value.may_pass is may_pass


def test_a_refusal_that_may_pass_is_asked_again(hub: FakeHub, client: HubClient) -> None:
    """The hub of a run that starts answers before it has its spec."""
    clock = VirtualClock()
    clock.meanwhile = lambda: hub.says(b'{"ready": 1}')
    role = Connection.__new__(Connection)
    role.peers, role.settings, role._hub = PeerSettings(), cast(Any, SimpleNamespace(poll_seconds=0.1)), None
    role._clock = clock
    hub.says(b"not yet", "404 Not Found")
    assert role.retry(client.status, "asking") == {"ready": 1}
    hub.says(b"never", "403 Forbidden")
    with pytest.raises(Refused):
        role.retry(client.status, "asking")


@pytest.mark.parametrize(
    ("said", "is_obeyed"),
    [
        ("1", True), ("0", True), ("999999", False), ("9" * 4000, False), ("-1", False), ("1.5", False), ("", False),
        ("Fri, 31 Dec 1999 23:59:59 GMT", False),
    ],
)  # fmt: skip
def test_a_hub_that_says_when_to_send_again_is_obeyed_within_the_deadline(
    hub: FakeHub, said: str, is_obeyed: bool, file: Path
) -> None:
    """Never earlier than it says, by chance up to half as late again; reads, writes and files alike."""
    clock = VirtualClock()
    client = HubClient(hub.url, RUN, DOMAIN, key=Key.generate(), now=lambda: 0, timeout=1.9, clock=clock)
    for call in (
        lambda: client.post_receipt(b"{}"), client.status, lambda: client.download(ROOT, file.with_name("new"), cap=99)
    ):  # fmt: skip
        clock.waits.clear()
        hub.says(b"not yet", "503 Service Unavailable", header=f"Retry-After: {said}")
        clock.meanwhile = lambda: None
        with pytest.raises(Unavailable, match="not yet"):
            call()
        assert len(clock.waits) == is_obeyed
        assert all(1 <= wait <= 1.5 for wait in clock.waits)
        clock.meanwhile = lambda: hub.says(b"null")
        if is_obeyed:
            with suppress(ProtocolViolation):  # these are no bytes of the file
                call()
    client.close()


def test_who_waits_for_news_is_told_at_once_that_there_are_too_many(hub: FakeHub) -> None:
    """And not within the call: it may have better to do."""
    clock = VirtualClock()
    client = HubClient(hub.url, RUN, DOMAIN, timeout=60, clock=clock)
    hub.says(b"too many", "503 Service Unavailable", header="Retry-After: 15")
    with pytest.raises(TryAgain) as refused:
        list(client.receipts(0, wait=20))
    assert clock.waits == []
    pauses = {refused.value.pause for _ in range(100)}
    assert all(15 <= pause <= 22.5 for pause in pauses)
    assert len(pauses) > 50, "not all come back together"
    client.close()


def test_no_hub_keeps_a_client_away_for_long() -> None:
    assert TryAgain("go away", 999_999).pause <= 1.5 * RETRY_MOST
