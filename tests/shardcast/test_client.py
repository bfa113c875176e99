"""Whatever its sources do, a client ends with exactly the trainer's bytes or with an error that says why, in time."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from swarm.pace import Patience

from protocol import canonical, signing
from protocol.errors import (
    DeadlineExceeded,
    LockHeld,
    PreflightError,
    Unavailable,
    UsageError,
    VersionMismatch,
)
from protocol.identity import Key
from protocol.shardcast import fetch as fetch_module
from protocol.shardcast import schedule
from protocol.shardcast.connection import ConnectionPool, Timeouts
from protocol.shardcast.manifest import Chunk, Manifest, describe, sign
from protocol.shardcast.partial import Partial
from protocol.shardcast.source import Source

from . import faults
from .conftest import CHUNK, DEADLINE, QUICK, RUN, Cast, contents, origin_at, relay_at, wait_until
from .faults import FAILURES, VIOLATIONS, Request, Script, Scripted

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def files(cast: Cast) -> dict[str, bytes]:
    return {
        "config.json": cast.bytes(300),
        "empty": b"",
        "exact": cast.bytes(CHUNK),
        "model.safetensors": cast.bytes(9 * CHUNK + 17),
    }


def test_files_pass_from_an_origin_through_a_relay_to_a_client_unchanged(cast: Cast, files: dict[str, bytes]) -> None:
    manifest, origin = cast.origin(files)
    relay = cast.relay(manifest, [origin_at(origin.url)])
    client = cast.client(timeouts=Timeouts())
    folder = client.fetch(1, manifest.digest, [relay_at(relay.url)], DEADLINE)
    assert contents(folder) == files
    assert folder == client.store.folder(1)
    assert client.store.manifest(1) == relay.store.manifest(1)
    assert client.statistics.bytes_from == {"relay": manifest.total_bytes}
    wait_until(lambda: relay.counts.bytes_served == manifest.total_bytes)
    assert client.statistics.failovers == 0


def test_a_version_of_empty_files_needs_no_byte(cast: Cast) -> None:
    manifest, origin = cast.origin({"a": b"", "b": b""})
    assert contents(cast.client().fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)) == {"a": b"", "b": b""}


def test_no_byte_is_asked_for_twice(cast: Cast, files: dict[str, bytes]) -> None:
    manifest, origin = cast.origin(files)
    relays = [cast.relay(manifest, [origin_at(origin.url)], name) for name in ("north", "south")]
    client = cast.client(timeouts=Timeouts())
    sources = [relay_at(relay.url, name) for relay, name in zip(relays, ("north", "south"), strict=True)]
    client.fetch(1, manifest.digest, [*sources, origin_at(origin.url)], DEADLINE)
    assert sum(client.statistics.bytes_from.values()) == manifest.total_bytes
    servers = [origin, *relays]
    wait_until(lambda: sum(server.counts.bytes_served for server in servers) == 3 * manifest.total_bytes)


def test_relays_carry_the_load_while_they_work(cast: Cast) -> None:
    manifest, origin = cast.origin({"model": cast.bytes(120 * CHUNK)})
    relay = cast.relay(manifest, [origin_at(origin.url)])
    client = cast.client()
    client.fetch(1, manifest.digest, [origin_at(origin.url), relay_at(relay.url)], DEADLINE)
    assert client.statistics.bytes_from["relay"] > client.statistics.bytes_from["origin"]


def test_a_crowd_of_hanging_relays_does_not_keep_a_client_from_the_origin(cast: Cast) -> None:
    files = {"model": cast.bytes(10 * CHUNK)}
    manifest, origin = cast.origin(files)
    hanging = cast.scripted(origin.store.manifest(1), files, faults.hang)
    crowd = [relay_at(hanging.url, f"crowd {number}") for number in range(300)]
    client = cast.client()
    assert contents(client.fetch(1, manifest.digest, [*crowd, origin_at(origin.url)], DEADLINE)) == files
    assert not client.statistics.violations


def test_a_version_that_is_held_is_not_fetched_again(cast: Cast) -> None:
    manifest, origin = cast.origin({"model": b"weights"})
    client = cast.client()
    folder = client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    assert client.fetch(1, manifest.digest, [], DEADLINE) == folder


def test_a_version_that_the_chain_has_replaced_is_fetched_anew(cast: Cast) -> None:
    old, first = cast.origin({"model": b"old"})
    new, second = cast.origin({"model": b"new"})
    client = cast.client()
    client.fetch(1, old.digest, [origin_at(first.url)], DEADLINE)
    folder = client.fetch(1, new.digest, [origin_at(second.url)], DEADLINE)
    assert contents(folder) == {"model": b"new"}


def test_a_version_whose_manifest_was_damaged_on_disk_is_fetched_anew(cast: Cast) -> None:
    manifest, origin = cast.origin({"model": b"weights"})
    client = cast.client()
    folder = client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    (folder / ".manifest.json").write_bytes(b"rot")
    client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    assert client.store.manifest(1) == origin.store.manifest(1)


def test_a_digest_of_the_wrong_kind_is_the_callers_fault(cast: Cast) -> None:
    manifest, origin = cast.origin({"model": b"weights"})
    client = cast.client()
    with pytest.raises(UsageError):
        client.fetch(1, manifest.digest.hex(), [origin_at(origin.url)], DEADLINE)  # type: ignore[arg-type]
    assert not client.statistics.violations


def test_progress_is_told_up_to_the_whole(cast: Cast, files: dict[str, bytes]) -> None:
    seen: list[tuple[int, int, int]] = []
    manifest, origin = cast.origin(files)
    cast.client(progress=lambda *now: seen.append(now)).fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    assert max(seen) == (1, manifest.total_bytes, manifest.total_bytes)


# ---- sources that fail or lie


def beside_an_honest_source(
    cast: Cast, files: dict[str, bytes], script: Script
) -> tuple[Manifest, Scripted, list[Source]]:
    """A faulty source, and an honest one that is busy until the faulty one has been asked: no luck decides the test."""
    manifest, origin = cast.origin(files)
    signed = origin.store.manifest(1)
    faulty = cast.scripted(signed, files, script)
    honest = cast.scripted(signed, files, lambda r: r.serve() if faulty.file_requests else faults.be_busy(r))
    return manifest, faulty, [relay_at(faulty.url, "faulty"), origin_at(honest.url, "honest")]


@pytest.mark.parametrize("script", FAILURES, ids=lambda script: script.__name__)
def test_a_source_that_merely_fails_is_replaced_without_blame(cast: Cast, script: Script) -> None:
    files = {"model": cast.bytes(5 * CHUNK + 1)}
    manifest, faulty, sources = beside_an_honest_source(cast, files, script)
    client = cast.client()
    folder = client.fetch(1, manifest.digest, sources, DEADLINE)
    assert contents(folder) == files
    assert faulty.file_requests
    assert not client.statistics.violations
    assert client.statistics.bytes_from == {"honest": manifest.total_bytes}


@pytest.mark.parametrize("script", VIOLATIONS, ids=lambda script: script.__name__)
def test_a_source_that_breaks_the_rules_is_blamed_and_not_asked_again(cast: Cast, script: Script) -> None:
    files = {"model": cast.bytes(5 * CHUNK + 1)}
    manifest, faulty, sources = beside_an_honest_source(cast, files, script)
    client = cast.client(streams=1)
    folder = client.fetch(1, manifest.digest, sources, DEADLINE)
    assert contents(folder) == files
    assert client.statistics.violations == {"faulty": 1}
    assert client.statistics.bad_chunks == ({"faulty": 1} if script is faults.flip_a_bit else {})
    assert client.statistics.bytes_from == {"honest": manifest.total_bytes}
    assert len(faulty.file_requests) == 1


def test_bytes_behind_an_answer_are_not_taken_for_the_next_one(cast: Cast) -> None:
    files = {"a": cast.bytes(10), "b": cast.bytes(10), "c": cast.bytes(10)}
    manifest, _, sources = beside_an_honest_source(cast, files, faults.add_a_surplus)
    client = cast.client(streams=1)
    assert contents(client.fetch(1, manifest.digest, sources, DEADLINE)) == files
    assert "honest" not in client.statistics.violations


def test_a_redirect_is_never_followed(cast: Cast) -> None:
    elsewhere = cast.scripted(b"", {}, faults.hang)

    def redirect(request: Request) -> None:
        request.send(request.head("302 Found", Location=f"{elsewhere.url}{request.target}", Content_Length="0"))

    manifest, _, sources = beside_an_honest_source(cast, {"model": cast.bytes(CHUNK)}, redirect)
    cast.client().fetch(1, manifest.digest, sources, DEADLINE)
    assert elsewhere.requests == []


def test_one_flipped_bit_on_a_relay_is_blamed_on_it_and_costs_one_chunk(cast: Cast) -> None:
    content = cast.bytes(12 * CHUNK)
    manifest, origin = cast.origin({"model": content})
    relay = cast.relay(manifest, [origin_at(origin.url)])
    with (relay.store.folder(1) / "model").open("r+b") as file:
        file.seek(7 * CHUNK + 100)
        file.write(bytes([content[7 * CHUNK + 100] ^ 4]))
    client = cast.client(streams=1)

    def wait_for_the_lie(request: Request) -> None:
        request.serve() if client.statistics.bad_chunks else faults.be_busy(request)

    honest = cast.scripted(origin.store.manifest(1), {"model": content}, wait_for_the_lie)
    folder = client.fetch(1, manifest.digest, [relay_at(relay.url), origin_at(honest.url)], DEADLINE)
    assert contents(folder) == {"model": content}
    assert client.statistics.bad_chunks == client.statistics.violations == {"relay": 1}
    assert client.statistics.bytes_from == {"relay": 7 * CHUNK, "origin": 5 * CHUNK}, "only its chunk was wrong"


def test_what_a_liar_was_sending_besides_is_not_taken_any_more(cast: Cast) -> None:
    files = {"model": cast.bytes(60 * CHUNK)}
    manifest, origin = cast.origin(files)
    client = cast.client(streams=2, timeouts=Timeouts())
    is_first, is_long, is_sending = threading.Lock(), threading.Lock(), threading.Event()

    def lie_beside_a_long_answer(request: Request) -> None:
        if is_first.acquire(blocking=False):
            request.serve()  # makes it known as fast, so that it is asked for many chunks at once
        elif len(request.body) > CHUNK and is_long.acquire(blocking=False):
            request.send(request.head() + request.body[:CHUNK])
            is_sending.set()
            wait_until(lambda: bool(client.statistics.violations))
            request.send(request.body[CHUNK:])
        else:
            assert is_sending.wait(DEADLINE)
            request.send(
                request.head() + bytes([request.body[0] ^ 1]) + request.body[1:]
            )  # no honest chunk goes before

    signed = origin.store.manifest(1)
    faulty = cast.scripted(signed, files, lie_beside_a_long_answer)
    honest = cast.scripted(signed, files, lambda r: r.serve() if client.statistics.violations else faults.be_busy(r))
    sources = [relay_at(faulty.url, "faulty"), origin_at(honest.url, "honest")]
    assert contents(client.fetch(1, manifest.digest, sources, DEADLINE)) == files
    assert client.statistics.bytes_from["faulty"] <= 3 * CHUNK


def test_who_lied_about_a_version_is_remembered_by_the_next_attempt(cast: Cast) -> None:
    files = {"model": cast.bytes(2 * CHUNK)}
    manifest, faulty, sources = beside_an_honest_source(cast, files, faults.flip_a_bit)
    client = cast.client(streams=1)
    with pytest.raises(Unavailable, match="faulty: HashMismatch"):
        client.fetch(1, manifest.digest, sources[:1], DEADLINE)
    asked = len(faulty.requests)
    client.fetch(1, manifest.digest, sources, DEADLINE)
    assert len(faulty.requests) == asked


def test_when_everybody_lied_a_new_attempt_gives_everybody_another_chance(cast: Cast) -> None:
    """A chunk may also be spoilt on its way: an only source must not be lost for good."""
    files = {"model": cast.bytes(2 * CHUNK)}
    manifest, origin = cast.origin(files)
    scripts = [faults.flip_a_bit, Request.serve, Request.serve]
    server = cast.scripted(origin.store.manifest(1), files, lambda request: scripts.pop(0)(request))
    client = cast.client(streams=1)
    with pytest.raises(Unavailable):
        client.fetch(1, manifest.digest, [origin_at(server.url)], DEADLINE)
    assert contents(client.fetch(1, manifest.digest, [origin_at(server.url)], DEADLINE)) == files


def test_among_many_liars_one_honest_source_is_enough(cast: Cast) -> None:
    files = {"model": cast.bytes(8 * CHUNK)}
    manifest, origin = cast.origin(files)
    liars = [cast.scripted(origin.store.manifest(1), files, script) for script in VIOLATIONS + FAILURES[1:4]]
    sources = [relay_at(liar.url, f"liar {number}") for number, liar in enumerate(liars)]
    client = cast.client()
    folder = client.fetch(1, manifest.digest, [*sources, origin_at(origin.url)], DEADLINE)
    assert contents(folder) == files
    assert "origin" not in client.statistics.violations


def test_a_dead_address_an_odd_one_and_one_without_a_name_each_fail_alone(cast: Cast) -> None:
    manifest, origin = cast.origin({"model": cast.bytes(4 * CHUNK)})
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    odd = [f"http://127.0.0.1:{port}", "https://127.0.0.1", "http://a b", "http://[::1", "ftp://x", "", "http://x:0x5"]
    odd += [
        "http://x/path",
        "http://u:p@127.0.0.1:1",
        "http://x\r\nEvil: y",
        "http://127.0.0.1:99999",
        "http://" + "a" * 70,
    ]
    client = cast.client()
    sources = [relay_at(url, f"odd {number}") for number, url in enumerate(odd)]
    client.fetch(1, manifest.digest, [*sources, origin_at(origin.url)], DEADLINE)
    assert client.statistics.bytes_from == {"origin": manifest.total_bytes}


def test_a_source_that_never_accepts_does_not_hold_up_the_end(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_LAG_SECONDS", 0.1)
    manifest, origin = cast.origin({"model": cast.bytes(4 * CHUNK)})
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(address)  # fills the queue; whoever comes now gets no answer at all
        client = cast.client(timeouts=replace(QUICK, connect=DEADLINE))
        patience = Patience(DEADLINE / 2)
        client.fetch(1, manifest.digest, [relay_at(f"http://127.0.0.1:{address[1]}"), origin_at(origin.url)], DEADLINE)
        assert not patience.ended()
        for sock in waiting:
            sock.close()


def test_a_name_that_is_never_resolved_does_not_outlast_the_deadline(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(30) and [])
    patience = Patience(2)
    with pytest.raises(DeadlineExceeded, match="not resolved in time"):
        cast.client(timeouts=replace(QUICK, connect=0.1)).fetch(1, bytes(32), [relay_at("http://relay:80")], 0.3)
    assert not patience.ended()
    released.set()


def test_a_slow_source_does_not_hold_up_the_end(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never idle and above the slowest rate allowed: only asking another for the same chunk helps."""
    monkeypatch.setattr(schedule, "_LAG_SECONDS", 0.1)
    files = {"model": cast.bytes(4 * CHUNK)}
    manifest, faulty, sources = beside_an_honest_source(cast, files, faults.trickle)
    client = cast.client(timeouts=Timeouts(idle=5.0, floor_rate=1))
    assert contents(client.fetch(1, manifest.digest, sources, DEADLINE)) == files
    assert faulty.file_requests
    assert not client.statistics.violations


