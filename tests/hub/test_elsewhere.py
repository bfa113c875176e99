"""A hub may lead a reader to its bucket: once, under rules of the reader's own, and never to the reader's harm."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from protocol.deadline import plain_address
from protocol.errors import HashMismatch, Unavailable
from protocol.hub import elsewhere as elsewhere_module
from protocol.hub.client import HubClient
from protocol.hub.wire import Refused
from protocol.reach import Reach
from protocol.signing import Domain
from tests.clock import VirtualClock
from tests.hub.desk import damaged

DATA = b"rollouts" * 100
ROOT = hashlib.sha256(DATA).digest()


@dataclass
class Machine:
    """Answers every GET as it is told, and notes what it was asked."""

    answer: Callable[[BaseHTTPRequestHandler], None]
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def machine(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[Machine]:
    made = Machine(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            made.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def sends(data: bytes, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    return answer


def leads_to(url: str, data: bytes = DATA) -> Callable[[BaseHTTPRequestHandler], None]:
    """A hub that sends its readers there, and the file to who does not ask to be led."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        if "direct=1" in request.path:
            sends(b"", 307, Location=url, **{"Set-Cookie": "a=b"})(request)
        else:
            sends(data)(request)

    return answer


@contextmanager
def reader(hub: Machine, clock: VirtualClock | None = None) -> Iterator[HubClient]:
    client = HubClient(hub.url, 1, Domain(1, "0x" + "11" * 20), timeout=5, clock=clock or VirtualClock())
    try:
        yield client
    finally:
        client.close()


