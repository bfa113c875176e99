"""A disk says once that it has lost what it had taken; from then on nothing of a draft is believed, however the attempt ends."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.errors import DeadlineExceeded, DiskFailed, PreflightError
from protocol.shardcast import partial as partial_module
from protocol.shardcast.client import Client
from protocol.shardcast.manifest import Chunk, Manifest
from protocol.shardcast.partial import Partial
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.server import ShardServer
from protocol.shardcast.store import VersionStore

from .conftest import CHUNK, DEADLINE, Cast, contents, origin_at

CHUNKS = 4

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


class Fetching:
    """A client, and an origin with a version of a few chunks."""

    def __init__(self, cast: Cast) -> None:
        self.files = {"model": cast.bytes(CHUNKS * CHUNK)}
        self.manifest: Manifest
        self.origin: ShardServer
        self.manifest, self.origin = cast.origin(self.files)
        self.cast, self.store = cast, cast.store("client")
        self.client: Client = cast.client(self.store, streams=1)

    def fetch(self, seconds: float = DEADLINE) -> dict[str, bytes]:
        return contents(self.client.fetch(1, self.manifest.digest, [origin_at(self.origin.url)], seconds))

    @property
    def drafts(self) -> list[Path]:
        return list((self.store.root / "drafts").iterdir())

    def fetches_all_anew(self) -> None:
        self.client = self.cast.client(self.store, streams=1)
        self.comes_back_for_all()

    def comes_back_for_all(self) -> None:
        self.client.statistics.bytes_from.clear()
        assert self.fetch() == self.files
        assert self.client.statistics.resumed_chunks == 0
        assert self.client.statistics.bytes_from == {"origin": CHUNKS * CHUNK}


@pytest.fixture
def fetching(cast: Cast) -> Fetching:
    return Fetching(cast)


def io_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


def fails_once(error: OSError) -> Callable[[int], None]:
    """A sync that tells what happened, and does not tell it again."""
    left = [error]

    def sync(_: int) -> None:
        if left:
            raise left.pop()

    return sync


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a fetch of chunks has ended, and its threads have not."""
    event, stop = threading.Event(), Schedule.stop

    def stopped(self: Schedule) -> None:
        stop(self)
        if len(self.stock.have) > 1:
            event.set()

    monkeypatch.setattr(Schedule, "stop", stopped)
    return event


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_disk_that_fails_once_the_fetch_has_ended_is_how_it_ended(
    fetching: Fetching, ended: threading.Event, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """A failing disk takes its time to say so: longer than the deadline, or than somebody has patience."""
    syncing = threading.Event()
    monkeypatch.setattr(partial_module, "_SYNC_BYTES", 3 * CHUNK)

    def fail(_: int) -> None:
        syncing.set()
        assert ended.wait(DEADLINE)
        raise io_error()

    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fail)
        if is_closed:
            closing = threading.Thread(target=lambda: (syncing.wait(DEADLINE), fetching.client.close()))
            closing.start()
        with pytest.raises(DiskFailed, match="Input/output error"):
            fetching.fetch(DEADLINE if is_closed else 0.5)
    assert fetching.drafts == []
    if is_closed:
        closing.join()
        fetching.fetches_all_anew()
    else:
        fetching.comes_back_for_all()