def test_a_kept_connection_that_was_closed_meanwhile_is_no_failure(cast: Cast) -> None:
    """Servers may end idle connections at any time."""

    def serve_and_close(request: Request) -> None:
        request.serve()
        request.sock.shutdown(socket.SHUT_RDWR)

    files = {"a": cast.bytes(10), "b": cast.bytes(10), "c": cast.bytes(10)}
    manifest, origin = cast.origin(files)
    closing = cast.scripted(origin.store.manifest(1), files, serve_and_close)
    client = cast.client(streams=1, timeouts=Timeouts())
    client.fetch(1, manifest.digest, [relay_at(closing.url)], DEADLINE)
    assert client.statistics.failovers == 0


def test_a_connection_whose_answer_was_not_read_to_its_end_is_not_used_again(cast: Cast) -> None:
    """Its rest would be taken for the next answer, and an honest source blamed for it."""
    _, origin = cast.origin({"model": cast.bytes(2 * CHUNK)})
    pool, source, end = ConnectionPool(Timeouts()), origin_at(origin.url), time.monotonic() + DEADLINE
    for read, is_kept in ((CHUNK, False), (2 * CHUNK, True)):
        connection = pool.take(source, end)
        connection.ask_range("/v/1/files/model", 0, 2 * CHUNK - 1, 2 * CHUNK, end)
        connection.read(memoryview(bytearray(read)), end)
        pool.give(connection)
        assert (pool.take(source, end) is connection) == is_kept
    pool.close()


