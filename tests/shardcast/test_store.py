"""What is visible is whole, what is leased stays, and a full disk is said and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import (
    DeadlineExceeded,
    DiskFailed,
    HashMismatch,
    IntegrityError,
    LockHeld,
    PreflightError,
    ProtocolViolation,
    UsageError,
)
from protocol.shardcast.store import VersionStore, disk_errors

from .conftest import DEADLINE, Cast, contents, origin_at


def put(store: VersionStore, step: int, content: bytes = b"weights") -> Path:
    with store.draft(step, "label", len(content)) as draft:
        (draft / "model").write_bytes(content)
        return store.commit(step, draft, b"manifest of %d" % step)


def everything(root: Path) -> list[str]:
    """Names of all files under `root`, but the lock."""
    return sorted(path.name for path in root.rglob("*") if path.is_file() and path.name != ".lock")


def test_a_version_is_invisible_until_it_is_committed_and_then_whole(cast: Cast) -> None:
    store = cast.store("s")
    with store.draft(4, "label", 7) as draft:
        (draft / "model").write_bytes(b"weights")
        assert not store.holds(4)
        assert store.steps() == ()
        assert store.open_file(4, "model") is None
        with pytest.raises(PreflightError, match="not on this machine"):
            store.folder(4)
        folder = store.commit(4, draft, b"manifest")
    assert store.steps() == (4,)
    assert folder == store.folder(4)
    assert contents(folder) == {"model": b"weights"}
    assert store.manifest(4) == b"manifest"


def test_everything_has_reached_the_disk_before_a_version_is_visible(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cast.store("s")
    synced: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, store.holds(4)))
    )
    put(store, 4)
    assert sorted(synced[:-1]) == [(".manifest.json", False), ("4-label", False), ("model", False)]
    assert synced[-1] == ("complete", True)


def test_a_delta_too_has_reached_the_disk_before_its_version_is_visible(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cast.store("s")
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: None if store.holds(4) else synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
    )
    with store.draft(4, "label", 7) as draft:
        (draft / ".delta").mkdir()
        (draft / ".delta" / "changes").write_bytes(b"x")
        store.commit(4, draft, b"manifest")
    assert sorted(synced) == [".delta", ".manifest.json", "4-label", "changes"]


def test_versions_outlive_the_process(cast: Cast) -> None:
    with VersionStore(cast.root / "s", 5, reserve=0) as store:
        put(store, 4)
    with VersionStore(cast.root / "s", 5, reserve=0) as store:
        assert store.steps() == (4,)


def test_only_the_newest_versions_are_kept(cast: Cast) -> None:
    store = cast.store("s", keep=2)
    for step in (1, 2, 3, 10):
        put(store, step)
    assert store.steps() == (3, 10)
    assert everything(cast.root / "s") == [".manifest.json", ".manifest.json", "model", "model"]


def test_a_pinned_version_stays_for_good_and_may_come_late(cast: Cast) -> None:
    store = cast.store("s", keep=2, pinned=[0])
    for step in (0, 1, 2, 3):
        put(store, step)
    assert store.steps() == (0, 2, 3)
    late = cast.store("late", keep=2, pinned=[0])
    for step in (5, 6, 0):
        put(late, step)
    assert late.steps() == (0, 5, 6)
    with pytest.raises(PreflightError, match="older than the 2 kept"):
        put(late, 1)


def test_a_leased_version_stays_until_its_last_lease_ends(cast: Cast) -> None:
    store = cast.store("s", keep=1)
    put(store, 1)
    with store.lease(1) as folder:
        with store.lease(1):
            put(store, 2)
            put(store, 3)
            assert store.steps() == (1, 3)
        assert contents(folder) == {"model": b"weights"}
        assert store.steps() == (1, 3)
    assert store.steps() == (3,)


def test_what_is_wanted_stays_also_over_a_restart_until_it_is_wanted_no_more(cast: Cast) -> None:
    with VersionStore(cast.root / "s", 1, reserve=0) as store:
        put(store, 0)
        store.want([0, 7])
        put(store, 1)
    store = cast.store("s", keep=1)
    assert store.steps() == (0, 1), "whoever wants it has had no time to say so"
    store.want([0])
    put(store, 2)
    assert store.steps() == (0, 2)
    store.want([])
    assert store.steps() == (2,)


def test_a_lease_ends_with_its_block_even_when_that_fails(cast: Cast) -> None:
    store = cast.store("s", keep=1)
    put(store, 1)
    with pytest.raises(ZeroDivisionError), store.lease(1):
        put(store, 2)
        raise ZeroDivisionError
    assert store.steps() == (2,)


def test_a_leased_version_cannot_be_replaced(cast: Cast) -> None:
    store = cast.store("s")
    put(store, 1)
    with store.lease(1), pytest.raises(LockHeld):
        store.discard(1)
    store.discard(1)
    assert everything(cast.root / "s") == []


def test_a_version_that_is_there_is_never_overwritten(cast: Cast) -> None:
    store = cast.store("s")
    put(store, 1)
    with pytest.raises(IntegrityError):
        put(store, 1, b"other weights")
    assert contents(store.folder(1)) == {"model": b"weights"}


def test_one_process_owns_a_store(cast: Cast) -> None:
    cast.store("s")
    with pytest.raises(LockHeld):
        VersionStore(cast.root / "s", 5)


def test_two_threads_never_write_one_version(cast: Cast) -> None:
    store = cast.store("s")
    with store.draft(1, "label", 0), pytest.raises(LockHeld), store.draft(1, "label", 0):
        pass
    with store.draft(1, "label", 0):
        pass


@pytest.mark.parametrize("error", [DeadlineExceeded("late"), KeyboardInterrupt()], ids=repr)
def test_an_unfinished_draft_is_found_again(cast: Cast, error: BaseException) -> None:
    store = cast.store("s")
    with pytest.raises(type(error)), store.draft(1, "label", 0) as draft:
        (draft / "model").write_bytes(b"wei")
        raise error
    with store.draft(1, "label", 0) as again:
        assert contents(again) == {"model": b"wei"}


@pytest.mark.parametrize("error", [HashMismatch("lie"), IntegrityError("disk")], ids=repr)
def test_a_draft_that_can_never_become_right_is_removed(cast: Cast, error: Exception) -> None:
    store = cast.store("s")
    with pytest.raises(type(error)), store.draft(1, "label", 0) as draft:
        (draft / "model").write_bytes(b"wei")
        raise error
    assert everything(cast.root / "s") == []


@pytest.mark.parametrize("resumes", [True, False])
def test_a_draft_that_a_full_disk_ended_stays_where_it_can_be_resumed(cast: Cast, resumes: bool) -> None:
    store = cast.store("s")
    with pytest.raises(PreflightError), store.draft(1, "label", 0, resumes=resumes) as draft:
        (draft / "model").write_bytes(b"wei")
        raise PreflightError("full")
    assert everything(cast.root / "s") == (["model"] if resumes else [])


@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize(
    ("number", "is_kept"),
    [
        (errno.EIO, False), (errno.EROFS, False), (errno.EUCLEAN, False), (errno.ENOSPC, True), (errno.EDQUOT, True),
        (errno.EMFILE, True), (errno.ENFILE, True), (errno.ENOMEM, True), (errno.ENOENT, True), (errno.EACCES, True),
    ],
)  # fmt: skip
def test_a_draft_is_thrown_away_after_every_error_by_which_a_disk_may_have_lost_some_and_after_no_other(
    cast: Cast, number: int, is_kept: bool, resumes: bool
) -> None:
    """Strangers can take all files that a process may open: that must not cost a relay what it has fetched."""
    store = cast.store("s")
    with (
        pytest.raises(PreflightError) as caught,
        store.draft(1, "label", 0, resumes=resumes) as draft,
        disk_errors(draft),
    ):
        (draft / "model").write_bytes(b"wei")
        raise OSError(number, os.strerror(number))
    assert isinstance(caught.value, DiskFailed) is not is_kept
    assert everything(cast.root / "s") == (["model"] if is_kept and resumes else [])


def test_a_draft_is_thrown_away_in_one_step_that_lasts(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    store, synced = cast.store("s"), list[tuple[str, bool]]()
    folder = cast.root / "s" / "drafts" / "1-label"
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, folder.exists()))
    )
    with pytest.raises(DiskFailed), store.draft(1, "label", 0) as draft:
        (draft / "model").write_bytes(b"wei")
        raise DiskFailed("lost")
    assert synced == [("drafts", False), ("retired", False)]
    assert everything(cast.root / "s") == []


def test_abandoned_drafts_do_not_pile_up(cast: Cast) -> None:
    store = cast.store("s")
    for step, label in ((1, "a"), (2, "a"), (2, "b")):
        with pytest.raises(DeadlineExceeded), store.draft(step, label, 0) as draft:
            (draft / f"{step}{label}").write_bytes(b"")
            raise DeadlineExceeded("late")
    assert everything(cast.root / "s") == ["2b"]


def test_a_draft_under_work_is_not_taken_for_abandoned(cast: Cast) -> None:
    store = cast.store("s")
    with store.draft(1, "label", 0) as older:
        (older / "model").write_bytes(b"weights")
        put(store, 2)
        store.commit(1, older, b"manifest")
    assert store.steps() == (1, 2)


def test_a_version_older_than_all_that_are_kept_is_refused_before_it_is_fetched(cast: Cast) -> None:
    store = cast.store("s", keep=2)
    put(store, 5)
    put(store, 6)
    with pytest.raises(PreflightError, match="older"):
        put(store, 4)


def test_what_a_crash_left_half_removed_is_removed(cast: Cast) -> None:
    left = cast.root / "s" / "retired" / "1-x"
    left.mkdir(parents=True)
    (left / "model").write_bytes(b"")
    cast.store("s")
    assert everything(cast.root / "s") == []


def test_a_store_that_keeps_nothing_is_refused(cast: Cast) -> None:
    with pytest.raises(UsageError):
        VersionStore(cast.root / "s", 0)


def test_space_is_asked_for_before_anything_is_written(cast: Cast) -> None:
    store = cast.store("s", reserve=100, free_space=lambda folder: 149)
    with pytest.raises(PreflightError, match="149 bytes free"), store.draft(1, "label", 50):
        pytest.fail("the draft was begun")
    assert everything(cast.root / "s") == []
    with store.draft(1, "label", 49):
        pass


def test_what_is_on_disk_already_needs_no_more_space(cast: Cast) -> None:
    free = [1 << 30]
    store = cast.store("s", free_space=lambda folder: free[0])
    with pytest.raises(DeadlineExceeded), store.draft(1, "label", 1 << 20) as draft:
        (draft / "model").write_bytes(bytes(1 << 20))
        raise DeadlineExceeded("late")
    free[0] = 0
    with store.draft(1, "label", 1 << 20):
        pass


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    where = tmp_path / "tiny"
    where.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tiny", where], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip("mounting a tiny file system needs root")
    yield where
    subprocess.run(["umount", where], check=True)


def test_a_disk_that_fills_while_copying_is_said_and_leaves_no_half_version(cast: Cast, tiny_disk: Path) -> None:
    with VersionStore(tiny_disk, 5, reserve=0, free_space=lambda folder: 1 << 40) as store:
        folder = cast.folder({"model": cast.bytes(400 << 10)})
        with pytest.raises(PreflightError, match="full"):
            cast.publisher(store).publish(folder, 1)
        assert store.steps() == ()
        assert everything(tiny_disk) == []


def test_a_disk_that_fills_while_fetching_is_said_and_what_verified_is_not_fetched_again(
    cast: Cast, tiny_disk: Path
) -> None:
    manifest, server = cast.origin({"model": cast.bytes(400 << 10)})
    with VersionStore(tiny_disk, 5, reserve=0, free_space=lambda folder: 1 << 40) as store:
        client = cast.client(store)
        with pytest.raises(PreflightError, match="full"):
            client.fetch(1, manifest.digest, [origin_at(server.url)], DEADLINE)
        assert store.steps() == ()
        assert not client.statistics.violations
        subprocess.run(["mount", "-o", "remount,size=1m", tiny_disk], check=True)
        client.fetch(1, manifest.digest, [origin_at(server.url)], DEADLINE)
        assert store.steps() == (1,)
        assert client.statistics.resumed_chunks >= 2, "what the full disk had taken"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fetch-")]


def test_a_disk_that_refuses_is_no_peers_fault(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    store = cast.store("s")

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(PreflightError, match="Input/output error") as caught:
        put(store, 1)
    assert not isinstance(caught.value, ProtocolViolation)
    assert store.steps() == ()