def test_a_disk_that_fails_when_all_chunks_are_here_makes_no_version(
    fetching: Fetching, ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a chunk that was asked of two sources one copy may still be written: its error is the only one that there will be."""

    def fail_late(step: int, present: int, total: int) -> None:
        if present == total:
            assert ended.wait(DEADLINE)
            raise DiskFailed("the disk failed")

    fetching.client.progress = fail_late
    with pytest.raises(DiskFailed):
        fetching.fetch()
    assert fetching.store.steps() == ()
    fetching.fetches_all_anew()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_what_a_failed_sync_may_have_lost_is_fetched_and_written_anew(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """Linux keeps the pages, as clean ones: they verify from memory, and the next sync says nothing. A sync that lacks space has lost as much."""
    monkeypatch.setattr(partial_module, "_SYNC_BYTES", 3 * CHUNK)
    monkeypatch.setattr(os, call, fails_once(OSError(number, os.strerror(number))))
    with pytest.raises(DiskFailed):
        fetching.fetch()
    assert fetching.drafts == []
    fetching.comes_back_for_all()


def test_a_disk_that_cannot_read_a_draft_costs_the_draft(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every attempt would end where the first did."""
    with pytest.raises(DeadlineExceeded), fetching.store.draft(1, fetching.manifest.digest.hex(), 0) as draft:
        (draft / "model").write_bytes(fetching.files["model"])
        raise DeadlineExceeded("crash")

    def unreadable(*_: object) -> int:
        raise io_error()

    with monkeypatch.context() as failing:
        failing.setattr(os, "preadv", unreadable)
        with pytest.raises(DiskFailed):
            fetching.fetch()
    fetching.comes_back_for_all()


def test_what_a_full_disk_had_taken_is_read_again_and_not_fetched_again(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = os.pwrite, 0

    def fill(fd: int, content: memoryview, offset: int) -> int:
        nonlocal written
        if written == 3 * CHUNK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += len(content)
        return write(fd, content, offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fill)
        with pytest.raises(PreflightError, match="is full"):
            fetching.fetch()
    read: list[Chunk] = []
    verifies = Partial._verifies
    monkeypatch.setattr(
        Partial, "_verifies", lambda self, chunk, room: read.append(chunk) or verifies(self, chunk, room)
    )
    fetching.client.statistics.bytes_from.clear()
    assert fetching.fetch() == fetching.files
    assert len(read) == fetching.client.statistics.resumed_chunks == 3
    assert fetching.client.statistics.bytes_from == {"origin": CHUNK}


class Crash(BaseException):
    """The end of the process at this very place."""


def test_a_process_that_dies_before_the_draft_is_thrown_away_leaves_nothing_to_believe(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_module, "_SYNC_BYTES", 3 * CHUNK)
    monkeypatch.setattr(os, "fdatasync", fails_once(io_error()))
    with monkeypatch.context() as dying:
        dying.setattr(VersionStore, "_throw_away", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            fetching.fetch()
    fetching.fetches_all_anew()


def test_a_draft_that_the_disk_does_not_let_go_of_is_not_worked_on_again(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that has met an error may have become read-only."""
    digest = fetching.manifest.digest.hex()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as read_only:
        read_only.setattr(os, "rename", refuse)
        read_only.setattr(os, "fsync", fails_once(io_error()))
        for _ in range(2):
            with pytest.raises(DiskFailed):
                fetching.fetch()
        assert [draft.name for draft in fetching.drafts] == [f"1-{digest}"]
        assert not fetching.store.adopt(1, digest, by="another")
    fetching.comes_back_for_all()


def test_a_server_goes_on_with_what_it_has_opened_of_a_draft_whose_disk_failed(
    cast: Cast, fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gets the bytes checks them."""
    chunk = next(iter(fetching.manifest.chunks()))
    monkeypatch.setattr(partial_module, "_SYNC_BYTES", 1)
    monkeypatch.setattr(os, "fdatasync", fails_once(io_error()))
    folder = cast.root / "draft"
    folder.mkdir()
    with Partial(folder, fetching.manifest) as partial:
        opened = partial.reopen("model")
        assert opened is not None
        with pytest.raises(DiskFailed):
            partial.write(chunk, memoryview(fetching.files["model"])[:CHUNK])
        assert os.pread(opened, CHUNK, 0) == fetching.files["model"][:CHUNK]
        os.close(opened)
    assert list(folder.iterdir()) == []


def test_what_is_remembered_has_reached_the_disk(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt believes it unread, and a disk tells its failure for certain only while a file is open."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    fetching.client.progress = lambda step, present, total: time.sleep(1.0) if present >= 3 * CHUNK else None
    with pytest.raises(DeadlineExceeded):
        fetching.fetch(0.5)
    ((_, remembered),) = fetching.client._drafted.values()
    assert remembered
    assert len(synced) == 1  # there is one file


def test_where_it_has_not_nothing_is_remembered(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fails_once(io_error()))
        fetching.client.progress = lambda step, present, total: time.sleep(1.0) if present >= 3 * CHUNK else None
        with pytest.raises(DiskFailed):
            fetching.fetch(0.5)
    fetching.client.progress = lambda *_: None
    assert (fetching.client._drafted, fetching.drafts) == ({}, [])
    fetching.comes_back_for_all()


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOTEMPTY, errno.ENAMETOOLONG])
def test_an_error_that_says_nothing_of_what_was_written_costs_no_draft(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if "complete" in str(target):
            raise OSError(code, os.strerror(code))
        return rename(path, target)

    with monkeypatch.context() as refusing:
        refusing.setattr(Path, "rename", refuse)
        for _ in range(3):
            with pytest.raises(PreflightError) as caught:
                fetching.fetch()
            assert not isinstance(caught.value, DiskFailed)
    assert fetching.fetch() == fetching.files
    assert fetching.client.statistics.bytes_from == {"origin": CHUNKS * CHUNK}


def test_a_file_system_that_cannot_sync_folders_is_no_failed_disk(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def of_files(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", of_files)
    assert fetching.fetch() == fetching.files


def test_a_disk_that_fails_when_a_file_is_closed_has_failed_and_all_files_are_closed(
    cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, _ = cast.origin({"model": cast.bytes(CHUNK), "config": cast.bytes(10)})
    draft = tmp_path / "draft"
    draft.mkdir()
    partial = Partial(draft, manifest)
    fds = list(partial._fds.values())
    close, told = os.close, [io_error()]

    def closing(fd: int) -> None:
        close(fd)
        if told:
            raise told.pop()

    with monkeypatch.context() as failing, pytest.raises(DiskFailed):
        failing.setattr(os, "close", closing)
        partial.close()
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    assert list(draft.iterdir()) == []
