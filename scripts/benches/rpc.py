"""JSON-RPC: what a submission and an idle role ask of an endpoint, counted by a proxy before Anvil, whose blocks come at intervals.

A *request* is one of HTTP; a *call* is one of JSON-RPC, which providers bill: a batch is one request of several calls. "Idle" is a
role whose book finds a new block without events at each poll, at the default `chain.poll_seconds`: what a public chain is like.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests
from eth_utils import keccak
from swarm.anvil import Anvil
from swarm.world import World

from benches import Bench, Cost
from protocol.chain import Chain, Sender
from protocol.chain.settings import ChainSettings
from protocol.chain.sync import Book
from protocol.identity import Key
from protocol.submission import SubmissionRef

_SUBMISSIONS, _WARM = 6, 2
_POLLS, _SETTLED = 20, 64
_MINUTE = 60.0


class Proxy:
    """Passes on to Anvil, and counts."""

    def __init__(self, upstream: str) -> None:
        self.requests = self.calls = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked = json.loads(body)
                outer.requests += 1
                outer.calls += len(asked) if isinstance(asked, list) else 1
                headers = {"Content-Type": "application/json"}
                answer = requests.post(upstream, data=body, headers=headers, timeout=10).content
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def counted(self) -> tuple[int, int]:
        return self.requests, self.calls

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def run() -> Bench:
    bench = Bench("rpc")
    with _world() as (world, proxy):
        asked, called = _submission(world, proxy)
        bench.rows.append(Cost("submission: HTTP requests", "requests", asked, None, None, 6))
        bench.rows.append(Cost("submission: calls", "calls", called, None, None, None))
        asked, called = _idle(world, proxy)
        bench.rows.append(Cost("idle role, a minute: HTTP requests", "requests", asked, None, None, 6))
        bench.rows.append(Cost("idle role, a minute: calls", "calls", called, None, None, 20))
    return bench


@contextmanager
def _world() -> Iterator[tuple[World, Proxy]]:
    with tempfile.TemporaryDirectory() as folder:
        anvil = Anvil(Path(folder))
        proxy = Proxy(anvil.rpc)
        try:
            yield World.fresh(anvil), proxy
        finally:
            proxy.close()
            anvil.stop()


def _submission(world: World, proxy: Proxy) -> tuple[float, float]:
    """(requests, calls) of one, sent while blocks come every second; after some, for the sender learns how long they take."""
    operator, node = Key.generate(), Key.generate()
    world.seat_node(operator, node)
    beacon = world.publish(0)
    world.sender(node)
    sender = Sender(Chain(proxy.url, world.chain.runs.address), node)
    world.anvil.request("evm_setAutomine", False)
    world.anvil.request("evm_setIntervalMining", 1)
    before = proxy.counted
    for number in range(_WARM + _SUBMISSIONS):
        if number == _WARM:
            before = proxy.counted
        ref = SubmissionRef(node.address, 0, number, keccak(text=str(number)))
        sender.send(sender.chain.submit(world.run, ref, 1, beacon))
    after = proxy.counted
    world.anvil.request("evm_setIntervalMining", 0)
    world.anvil.request("evm_setAutomine", True)
    return (after[0] - before[0]) / _SUBMISSIONS, (after[1] - before[1]) / _SUBMISSIONS


def _idle(world: World, proxy: Proxy) -> tuple[float, float]:
    """(requests, calls) of a minute of polls."""
    book = Book(Chain(proxy.url, world.chain.runs.address), world.run)
    book.poll()
    for _ in range(_SETTLED):  # past the first looks at what has settled
        world.anvil.request("evm_mine")
    book.poll()
    before = proxy.counted
    for _ in range(_POLLS):
        world.anvil.request("evm_mine")
        book.poll()
    after = proxy.counted
    book.close()
    polls = _MINUTE / float(ChainSettings.model_fields["poll_seconds"].default) / _POLLS
    return (after[0] - before[0]) * polls, (after[1] - before[1]) * polls
