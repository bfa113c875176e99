"""Relays pass a delta on before they have applied it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import httpx
import pytest

from protocol.errors import Unavailable
from protocol.shardcast import delta as codec
from protocol.shardcast.client import Client
from protocol.shardcast.holding import COMPLETE, Holding
from protocol.shardcast.source import Source

from . import faults
from .conftest import DEADLINE, Cast, contents, relay_at, wait_until
from .deltas import MODEL, SHARD, Run, received
from .faults import Request

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def blocked(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event, Callable[[], None]]:
    """Applying a delta waits in the thread that says so: set when it is reached, to be set for it to go on, and to say so."""
    apply, reached, go, waiting = codec.apply, threading.Event(), threading.Event(), set[int]()

    def wait(*arguments: object, **options: object) -> None:
        if threading.get_ident() in waiting:
            reached.set()
            assert go.wait(DEADLINE)
        apply(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(codec, "apply", wait)
    return reached, go, lambda: waiting.add(threading.get_ident())


def test_a_relay_serves_a_delta_while_it_applies_it_itself(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(cast, 1)
    relay, node = run.holder(0, "relay", relays=True), run.holder(0, "node")
    server = cast.serve(relay.store)
    reached, go, wait_here = blocked(monkeypatch)

    def bring() -> None:
        wait_here()
        run.fetch(relay, 1)

    thread = threading.Thread(target=bring)
    thread.start()
    try:
        assert reached.wait(DEADLINE)
        run.fetch(node, 1, [relay_at(server.url)])
        assert not relay.store.holds(1)
        assert received(node) == run.manifests[1].delta_bytes
        growing = relay.store.growing(1)
        assert growing is not None
        assert growing.has_delta
        told = growing.holding(0, 0.0)
        assert not told.held.any()
        assert told.coming.all()
        assert growing.open_range(MODEL, 0, 10) is None, "nothing of the version itself has verified"
        fd = growing.open_range(f".delta/{MODEL}", 0, 10)
        assert fd is not None
        os.close(fd)
        assert growing.open_range(".delta/../x", 0, 10) is None
    finally:
        go.set()
        thread.join(DEADLINE)
    assert contents(relay.store.folder(1)) == run.files[1]


def test_a_delta_passes_a_relay_chunk_by_chunk_and_the_origin_gives_each_once(cast: Cast) -> None:
    run = Run(cast, 1)
    relay, node = run.holder(0, "relay", relays=True), run.holder(0, "node", patience=DEADLINE)
    given, spared, go = list[str](), list[str](), threading.Event()

    def give(request: Request) -> None:
        if given and not go.is_set():
            return faults.be_busy(request)
        given.append(request.target)
        return request.serve()

    def refuse(request: Request) -> None:
        spared.append(request.target)
        faults.be_busy(request)

    origin, same = (replace(run.scripted(1, script), is_relay=False) for script in (give, refuse))
    passing = relay_at(cast.serve(relay.store).url)
    threads = [threading.Thread(target=lambda: run.fetch(relay, 1, [origin]))]
    threads.append(threading.Thread(target=lambda: run.fetch(node, 1, [passing, same])))
    try:
        threads[0].start()
        wait_until(lambda: (held := _of_delta(relay)) is not None and held.held.sum() == 1)
        threads[1].start()
        wait_until(lambda: received(node) > 0)
        assert len(given) == 1, "the rest is nowhere yet"
    finally:
        go.set()
        for thread in threads:
            thread.join(DEADLINE)
    assert node.statistics.bytes_from == {"relay": run.manifests[1].delta_bytes}
    assert not spared, "the node waits at the relay for what is coming there"
    assert sorted(given) == [f"/v/1/delta/{MODEL}", f"/v/1/delta/{SHARD}"]


def _of_delta(relay: Client) -> Holding | None:
    growing = relay.store.growing(1)
    return None if growing is None else growing.delta_holding(0, 0.0)


def test_whoever_is_asked_says_what_it_has_of_a_delta(cast: Cast) -> None:
    run = Run(cast, 1)
    whole = cast.client(cast.store("whole"))
    run.fetch(whole, 1)

    def told(url: str, step: int) -> tuple[int, bytes]:
        answer = httpx.get(f"{url}/v/{step}/delta/holding?after=0&wait=0", timeout=DEADLINE)
        return answer.status_code, answer.content

    assert told(run.server.url, 1) == (200, COMPLETE)
    assert told(run.server.url, 0) == (410, b""), "the first version has none"
    assert told(cast.serve(whole.store).url, 1) == (410, b""), "it was fetched whole"
    assert told(run.server.url, 2) == (404, b""), "it may come"


def test_a_relay_that_has_nothing_yet_is_waited_for(cast: Cast) -> None:
    run = Run(cast, 1)
    relay, node = run.holder(0, "relay", relays=True), run.holder(0, "node", patience=DEADLINE)
    server = cast.serve(relay.store)
    thread = threading.Thread(target=lambda: run.fetch(node, 1, [relay_at(server.url)]))
    thread.start()
    wait_until(lambda: server.counts.requests > 0)
    run.fetch(relay, 1)
    thread.join(DEADLINE)
    assert contents(node.store.folder(1)) == run.files[1]
    assert received(node) == run.manifests[1].delta_bytes


def test_a_relay_that_fetches_the_whole_says_that_no_delta_will_come(cast: Cast) -> None:
    """Nobody waits for what it never gets; the one that has it is asked."""
    run = Run(cast, 1)
    relay, node = cast.client(cast.store("relay"), relays=True), run.holder(0, "node", patience=DEADLINE)
    server = cast.serve(relay.store)
    half = run.scripted(1, Request.serve, lambda request: _half(request))
    thread = threading.Thread(target=lambda: suppressed(relay, run, half))
    thread.start()
    try:
        wait_until(lambda: relay.store.growing(1) is not None)
        url = f"{server.url}/v/1/delta/{MODEL}"
        assert httpx.get(url, headers={"Range": "bytes=0-9"}, timeout=DEADLINE).status_code == 410
        run.fetch(node, 1, [relay_at(server.url), run.source])
        assert node.statistics.bytes_from == {"origin": run.manifests[1].delta_bytes}
        assert not node.statistics.violations
    finally:
        relay.close()
        thread.join(DEADLINE)


def _half(request: Request) -> None:
    request.serve() if request.target.endswith(MODEL) else faults.be_busy(request)


def suppressed(relay: Client, run: Run, source: Source) -> None:
    with suppress(Unavailable):
        run.fetch(relay, 1, [source])