# ---- manifests that must not count


def manifest_of(cast: Cast, step: int = 1) -> Manifest:
    folder = cast.root / "described"
    if not folder.exists():
        cast.folder({"model": b"weights"}, "described")
    return describe(folder, RUN, step, chunk_bytes=CHUNK)


def endless(cast: Cast) -> Script:
    def answer(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 50))
        while True:
            request.send(bytes(1 << 16))

    return answer


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda cast: manifest_of(cast).encode(), "BadSignature"),
        (lambda cast: sign(manifest_of(cast), Key.from_secret("0x" + "44" * 32), cast.domain), "BadSignature"),
        (lambda cast: sign(manifest_of(cast, step=2), cast.key, cast.domain), "HashMismatch"),
        (lambda cast: sign(manifest_of(cast), cast.key, cast.domain)[:-1], "Malformed"),
        (lambda cast: b"", "BadSignature"),
        (lambda cast: b"\xff" * 1000, "BadSignature"),
        (endless, "Oversized"),
    ],
    ids=["unsigned", "signed by another", "of another digest", "cut short", "empty", "garbage", "beyond the cap"],
)
def test_nothing_is_fetched_on_the_word_of_a_wrong_manifest(
    cast: Cast, wrong: Callable[[Cast], bytes | Script], reason: str
) -> None:
    server = cast.scripted(wrong(cast), {"model": b"weights"})
    client = cast.client()
    with pytest.raises(Unavailable, match=f"manifest of version 1.*server: {reason}"):
        client.fetch(1, manifest_of(cast).digest, [relay_at(server.url, "server")], DEADLINE)
    assert server.file_requests == []
    assert client.statistics.violations == {"server": 1}
    assert client.store.steps() == ()


