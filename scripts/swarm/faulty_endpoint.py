"""An RPC endpoint that stands before a real one, counts what it is asked, and misbehaves on request."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import urllib3


class FaultyEndpoint:
    """Passes requests on to `upstream`. `fault(method, params)` may return the bytes to answer with instead, or raise Hang, Drop or Refuse;
    `whole(answers)` may change what is answered to a batch; `headers` go out with each answer."""

    def __init__(self, upstream: str) -> None:
        self.fault: Callable[[str, Any], bytes | None] = lambda method, params: None
        self.whole: Callable[[list[Any]], Any] = lambda answers: answers
        self.headers: dict[str, str] = {}
        self.upstream = upstream
        self._connections = urllib3.connection_from_url(upstream, maxsize=16)
        self.requests = 0
        """Of HTTP."""
        self.asked: Counter[str] = Counter()
        """Calls by method: what a provider bills."""
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = (
                True  # head and body are two writes, and the second would wait for an acknowledgement
            )

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests += 1
                try:
                    answer = outer.batch(asked) if isinstance(asked, list) else outer.one(asked)
                except Hang:
                    outer.released.wait(30)
                    return
                except Drop:
                    self.close_connection = True
                    return
                except Refuse as refusal:
                    self.send_response(refusal.status)
                    for name, value in {**refusal.headers, "Content-Length": "0"}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    return
                self.send_response(200)
                for name, value in {**outer.headers, "Content-Length": str(len(answer))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def counted(self) -> tuple[int, int]:
        """(HTTP requests, calls) so far."""
        return self.requests, self.asked.total()

    def one(self, asked: dict[str, Any]) -> bytes:
        self.asked[asked["method"]] += 1
        answer = self.fault(asked["method"], asked["params"])
        return self._upstream(asked) if answer is None else answer

    def batch(self, asked: list[dict[str, Any]]) -> bytes:
        """An answer that is no JSON spoils all of it."""
        found = [self.one(each) for each in asked]
        try:
            answers = [json.loads(answer) for answer in found]
        except ValueError:
            return next(answer for answer in found if not _is_json(answer))
        for each, answer in zip(asked, answers, strict=True):
            if isinstance(answer, dict):
                answer["id"] = each["id"]
        return json.dumps(self.whole(answers)).encode()

    def _upstream(self, asked: dict[str, Any]) -> bytes:
        body, headers = json.dumps(asked).encode(), {"Content-Type": "application/json"}
        return self._connections.urlopen("POST", "/", body=body, headers=headers, timeout=10, retries=False).data

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._connections.close()


def _is_json(answer: bytes) -> bool:
    try:
        json.loads(answer)
    except ValueError:
        return False
    return True


class Hang(Exception):
    """Never answer."""


class Drop(Exception):
    """Close the connection without a word."""


class Refuse(Exception):
    """Answer with this status and these headers alone."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(status)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def result(value: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 0, "result": value}).encode()


def error(code: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 0, "error": {"code": code, "message": message}}).encode()