def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hubs are on the Internet, as their readers see it."""
    monkeypatch.setattr(elsewhere_module, "hub_reach", lambda answer: Reach.FAR)


def asked_to_be_led(hub: Machine) -> list[bool]:
    return ["direct=1" in path for path, _ in hub.asked]


def test_nothing_of_the_client_is_sent_along(tmp_path: Path) -> None:
    with machine(sends(DATA)) as place, machine(leads_to(f"{place.url}/x?signature=1")) as hub, reader(hub) as client:
        assert client.download(ROOT, tmp_path / "x", cap=len(DATA))
        assert [path for path, _ in place.asked] == ["/x?signature=1"]
        headers = place.asked[0][1]
        assert not any(name.startswith("murmur") or name in ("cookie", "authorization") for name in headers)
        assert asked_to_be_led(hub) == [True]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "127.1", "0.0.0.0", "10.0.0.1"]
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_hub_on_the_internet_leads_nobody_into_a_network_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, host: str
) -> None:
    far(monkeypatch)
    with machine(sends(DATA)) as place, machine(leads_to(f"{scheme}://{host}:{place.port}/")) as hub:
        place_connections: list[object] = []
        monkeypatch.setattr("httpcore.SyncBackend.connect_tcp", counting(place_connections, hub.port))
        with reader(hub) as client:
            assert client.download(ROOT, tmp_path / "x", cap=len(DATA))
        assert (place.asked, place_connections) == ([], [])
        assert asked_to_be_led(hub) == [True, False]


def counting(connections: list[object], hub_port: int) -> Callable[..., object]:
    """In place of connecting: notes everything but connections to the hub."""
    from httpcore import SyncBackend

    real = SyncBackend.connect_tcp

    def connect(self: SyncBackend, host: str, port: int, *rest: object, **named: object) -> object:
        if port != hub_port:
            connections.append((host, port))
        return real(self, host, port, *rest, **named)  # type: ignore[arg-type]

    return connect


@pytest.mark.parametrize(
    ("ip", "reach"),
    [
        ("8.8.8.8", Reach.FAR), ("2001:4860:4860::8888", Reach.FAR), ("192.168.1.2", Reach.NEAR), ("fd00::1", Reach.NEAR),
        ("100.64.0.1", Reach.NEAR), ("127.0.0.5", Reach.SELF), ("::1", Reach.SELF), ("::ffff:127.0.0.1", Reach.SELF),
        ("::ffff:10.0.0.1", Reach.NEAR), ("169.254.169.254", Reach.NOWHERE), ("fe80::1%eth0", Reach.NOWHERE),
        ("0.0.0.0", Reach.NOWHERE), ("::", Reach.NOWHERE), ("224.0.0.1", Reach.NOWHERE),
    ],
)  # fmt: skip
def test_how_near_an_address_is(ip: str, reach: Reach) -> None:
    assert Reach.of(plain_address(ip)) == reach


@pytest.mark.parametrize(
    "url",
    [
        "", "/x", "ftp://127.0.0.1/x", "file:///etc/passwd", "http://", "http://me:pw@127.0.0.1:{port}/", "http://127.0.0.1:{port}/#x",
        "http://127.0.0.1:99999/", "http://169.254.169.254/latest", "http://127.0.0.1:{port}/" + "a" * 9000,
        "//127.0.0.1:{port}/",
    ],
)  # fmt: skip
def test_a_place_that_is_none_is_not_gone_to(tmp_path: Path, url: str) -> None:
    with machine(sends(DATA)) as place, machine(leads_to(url.format(port=place.port))) as hub, reader(hub) as client:
        assert client.download(ROOT, tmp_path / "x", cap=len(DATA))
        assert place.asked == []
        assert asked_to_be_led(hub) == [True, False]


def test_a_hub_whose_redirect_is_no_url_is_out_of_order(tmp_path: Path) -> None:
    with machine(leads_to("http://[::1")) as hub, reader(hub) as client, pytest.raises(Unavailable):
        client.download(ROOT, tmp_path / "x", cap=len(DATA))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "answer",
    [
        sends(b"", 302, Location="/again"), sends(b"", 307, Location="/again"), sends(b"no", 403), sends(DATA[:-1]),
        sends(damaged(DATA)), sends(DATA + b"x"), sends(DATA, 206), sends(b"", 200, **{"Content-Length": "1000"}),
    ],
    ids=["a redirect", "another", "refused", "short", "other bytes", "too long", "a part", "broken off"],
)  # fmt: skip
def test_what_goes_wrong_there_costs_one_request_and_the_hub_sends_the_file(
    tmp_path: Path, answer: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    with machine(answer) as place, machine(leads_to(f"{place.url}/x")) as hub, reader(hub) as client:
        assert client.download(ROOT, tmp_path / "x", cap=len(DATA))
        assert (tmp_path / "x").read_bytes() == DATA
        assert [path for path, _ in place.asked] == ["/x"]
        assert asked_to_be_led(hub) == [True, False]


def test_a_place_that_was_of_no_use_is_not_asked_for_again_before_some_minutes_have_passed(tmp_path: Path) -> None:
    clock = VirtualClock()
    with machine(sends(b"no", 403)) as place, machine(leads_to(place.url)) as hub, reader(hub, clock) as client:
        for _ in range(3):
            assert client.download(ROOT, tmp_path / "x", cap=len(DATA))
        assert asked_to_be_led(hub) == [True, False, False, False]
        clock.sleep(601)
        assert client.download(ROOT, tmp_path / "x", cap=len(DATA))
        assert asked_to_be_led(hub)[4:] == [True, False]


def test_a_lie_of_the_hub_itself_is_told_at_once(tmp_path: Path) -> None:
    with machine(sends(damaged(DATA))) as hub, reader(hub) as client:
        with pytest.raises(HashMismatch):
            client.download(ROOT, tmp_path / "x", cap=len(DATA))
        assert len(hub.asked) == 1


def test_a_hub_that_leads_who_did_not_ask_is_refused(tmp_path: Path) -> None:
    with (
        machine(sends(b"no", 403)) as place,
        machine(sends(b"", 307, Location=place.url)) as hub,
        reader(hub) as client,
    ):
        with pytest.raises(Refused, match="307"):
            client.download(ROOT, tmp_path / "x", cap=len(DATA))
        assert len(place.asked) == 1
