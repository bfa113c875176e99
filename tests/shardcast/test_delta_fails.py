"""What fails of a delta is fetched whole, and nobody honest is punished."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from protocol.errors import DeadlineExceeded, PreflightError
from protocol.shardcast import by_delta
from protocol.shardcast import delta as codec
from protocol.shardcast import fetch as fetch_module
from protocol.shardcast.client import Client
from protocol.shardcast.manifest import describe_files, sign
from protocol.shardcast.source import Source

from . import faults
from .conftest import CHUNK, DEADLINE, Cast, contents, origin_at, relay_at
from .deltas import MODEL, SHARD, Run, model_of, received
from .faults import Request

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


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
    other, server = cast.origin({MODEL: model_of(9)}, step=0)
    client.fetch(0, other.digest, [origin_at(server.url)], DEADLINE)
    client.statistics.bytes_from.clear()
    run.fetch(client, 1)
    assert received(client) == run.manifests[1].total_bytes
    assert contents(client.store.folder(0)) == {MODEL: model_of(9)}