def test_a_hostile_manifest_writes_nothing_even_if_the_trainer_signed_it(cast: Cast) -> None:
    entry = manifest_of(cast).files[0]
    hostile = Manifest(RUN, 1, (replace(entry, name="../../escaped"),), CHUNK)
    server = cast.scripted(sign(hostile, cast.key, cast.domain), {"escaped": b"weights"})
    with pytest.raises(Unavailable, match="Malformed"):
        cast.client().fetch(1, hostile.digest, [relay_at(server.url)], DEADLINE)
    assert server.file_requests == []
    assert not [path for path in cast.root.rglob("*escaped*")]


def test_an_honest_source_delivers_the_manifest_that_others_withhold_or_forge(cast: Cast) -> None:
    files = {"model": cast.bytes(CHUNK)}
    manifest, origin = cast.origin(files)
    bad: list[bytes | Script] = [b"forged", faults.hang, faults.drop, faults.not_have_it, faults.talk_garbage]
    sources = [relay_at(cast.scripted(each).url, f"bad {number}") for number, each in enumerate(bad)]
    folder = cast.client().fetch(1, manifest.digest, [*sources, origin_at(origin.url)], DEADLINE)
    assert contents(folder) == files


def test_a_kind_that_a_later_version_publishes_is_refused_by_name_and_no_source_is_blamed(cast: Cast) -> None:
    later = canonical.encode(json.loads(manifest_of(cast).encode()) | {"kind": "adapter"})
    digest = hashlib.sha256(later).digest()
    signature = signing.PublishedManifest(RUN, 1, digest).sign(cast.key, cast.domain).hex()
    server = cast.scripted(b'{"manifest":' + later + b',"signature":"0x' + signature.encode() + b'"}')
    client = cast.client()
    with pytest.raises(VersionMismatch, match="kind 'adapter'") as caught:
        client.fetch(1, digest, [relay_at(server.url)], DEADLINE)
    assert caught.value.exit_code == 10
    assert not client.statistics.violations


