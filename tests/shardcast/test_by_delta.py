"""A version that can be had by its difference from one that is here comes so, byte for byte the same; what fails comes whole."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from protocol.errors import DeadlineExceeded, PreflightError, Unavailable
from protocol.shardcast import by_delta
from protocol.shardcast import delta as codec
from protocol.shardcast import fetch as fetch_module
from protocol.shardcast.client import Client
from protocol.shardcast.holding import COMPLETE, Holding
from protocol.shardcast.manifest import Base, Manifest, describe_files, sign
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore

from . import faults
from .conftest import CHUNK, DEADLINE, Cast, contents, origin_at, relay_at, wait_until
from .faults import Request, Script
from .test_delta import stepped, weights

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

CONFIG, TOKENIZER, MODEL, SHARD = "config.json", "tokenizer.json", "model-1.safetensors", "model-2.safetensors"


class Run:
    """Versions of one run that differ by a hundredth, and whoever published them."""

    def __init__(self, cast: Cast, steps: int = 0, *, anchor_every: int = 1000) -> None:
        self.cast = cast
        self.store = cast.store("origin", keep=20)
        self.publisher = cast.publisher(self.store, anchor_every)
        self.server = cast.serve(self.store)
        self.source = origin_at(self.server.url)
        self.manifests: list[Manifest] = []
        self.files = [{CONFIG: b"{}", TOKENIZER: cast.bytes(CHUNK // 2), MODEL: _model(1), SHARD: _model(2)}]
        self._publish()
        for _ in range(steps):
            self.step()

    def step(self, share: float = 0.01, **changes: bytes | None) -> Manifest:
        before = self.files[-1]
        files = before | {n: _stepped(before[n], share, len(self.files)) for n in (MODEL, SHARD) if n in before}
        files |= {name.replace("__", "."): content for name, content in changes.items() if content is not None}
        self.files.append({n: c for n, c in files.items() if changes.get(n.replace(".", "__"), b"") is not None})
        return self._publish()

    def _publish(self) -> Manifest:
        number = len(self.manifests)
        manifest = self.publisher.publish(self.cast.folder(self.files[number], f"version-{number}"), number)
        self.manifests.append(manifest)
        return manifest

    def fetch(self, client: Client, step: int, sources: list[Source] | None = None) -> Path:
        folder = client.fetch(step, self.manifests[step].digest, sources or [self.source], DEADLINE)
        assert contents(folder) == self.files[step]
        assert client.store.manifest(step) == self.store.manifest(step)
        return folder

    def holder(self, step: int, name: str = "client", **options: object) -> Client:
        """A client that holds this version already."""
        client = self.cast.client(self.cast.store(name), **options)
        self.fetch(client, step)
        client.statistics.bytes_from.clear()
        return client

    def served(self, step: int, *names: str) -> dict[str, bytes]:
        """The delta files that a source of it sends."""
        return {path.name: path.read_bytes() for path in (self.store.folder(step) / ".delta").iterdir()}

    def scripted(self, step: int, of_delta: Script, of_files: Script = Request.serve) -> Source:
        """A source of this version that answers for delta and files as it is told."""
        manifest, files, deltas = self.store.manifest(step), self.files[step], self.served(step)

        def script(request: Request) -> None:
            if "/delta/" in request.target:
                request.content = deltas.get(request.target.split("/")[-1], b"")
                return of_delta(request)
            return of_files(request)

        return relay_at(self.cast.scripted(manifest, files, script).url, f"scripted {of_delta.__name__}")


def _model(seed: int) -> bytes:
    """Of 5 chunks and a bit, in bf16."""
    return weights(5 * CHUNK // 2 + 77, seed).tobytes()


def _stepped(content: bytes, share: float, seed: int) -> bytes:
    return stepped(np.frombuffer(content, "<u2"), share, seed).tobytes()


def received(client: Client) -> int:
    return sum(client.statistics.bytes_from.values())


# ---- what an origin publishes


def test_a_version_goes_with_what_makes_it_out_of_the_one_before(cast: Cast) -> None:
    run = Run(cast, 2)
    first, second, third = run.manifests
    assert (first.kind, second.kind, third.kind) == ("full", "delta", "delta")
    assert third.base == Base(1, second.digest.hex(), 0)
    assert [file.name for file in third.delta or ()] == [MODEL, SHARD], "config and tokenizer stayed"
    assert third.delta_bytes < third.total_bytes / 20
    assert describe_files(sorted((run.store.folder(2) / ".delta").iterdir()), CHUNK) == third.delta


def test_an_anchor_goes_without_a_delta_every_so_often(cast: Cast) -> None:
    run = Run(cast, 7, anchor_every=3)
    assert [manifest.kind for manifest in run.manifests] == ["full", "delta", "delta"] * 2 + ["full", "delta"]
    assert [manifest.anchor for manifest in run.manifests] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert [run.store.folder(step).joinpath(".delta").exists() for step in (2, 3)] == [True, False]


def test_anchors_alone_are_published_where_that_is_set(cast: Cast) -> None:
    assert [manifest.kind for manifest in Run(cast, 2, anchor_every=1).manifests] == ["full"] * 3


def test_a_difference_of_half_the_bytes_is_not_worth_a_delta(cast: Cast) -> None:
    run = Run(cast)
    assert run.step(share=1.0, **{TOKENIZER.replace(".", "__"): cast.bytes(12 * CHUNK)}).kind == "full"
    assert not (run.store.folder(1) / ".delta").exists()
    assert run.step().base is not None, "the next one has a delta again"


def test_the_first_version_here_goes_without_a_delta(cast: Cast) -> None:
    publisher = cast.publisher(cast.store("origin"))
    assert publisher.publish(cast.folder({MODEL: _model(1)}), 7).kind == "full"
    assert publisher.publish(cast.folder({MODEL: _model(1)}, "later"), 9).kind == "full", "8 is missing"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), PreflightError("the disk is full"), MemoryError()])
def test_a_delta_that_cannot_be_written_keeps_no_version_from_anybody(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    run = Run(cast)

    def fail(base: Path, target: Path, delta: Path, **_: object) -> bool:
        delta.write_bytes(b"some of it")
        raise error

    monkeypatch.setattr(codec, "encode", fail)
    if isinstance(error, MemoryError):
        with pytest.raises(MemoryError):  # nothing here can mend that
            run.step()
        return
    assert run.step().kind == "full"
    assert not (run.store.folder(1) / ".delta").exists()
    run.fetch(cast.client(), 1)


def test_a_store_that_was_lost_is_made_again_with_the_same_digests(cast: Cast) -> None:
    """The chain knows the digest of a delta whose base nobody has any more."""
    digests = []
    folders = [cast.folder({MODEL: _stepped(_model(1), 0.01 * n, n)}, f"kept-{n}") for n in range(3)]
    for name in ("before", "after"):
        publisher = cast.publisher(cast.store(name))
        steps = range(3) if name == "before" else (1, 2)
        digests.append([publisher.publish(folders[step], step, link=True, remember=True).digest for step in steps])
    assert digests[1] == digests[0][1:]
    server = cast.serve(publisher.store)
    folder = cast.client().fetch(1, digests[0][1], [origin_at(server.url)], DEADLINE)
    assert contents(folder) == contents(folders[1])


def test_what_is_remembered_counts_for_the_same_files_alone(cast: Cast) -> None:
    folder = cast.folder({MODEL: _model(1)})
    first = cast.publisher(cast.store("first")).publish(folder, 1, remember=True)
    (folder / MODEL).write_bytes(_model(2))
    second = cast.publisher(cast.store("second")).publish(folder, 1, remember=True)
    assert second.files != first.files
    (folder / ".manifest.json").write_bytes(b"torn")
    assert cast.publisher(cast.store("third")).publish(folder, 1).digest == second.digest


# ---- what a client fetches


def test_a_version_is_made_out_of_the_one_before(cast: Cast) -> None:
    run = Run(cast, 1)
    client = run.holder(0)
    run.fetch(client, 1)
    assert received(client) == run.manifests[1].delta_bytes
    assert not client.statistics.violations


def test_versions_between_are_made_on_the_way(cast: Cast) -> None:
    run = Run(cast, 4)
    client = run.holder(0)
    run.fetch(client, 4)
    assert received(client) == sum(manifest.delta_bytes for manifest in run.manifests[1:])
    assert client.store.steps() == (0, 1, 2, 3, 4)
    for step in range(4):
        assert contents(client.store.folder(step)) == run.files[step]


def test_only_as_many_versions_as_are_kept_stay_of_those_between(cast: Cast) -> None:
    run = Run(cast, 4)
    client = cast.client(cast.store("small", keep=2))
    run.fetch(client, 0)
    run.fetch(client, 4)
    assert client.store.steps() == (3, 4)
    assert received(client) < run.manifests[0].total_bytes * 1.3


def test_whoever_holds_nothing_fetches_the_whole(cast: Cast) -> None:
    run = Run(cast, 2)
    client = cast.client()
    run.fetch(client, 2)
    assert received(client) == run.manifests[2].total_bytes
    assert client.store.steps() == (2,)
    assert not (client.store.folder(2) / ".delta").exists()


def test_a_chain_that_costs_as_much_as_the_whole_is_not_taken(cast: Cast) -> None:
    run = Run(cast)
    for seed in range(4):
        run.step(**{MODEL.replace(".", "__"): _model(10 + seed)})
    assert {manifest.kind for manifest in run.manifests[1:]} == {"delta"}
    assert sum(manifest.delta_bytes for manifest in run.manifests[1:]) > run.manifests[4].total_bytes
    client = run.holder(0)
    run.fetch(client, 4)
    assert received(client) == run.manifests[4].total_bytes
    assert client.store.steps() == (0, 4)


def test_files_that_are_new_gone_or_longer_are_right_as_well(cast: Cast) -> None:
    run = Run(cast)
    longer = b"a header that grew" + run.files[0][SHARD][: 2 * CHUNK]
    run.step(**{TOKENIZER.replace(".", "__"): None, "special__json": b"[1]", SHARD.replace(".", "__"): longer})
    assert run.manifests[1].kind == "delta"
    run.fetch(run.holder(0), 1)


def test_a_version_that_changed_nothing_needs_no_byte(cast: Cast) -> None:
    run = Run(cast)
    run.step(share=0.0)
    assert run.manifests[1].delta == ()
    client = run.holder(0)
    run.fetch(client, 1)
    assert received(client) == 0


def test_a_relay_fetches_by_delta_and_serves_both_forms(cast: Cast) -> None:
    run = Run(cast, 1)
    relay = run.holder(0, "relay")
    run.fetch(relay, 1)
    source = relay_at(cast.serve(relay.store).url)
    after, new = run.holder(0, "after"), cast.client(cast.store("new"))
    run.fetch(after, 1, [source])
    assert received(after) == run.manifests[1].delta_bytes
    run.fetch(new, 1, [source])
    assert received(new) == run.manifests[1].total_bytes


def test_what_is_here_already_of_the_whole_is_not_fetched_again_as_a_delta(cast: Cast) -> None:
    """A fetch that was broken off near its end goes on with the few chunks that are missing."""
    run = Run(cast, 1)
    client = run.holder(0)
    with pytest.raises(Unavailable), client.store.draft(1, run.manifests[1].digest.hex(), 0) as draft:
        for name, content in run.files[1].items():
            (draft / name).write_bytes(content if name != CONFIG else b"")
        raise Unavailable("broken off")
    run.fetch(client, 1)
    assert received(client) == len(run.files[1][CONFIG])


# ---- what fails is fetched whole, and nobody honest is punished


def told(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


def fell_back(run: Run, client: Client, caplog: pytest.LogCaptureFixture, sources: list[Source] | None = None) -> None:
    caplog.set_level(logging.WARNING)
    step = len(run.manifests) - 1
    folder = run.fetch(client, step, sources)
    assert f"version {step} is fetched whole: its delta failed" in told(caplog)
    assert not client.statistics.violations
    assert not (folder / ".delta").exists()
    assert all(standing._success == 1.0 for standing in client._standings.values())


def forge(run: Run, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    """Signs another delta for the newest version, as a trainer with a broken disk or a broken heart would."""
    manifest = run.manifests[-1]
    folder = run.store.folder(manifest.step)
    for name, content in change(run.served(manifest.step)).items():
        (folder / ".delta" / name).write_bytes(content)
    wrong = replace(manifest, delta=describe_files(sorted((folder / ".delta").iterdir()), CHUNK))
    (folder / ".manifest.json").write_bytes(sign(wrong, run.cast.key, run.cast.domain))
    run.manifests[-1] = wrong


@pytest.mark.parametrize(
    "change",
    [
        lambda deltas: {MODEL: b""},
        lambda deltas: {MODEL: b"\xff" * 3000},
        lambda deltas: {MODEL: deltas[MODEL][:-10]},
        lambda deltas: {MODEL: deltas[SHARD], SHARD: deltas[MODEL]},
    ],
    ids=["nothing", "garbage", "cut short", "of another file"],
)
def test_a_delta_that_its_trainer_spoilt_is_not_needed(
    cast: Cast, caplog: pytest.LogCaptureFixture, change: Callable[[dict[str, bytes]], dict[str, bytes]]
) -> None:
    run = Run(cast, 1)
    forge(run, change)
    client = run.holder(0)
    caplog.set_level(logging.WARNING)
    run.fetch(client, 1)
    assert not client.statistics.violations
    assert received(client) <= run.manifests[1].total_bytes + run.manifests[1].delta_bytes


def test_chunks_that_a_failed_delta_wrote_over_are_fetched_though_they_were_here_before(
    cast: Cast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(cast, 1)
    client, manifest = run.holder(0), run.manifests[1]
    with client.store.draft(1, manifest.digest.hex(), 0) as draft:
        (draft / MODEL).write_bytes(run.files[1][MODEL])

    def fail(delta: Path, base: Path | None, target: Path, size: int) -> None:
        target.write_bytes(bytes(size))
        raise PreflightError("the disk is full")

    monkeypatch.setattr(by_delta, "_write_changed", fail)
    fell_back(run, client, caplog)


def test_a_spoilt_delta_is_not_tried_twice(cast: Cast, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(cast, 1)
    forge(run, lambda deltas: {MODEL: b"\xff" * 3000})
    client = run.holder(0)
    fell_back(run, client, caplog)
    client.store.discard(1)
    client.statistics.bytes_from.clear()
    run.fetch(client, 1)
    assert received(client) == run.manifests[1].total_bytes


def test_a_delta_that_leaves_out_a_file_that_changed_is_not_needed(
    cast: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(cast, 1)
    (run.store.folder(1) / ".delta" / SHARD).unlink()
    forge(run, lambda deltas: {})
    fell_back(run, run.holder(0), caplog)


def test_a_base_that_rotted_on_this_disk_costs_the_chunks_that_come_out_wrong(cast: Cast) -> None:
    run = Run(cast, 1)
    client = run.holder(0)
    with (client.store.folder(0) / MODEL).open("r+b") as file:
        file.seek(2 * CHUNK)
        file.write(b"rot")
    run.fetch(client, 1)
    assert received(client) == run.manifests[1].delta_bytes + CHUNK


def test_where_nobody_has_the_delta_the_whole_is_fetched_at_once(cast: Cast, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(cast, 1)
    whole = cast.client(cast.store("whole"))
    run.fetch(whole, 1)
    sources = [relay_at(cast.serve(whole.store).url, name) for name in ("one", "two")]
    fell_back(run, run.holder(0), caplog, sources)


def test_a_source_without_the_delta_is_passed_over_without_blame(cast: Cast) -> None:
    run = Run(cast, 1)
    whole = cast.client(cast.store("whole"))
    run.fetch(whole, 1)
    client = run.holder(0)
    sources = [relay_at(cast.serve(whole.store).url, f"relay {n}") for n in range(5)]
    run.fetch(client, 1, [*sources, run.source])
    assert client.statistics.bytes_from == {"origin": run.manifests[1].delta_bytes}
    assert not client.statistics.violations
    assert all(standing._success == 1.0 for standing in client._standings.values())


def test_where_nobody_knows_the_version_between_the_whole_is_fetched_at_once(
    cast: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(cast, 2)
    client = run.holder(0)
    run.store.discard(1)
    fell_back(run, client, caplog)
    assert received(client) == run.manifests[2].total_bytes


def test_sources_that_never_bring_the_delta_leave_time_for_the_whole(
    cast: Cast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_delta, "_DELTA_SHARE", 0.03)
    run = Run(cast, 1)
    client = run.holder(0)
    caplog.set_level(logging.WARNING)
    run.fetch(client, 1, [run.scripted(1, faults.be_busy)])
    assert "is fetched whole: its delta failed (not fetched in time" in told(caplog)
    assert not client.statistics.violations


def test_a_disk_too_slow_for_the_deadline_makes_no_delta_fail(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(cast, 1)
    client = run.holder(0)
    late = [0.0]
    write = by_delta._write_changed
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0])
    monkeypatch.setattr(fetch_module, "time", clock)
    monkeypatch.setattr(by_delta, "time", clock)
    monkeypatch.setattr(by_delta, "_write_changed", lambda *of: (write(*of), late.append(late.pop() + 3600))[0])
    run.fetch(client, 1)
    assert received(client) == run.manifests[1].delta_bytes


def test_a_delta_that_did_not_come_in_time_is_tried_again_by_the_next_attempt(
    cast: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(cast, 1)
    client = run.holder(0)
    caplog.set_level(logging.WARNING)
    silent = cast.scripted(run.store.manifest(1), run.files[1], faults.be_busy)
    with pytest.raises(DeadlineExceeded):
        client.fetch(1, run.manifests[1].digest, [relay_at(silent.url, "silent")], 0.4)
    assert "its delta failed (not fetched in time" in told(caplog)
    run.fetch(client, 1)
    assert received(client) == run.manifests[1].delta_bytes


def test_what_came_of_a_delta_in_time_is_not_fetched_again(cast: Cast) -> None:
    run = Run(cast, 1)
    client = run.holder(0)

    def half(request: Request) -> None:
        request.serve() if request.target.endswith(MODEL) else faults.be_busy(request)

    with pytest.raises(DeadlineExceeded):
        client.fetch(1, run.manifests[1].digest, [run.scripted(1, half, faults.be_busy)], 0.6)
    client.statistics.bytes_from.clear()
    run.fetch(client, 1)
    assert received(client) == len(run.served(1)[SHARD])


@pytest.mark.parametrize(
    ("deltas", "line", "applied", "is_whole"),
    [
        (4, 20e6, 1e6, True),  # 268 s of this machine for 3.4 s of the line
        (4, None, 1e6, False),  # nobody knows how fast the lines are
        (4, 0.2e6, 1e6, False),  # 335 s of the line
        (4, 20e6, None, False),  # 1.8 s, as far as one knows
        (4, 20e6, 5e6, False),  # 54 s: less than a minute is always worth the bytes
        (1, 20e6, 0.1e6, False),  # what one delta spares is everybody's
    ],
)
def test_a_chain_of_deltas_is_left_where_it_would_take_longer_than_the_lines(
    cast: Cast, deltas: int, line: float | None, applied: float | None, is_whole: bool
) -> None:
    client = cast.client(streams=1)
    client.applied_rate = applied
    fetch = client.attempt(1, bytes(32), [origin_at("http://127.0.0.1:1")], 0.0)
    fetch.standings["origin"].bandwidth = line
    assert by_delta._takes_longer(fetch, deltas, 67_000_000, 67_000_000) == is_whole


def test_a_node_that_is_far_behind_fetches_the_whole_where_that_is_quicker(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_delta, "_ALONE_SECONDS", 0.0)
    run = Run(cast, 3)
    client = run.holder(0)
    client.applied_rate = 1.0
    run.fetch(client, 3)
    assert received(client) == run.manifests[3].total_bytes
    run.step()
    client.statistics.bytes_from.clear()
    run.fetch(client, 4)
    assert received(client) == run.manifests[4].delta_bytes, "one is always worth it"
    assert client.applied_rate > 1.0


def test_half_a_delta_is_never_served(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have its full size, and its server would be taken for a liar."""
    monkeypatch.setattr(by_delta, "_DELTA_SHARE", 0.03)
    run = Run(cast, 1)
    client = run.holder(0)

    def serve_one(request: Request) -> None:
        request.serve() if request.target.endswith(MODEL) else faults.be_busy(request)

    folder = run.fetch(client, 1, [run.scripted(1, serve_one)])
    assert received(client) == run.manifests[1].total_bytes + len(run.served(1)[MODEL])
    assert not (folder / ".delta").exists()


