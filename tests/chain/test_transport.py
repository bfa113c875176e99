"""What of HTTP an endpoint may ask for: a connection kept or closed, a name and a password, another place, a compressed answer."""

from __future__ import annotations

import gzip
import threading
from base64 import b64encode
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

from protocol.chain.transport import Failed, RpcTransport

Seen = tuple[int, str, bytes, Message]
"""(port it came from, path, body, headers)"""


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[Seen]]]:
    """The URL of one that does what the path says, and what it is asked."""
    seen: list[Seen] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.client_address[1], self.path, body, self.headers))
            action, _, there = self.path[1:].partition("/")
            answer = gzip.compress(b'{"result": 1}') if action == "gzip" else b'{"result": 1}'
            self.send_response(int(action) if action.isdigit() else 200)
            self.send_header("Content-Length", str(len(answer)))
            if action.isdigit():
                self.send_header("Location", f"/{unquote(there)}")
            if action == "gzip":
                self.send_header("Content-Encoding", "gzip")
            if action == "close":
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()


def ask(transport: RpcTransport, url: str, body: object = ()) -> Any:
    return transport.post(url, body, seconds=5, cap=100, now=0)[0]


def test_one_connection_serves_all_questions_and_another_one_is_made_when_it_was_closed(
    endpoint: tuple[str, list[Seen]],
) -> None:
    (url, seen), transport = endpoint, RpcTransport()
    for path in ("keep", "keep", "close", "close"):
        assert ask(transport, f"{url}/{path}") == {"result": 1}
    kept, again, closed, anew = (port for port, *_ in seen)
    assert kept == again and closed != anew


def test_a_name_and_a_password_in_the_url_are_told_as_http_has_it(endpoint: tuple[str, list[Seen]]) -> None:
    (url, seen), transport = endpoint, RpcTransport()
    ask(transport, url.replace("//", "//al%20ice:p%40ss@") + "/keep")
    assert seen[0][3]["Authorization"] == f"Basic {b64encode(b'al ice:p@ss').decode()}"
    ask(transport, f"{url}/keep")
    assert "Authorization" not in seen[1][3]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_who_sends_elsewhere_is_not_followed(endpoint: tuple[str, list[Seen]], status: int) -> None:
    """It could have us post anywhere, and each step would take its time."""
    (url, seen), transport = endpoint, RpcTransport()
    with pytest.raises(Failed, match=f"HTTP {status}: sends whoever asks elsewhere") as failed:
        ask(transport, f"{url}/{status}/keep")
    assert (failed.value.reason, len(seen)) == ("refused", 1)


def test_a_compressed_answer_is_read(endpoint: tuple[str, list[Seen]]) -> None:
    url, seen = endpoint
    assert ask(RpcTransport(), f"{url}/gzip") == {"result": 1}
    assert "gzip" in seen[0][3]["Accept-Encoding"]


def test_a_refused_connection_is_not_told_as_a_late_answer() -> None:
    with pytest.raises(Failed, match="connection refused") as refused:
        ask(RpcTransport(), "http://127.0.0.1:9")
    assert refused.value.reason == "unreachable"