# ---- deadlines, resuming, this machine's own faults


def test_a_fetch_ends_at_its_deadline_and_says_what_is_missing_and_why(cast: Cast) -> None:
    files = {"model": cast.bytes(3 * CHUNK)}
    manifest, origin = cast.origin(files)
    hanging = cast.scripted(origin.store.manifest(1), files, faults.hang)
    busy = cast.scripted(origin.store.manifest(1), files, faults.be_busy)
    client = cast.client(timeouts=replace(QUICK, idle=0.5))  # a busy machine takes a while even to say 503
    patience = Patience(5)
    with pytest.raises(DeadlineExceeded) as caught:
        client.fetch(1, manifest.digest, [relay_at(hanging.url, "hanging"), relay_at(busy.url, "busy")], 2.5)
    assert patience.waited > 2.5
    assert not patience.ended()
    assert "3 of 3 missing (model from byte 0" in str(caught.value)
    assert "hanging: timed out" in str(caught.value)
    assert "busy: answers with status 503" in str(caught.value)
    assert client.store.steps() == ()


def test_what_arrived_before_the_deadline_is_not_fetched_again(cast: Cast) -> None:
    files = {"model": cast.bytes(8 * CHUNK), "other": cast.bytes(10)}
    manifest, origin = cast.origin(files)

    def serve_half(request: Request) -> None:
        if request.target.endswith("model") and request.range[1] <= 4 * CHUNK:
            request.serve()
        else:
            faults.be_busy(request)

    half = cast.scripted(origin.store.manifest(1), files, serve_half)
    client = cast.client(streams=1)
    with pytest.raises(DeadlineExceeded):
        client.fetch(1, manifest.digest, [relay_at(half.url, "half")], 0.5)
    kept = client.statistics.bytes_from["half"] // CHUNK
    assert 1 <= kept <= 4
    folder = client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    assert contents(folder) == files
    assert client.statistics.resumed_chunks == kept
    wait_until(lambda: origin.counts.bytes_served == manifest.total_bytes - kept * CHUNK)