def test_a_source_that_lies_about_a_delta_is_blamed_and_another_brings_it(cast: Cast) -> None:
    run = Run(cast, 1)
    client = run.holder(0, streams=1)
    asked: list[str] = []

    def lie(request: Request) -> None:
        asked.append(request.target)
        faults.flip_a_bit(request)

    def wait_for_the_lie(request: Request) -> None:
        request.serve() if asked else faults.be_busy(request)

    lying, honest = run.scripted(1, lie), run.scripted(1, wait_for_the_lie)
    run.fetch(client, 1, [lying, honest])
    assert client.statistics.violations == {lying.name: 1}
    assert client.statistics.bytes_from == {honest.name: run.manifests[1].delta_bytes}


def test_a_disk_that_fills_up_while_a_delta_is_applied_ends_with_the_whole_or_a_clear_error(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(cast, 1)
    client = run.holder(0)

    def fill(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(codec, "apply", fill)
        fell_back(run, client, caplog)
    assert "is full" in told(caplog)
    small = cast.client(cast.store("small", free_space=lambda folder: CHUNK))
    with pytest.raises(PreflightError, match="bytes free"):
        run.fetch(small, 1)


def test_where_the_disk_fails_while_a_delta_is_applied_all_of_the_version_is_fetched_anew(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was here before, too: read back, it would come from memory. A disk that cannot read the base ends no fetch."""
    run = Run(cast, 1)
    client, manifest = run.holder(0), run.manifests[1]
    with client.store.draft(1, manifest.digest.hex(), 0) as draft:
        (draft / MODEL).write_bytes(run.files[1][MODEL])

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(codec, "apply", fail)
    fell_back(run, client, caplog)
    assert received(client) == manifest.total_bytes + manifest.delta_bytes
    assert not (client.store.folder(1) / ".delta").exists()


def test_another_version_of_the_bases_number_is_no_base(cast: Cast) -> None:
    """Of another run, or from before a reorg: it is left alone, and the whole is fetched."""
    run = Run(cast, 1)
    client = cast.client()
    other, server = cast.origin({MODEL: _model(9)}, step=0)
    client.fetch(0, other.digest, [origin_at(server.url)], DEADLINE)
    client.statistics.bytes_from.clear()
    run.fetch(client, 1)
    assert received(client) == run.manifests[1].total_bytes
    assert contents(client.store.folder(0)) == {MODEL: _model(9)}


# ---- crashes


class Crash(BaseException):
    """The end of the process at this very place."""


@pytest.mark.parametrize("after", range(3))
def test_what_a_crash_left_of_a_delta_is_used_or_replaced(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Before anything is applied, between two files, and before the result is visible."""
    run = Run(cast, 2)
    client = run.holder(0)
    apply, calls = codec.apply, []

    def crash(*arguments: object, **options: object) -> None:
        if len(calls) == after:
            raise Crash
        calls.append(arguments)
        apply(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(codec, "apply", crash)
        if after == 2:
            patch.setattr(VersionStore, "commit", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            client.fetch(2, run.manifests[2].digest, [run.source], DEADLINE)
    assert client.store.steps() == (0,)
    client.statistics.bytes_from.clear()
    again = cast.client(client.store)
    run.fetch(again, 2)
    assert received(again) < run.manifests[2].total_bytes / 10
    assert client.store.steps() == (0, 1, 2)
    for step in (1, 2):
        deltas = client.store.folder(step) / ".delta"
        if deltas.exists():
            assert describe_files(sorted(deltas.iterdir()), CHUNK) == run.manifests[step].delta


def test_a_version_in_use_stays_while_another_is_made_out_of_it(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store keeps one version, and its base is the one that leaves."""
    run = Run(cast, 1)
    client = cast.client(cast.store("one", keep=1))
    run.fetch(client, 0)
    apply, seen = codec.apply, []

    def watch(delta: Path, base: Path, *rest: object, **options: object) -> None:
        client.store.retire()
        seen.append(base.exists())
        apply(delta, base, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(codec, "apply", watch)
    run.fetch(client, 1)
    assert seen == [True, True]
    assert client.store.steps() == (1,)


def test_a_delta_leaves_with_its_version(cast: Cast) -> None:
    run = Run(cast, 2)
    client = cast.client(cast.store("one", keep=1))
    for step in range(3):
        run.fetch(client, step)
    left = [path for path in client.store.root.rglob("*") if path.is_file() and MODEL in path.name]
    assert {path.parent for path in left} == {client.store.folder(2), client.store.folder(2) / ".delta"}


def test_an_origin_that_ends_a_crashed_attempt_leaves_nothing_of_it_in_the_version(cast: Cast) -> None:
    run = Run(cast)
    with pytest.raises(Crash), run.store.draft(1, "publishing", 0) as draft:
        (draft / ".delta").mkdir()
        (draft / ".delta" / "stale").write_bytes(b"x")
        raise Crash
    run.step()
    assert {path.name for path in (run.store.folder(1) / ".delta").iterdir()} == {MODEL, SHARD}


# ---- on the wire


def test_a_server_gives_out_delta_files_under_a_name_of_their_own(cast: Cast) -> None:
    run = Run(cast, 1)
    want = run.served(1)[MODEL]
    url = f"{run.server.url}/v/1"
    assert httpx.get(f"{url}/delta/{MODEL}", timeout=DEADLINE).content == want
    part = httpx.get(f"{url}/delta/{MODEL}", headers={"Range": "bytes=3-9"}, timeout=DEADLINE)
    assert (part.status_code, part.content) == (206, want[3:10])
    for missing in ("delta/", "delta", f"files/.delta/{MODEL}", f".delta/{MODEL}", "files/.delta"):
        assert httpx.get(f"{url}/{missing}", timeout=DEADLINE).status_code == 404
    for never in (f"1/delta/{CONFIG}", f"0/delta/{MODEL}"):
        assert httpx.get(f"{run.server.url}/v/{never}", timeout=DEADLINE).status_code == 410
    assert httpx.get(f"{run.server.url}/v/2/delta/{MODEL}", timeout=DEADLINE).status_code == 404, "it may come"


# ---- relays pass it on before they have applied it


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
