"""What an origin has published never changes, and a relay gives on what it has verified."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from protocol.errors import DeadlineExceeded, IntegrityError, UsageError
from protocol.shardcast import manifest as manifest_module
from protocol.shardcast.manifest import describe

from . import faults
from .conftest import CHUNK, DEADLINE, RUN, Cast, contents, origin_at, relay_at


def test_a_published_folder_is_a_version_signed_by_the_trainer(cast: Cast) -> None:
    files = {"a": cast.bytes(CHUNK + 1), "b": b""}
    folder = cast.folder(files | {".hidden": b"x"})
    store = cast.store("origin")
    manifest = cast.publisher(store).publish(folder, 4)
    assert manifest == describe(folder, RUN, 4, chunk_bytes=CHUNK)
    assert cast.expected(manifest).open(store.manifest(4)) == manifest
    assert contents(store.folder(4)) == files


def test_publishing_the_same_bytes_again_changes_nothing(cast: Cast) -> None:
    origin = cast.publisher(cast.store("origin"))
    first = origin.publish(cast.folder({"a": b"weights"}, "first"), 4)
    signed = origin.store.manifest(4)
    assert origin.publish(cast.folder({"a": b"weights"}, "again"), 4) == first
    assert origin.store.manifest(4) == signed


def test_publishing_other_bytes_for_a_step_is_an_integrity_error(cast: Cast) -> None:
    origin = cast.publisher(cast.store("origin"))
    origin.publish(cast.folder({"a": b"weights"}, "first"), 4)
    with pytest.raises(IntegrityError, match="other bytes"):
        origin.publish(cast.folder({"a": b"Weights"}, "other"), 4)
    assert contents(origin.store.folder(4)) == {"a": b"weights"}


def test_what_the_trainer_does_to_its_folder_later_changes_no_version(cast: Cast) -> None:
    origin, folder = cast.publisher(cast.store("origin")), cast.folder({"a": b"weights"})
    origin.publish(folder, 4)
    (folder / "a").write_bytes(b"other")
    assert contents(origin.store.folder(4)) == {"a": b"weights"}


def test_linked_files_take_no_second_place_on_disk(cast: Cast) -> None:
    origin, folder = cast.publisher(cast.store("origin")), cast.folder({"a": b"weights"})
    (folder / "b").symlink_to(folder / "a")
    origin.publish(folder, 4, link=True)
    assert os.path.samefile(folder / "a", origin.store.folder(4) / "a")
    assert not (origin.store.folder(4) / "b").is_symlink()
    assert contents(origin.store.folder(4)) == {"a": b"weights", "b": b"weights"}


def test_a_linked_version_that_is_published_again_is_not_read(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, folder = cast.publisher(cast.store("origin")), cast.folder({"a": b"weights", "b": b"more"})
    first = origin.publish(folder, 4, link=True)
    read: list[str] = []
    real = manifest_module._describe_file
    monkeypatch.setattr(manifest_module, "_describe_file", lambda path, *of: read.append(path.name) or real(path, *of))
    assert origin.publish(folder, 4, link=True) == first
    assert read == []
    (folder / "b").unlink()
    (folder / "b").write_bytes(b"less")
    with pytest.raises(IntegrityError, match="other bytes"):
        origin.publish(folder, 4, link=True)
    assert read == ["b"]


@pytest.mark.parametrize("change", ["fewer", "more"])
def test_a_version_with_other_files_is_another_one(cast: Cast, change: str) -> None:
    origin, folder = cast.publisher(cast.store("origin")), cast.folder({"a": b"weights", "b": b"more"})
    origin.publish(folder, 4, link=True)
    (folder / "b").unlink() if change == "fewer" else (folder / "c").write_bytes(b"")
    with pytest.raises(IntegrityError, match="other bytes"):
        origin.publish(folder, 4, link=True)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system to copy from")
def test_files_of_another_disk_are_copied_where_links_are_wished(cast: Cast) -> None:
    with TemporaryDirectory(dir="/dev/shm") as other:
        (Path(other) / "a").write_bytes(b"weights")
        origin = cast.publisher(cast.store("origin"))
        origin.publish(Path(other), 4, link=True)
        assert contents(origin.store.folder(4)) == {"a": b"weights"}


def test_leftovers_of_a_crash_do_not_get_into_a_version(cast: Cast) -> None:
    origin = cast.publisher(cast.store("origin"))
    with pytest.raises(DeadlineExceeded), origin.store.draft(4, "publishing", 0) as draft:
        (draft / "stale").write_bytes(b"x")
        raise DeadlineExceeded("crash")
    origin.publish(cast.folder({"a": b"weights"}), 4)
    assert contents(origin.store.folder(4)) == {"a": b"weights"}


def test_a_folder_that_cannot_travel_is_refused_and_leaves_nothing(cast: Cast) -> None:
    origin, folder = cast.publisher(cast.store("origin")), cast.folder({"a": b"weights"})
    (folder / "inner").mkdir()
    with pytest.raises(UsageError):
        origin.publish(folder, 4)
    assert not list((cast.root / "origin" / "drafts").iterdir())


def test_a_relay_serves_a_version_only_once_all_of_it_is_verified(cast: Cast) -> None:
    files = {"model": cast.bytes(4 * CHUNK)}
    manifest, origin = cast.origin(files)
    lying = cast.scripted(origin.store.manifest(1), files, faults.be_busy)
    store = cast.store("relay")
    client, relay = cast.client(store), cast.serve(store)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            client.fetch(1, manifest.digest, [relay_at(lying.url)], 0.2)
        for part in ("manifest", "files/model"):
            assert httpx.get(f"{relay.url}/v/1/{part}", timeout=DEADLINE).status_code == 404
    client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    folder = cast.client(cast.store("late")).fetch(1, manifest.digest, [relay_at(relay.url)], DEADLINE)
    assert contents(folder) == files