@pytest.mark.parametrize("is_touched", [False, True])
def test_what_this_process_has_verified_is_read_again_only_where_somebody_touched_it(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, is_touched: bool
) -> None:
    files = {"model": cast.bytes(8 * CHUNK)}
    manifest, origin = cast.origin(files)

    def serve_half(request: Request) -> None:
        if request.target.endswith("model") and request.range[1] <= 4 * CHUNK:
            request.serve()
        else:
            faults.be_busy(request)

    half = cast.scripted(origin.store.manifest(1), files, serve_half)
    client = cast.client(streams=1)
    with pytest.raises(DeadlineExceeded):
        client.fetch(1, manifest.digest, [relay_at(half.url, "half")], 0.5)
    (draft,) = client.store.root.rglob("model")
    if is_touched:
        with draft.open("r+b") as file:
            file.write(b"rotten")
    read: list[Chunk] = []
    verifies = Partial._verifies
    monkeypatch.setattr(
        Partial, "_verifies", lambda self, chunk, room: read.append(chunk) or verifies(self, chunk, room)
    )
    assert contents(client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)) == files
    assert bool(read) == is_touched
    assert client.statistics.resumed_chunks == client.statistics.bytes_from["half"] // CHUNK - is_touched


def test_a_disk_too_slow_for_the_deadline_holds_up_no_fetch(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt looks at what is here. With an hour for each chunk none would ever come to fetch the rest."""
    files = {"model": cast.bytes(4 * CHUNK)}
    manifest, origin = cast.origin(files)
    client = cast.client()
    with pytest.raises(DeadlineExceeded), client.store.draft(1, manifest.digest.hex(), 0) as draft:
        (draft / "model").write_bytes(files["model"][: 3 * CHUNK])
        raise DeadlineExceeded("crash")
    late = [0.0]
    verifies = Partial._verifies
    monkeypatch.setattr(fetch_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late[0]))
    monkeypatch.setattr(
        Partial, "_verifies", lambda self, *of: (late.append(late.pop() + 3600), verifies(self, *of))[1]
    )
    assert contents(client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)) == files
    assert client.statistics.resumed_chunks == 3


def test_leftovers_that_do_not_verify_are_fetched_again(cast: Cast) -> None:
    files = {"model": cast.bytes(4 * CHUNK)}
    manifest, origin = cast.origin(files)
    client = cast.client()
    with pytest.raises(DeadlineExceeded), client.store.draft(1, manifest.digest.hex(), 0) as draft:
        (draft / "model").write_bytes(files["model"][:CHUNK] + b"rotten" + files["model"][CHUNK + 6 :] + b"too long")
        raise DeadlineExceeded("crash")
    folder = client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    assert contents(folder) == files
    assert client.statistics.resumed_chunks == 3
    wait_until(lambda: origin.counts.bytes_served == CHUNK)


def test_verifying_leftovers_ends_when_the_client_is_closed(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no deadline, since no attempt would ever get further on a slow disk."""
    manifest, origin = cast.origin({"model": cast.bytes(60 * CHUNK)})
    client = cast.client()
    looked: list[Chunk] = []

    def look(_: Partial, chunk: Chunk, room: memoryview) -> bool:
        looked.append(chunk)
        if len(looked) == 3:
            client.close()
        return False

    monkeypatch.setattr(Partial, "holds", look)
    with pytest.raises(Unavailable, match="broken off"):
        client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    assert len(looked) == 3


def test_too_little_space_is_said_before_a_chunk_is_asked_for(cast: Cast) -> None:
    manifest, origin = cast.origin({"model": cast.bytes(2 * CHUNK)})
    client = cast.client(cast.store("small", free_space=lambda folder: CHUNK))
    with pytest.raises(PreflightError, match="bytes free"):
        client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    assert origin.counts.bytes_served == 0


def test_a_fault_of_our_own_ends_the_fetch_at_once(cast: Cast) -> None:
    manifest, origin = cast.origin({"model": cast.bytes(5 * CHUNK)})

    def fail(*_: int) -> None:
        raise ZeroDivisionError

    patience = Patience(DEADLINE / 2)
    with pytest.raises(ZeroDivisionError):
        cast.client(progress=fail, streams=1).fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    assert not patience.ended()


def test_a_machine_without_another_thread_to_give_fails_at_once_and_cleanly(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, origin = cast.origin({"model": b"weights"})
    start, started = threading.Thread.start, []

    def give_two(thread: threading.Thread) -> None:
        if thread.name.startswith("fetch-"):
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", give_two)
    with pytest.raises(PreflightError, match="threads"):
        cast.client().fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    assert not [thread for thread in started if thread.is_alive()]


def test_no_thread_outlives_a_fetch_even_if_sources_hang(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_LAG_SECONDS", 0.1)
    files = {"model": cast.bytes(3 * CHUNK)}
    manifest, _, sources = beside_an_honest_source(cast, files, faults.hang)
    patience = Patience(DEADLINE / 2)
    cast.client(timeouts=Timeouts(idle=30)).fetch(1, manifest.digest, sources, DEADLINE)
    assert not patience.ended()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fetch-")]


def test_two_threads_may_fetch_two_versions_but_not_one_version_twice(cast: Cast) -> None:
    manifest, origin = cast.origin({"model": cast.bytes(CHUNK)})
    client = cast.client()
    with client.store.draft(1, "other", 0), pytest.raises(LockHeld):
        client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)


def test_random_mixtures_of_faults_end_with_the_right_bytes(cast: Cast) -> None:
    """Every request may go wrong in any way; as long as one source is honest in the end, the bytes are right."""
    chance = random.Random(5)
    files = {"a": cast.bytes(6 * CHUNK + 3), "b": cast.bytes(CHUNK - 1)}
    manifest, origin = cast.origin(files)

    def whatever(request: Request) -> None:
        chance.choice([*FAILURES[1:3], faults.be_busy, *[Request.serve] * 4])(request)

    shaky = [cast.scripted(origin.store.manifest(1), files, whatever) for _ in range(3)]
    client = cast.client(streams=4)
    folder = client.fetch(1, manifest.digest, [relay_at(s.url, f"shaky {n}") for n, s in enumerate(shaky)], DEADLINE)
    assert contents(folder) == files
    assert not client.statistics.violations
