"""Content-addressed files on disk: what is there is complete and hashes to its name.

files/<sha256>                rollout files          receipts/<sha256>.json    verdict receipts
stored/<submission id>.json   storage receipts       arrivals/<sha256>.json    when a receipt came, in block time
vouchers/<address>.json       validators' vouchers   partial/                  uploads under way, removed at start

archive.py is the same with a bucket behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from protocol.errors import HashMismatch, Oversized, PreflightError

KINDS = ("files", "receipts", "stored", "arrivals", "vouchers")
_SPARE = 256 << 20  # bytes that stay free on the disk, so that databases and logs can go on


class Store:
    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.rmtree(root / "partial", ignore_errors=True)
        for name in (*KINDS, "partial"):
            (root / name).mkdir(parents=True, exist_ok=True)

    def file(self, root: bytes) -> Path:
        return self.root / "files" / root.hex()

    def holds(self, root: bytes) -> bool:
        return self.file(root).exists()

    async def fetch(self, root: bytes) -> Path | None:
        """Where the file lies on this disk; None when there is none."""
        return self.file(root) if self.file(root).exists() else None

    async def receive(self, root: bytes, parts: AsyncIterator[bytes], *, cap: int) -> int:
        """Stores a file that must hash to `root`; returns its size. Raises Oversized, HashMismatch or PreflightError."""
        self.require_space(cap)
        hashed, size = hashlib.sha256(), 0
        temporary = NamedTemporaryFile(dir=self.root / "partial", delete=False)  # noqa: SIM115  renamed, not closed, on success
        try:
            with temporary as sink:
                async for part in parts:
                    size += len(part)
                    if size > cap:
                        raise Oversized(f"more than {cap} bytes")
                    hashed.update(part)
                    sink.write(part)
                if hashed.digest() != root:
                    raise HashMismatch("the file is not the committed one")
                await asyncio.to_thread(_sync, sink)
            os.replace(temporary.name, self.file(root))
        except OSError as error:
            raise _full(error) from error
        finally:
            Path(temporary.name).unlink(missing_ok=True)
        return size

    def remove_files_before(self, time: float, is_needed: Callable[[bytes], bool] = lambda root: False) -> set[str]:
        """Forgets rollout files that were stored before `time` (seconds since the epoch), but for what is needed; returns their names.

        Receipts stay: they are small, and say what became of the submission.
        """
        removed = set()
        for path in (self.root / "files").iterdir():
            if path.stat().st_mtime < time and not needs(path.name, is_needed):
                path.unlink()
                removed.add(path.name)
        return removed

    def put(self, kind: str, name: str, data: bytes) -> None:
        """Writes a small object atomically. Raises PreflightError when the disk refuses."""
        target = self.root / kind / name
        temporary = self.root / "partial" / name
        try:
            with temporary.open("wb") as sink:
                sink.write(data)
                _sync(sink)
            os.replace(temporary, target)
        except OSError as error:
            raise _full(error) from error
        finally:
            temporary.unlink(missing_ok=True)

    def get(self, kind: str, name: str) -> bytes | None:
        """A small object; None when there is none."""
        try:
            return (self.root / kind / name).read_bytes()
        except FileNotFoundError:
            return None

    def note_arrival(self, receipt: bytes, time: int) -> None:
        """Notes when a receipt came (block time); the first time stands."""
        if self.arrival(receipt) is None:
            self.put("arrivals", _named(receipt), b"%d" % time)

    def arrival(self, receipt: bytes) -> int | None:
        text = self.get("arrivals", _named(receipt))
        return int(text) if text is not None and text.isdigit() else None

    def objects(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """(name, bytes) of all small objects of a kind, oldest first."""
        for path in sorted((self.root / kind).iterdir(), key=lambda path: path.stat().st_mtime_ns):
            yield path.name, path.read_bytes()

    def names(self, kind: str) -> set[str]:
        """Of all small objects of a kind, without their suffix."""
        return {path.stem for path in (self.root / kind).iterdir()}

    def require_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.root).free
        if free < needed + _SPARE:
            raise PreflightError(
                f"the hub's disk is full: {free >> 20} MiB left", hint="free some space for the hub's store"
            )


def needs(name: str, is_needed: Callable[[bytes], bool]) -> bool:
    """Of a file by its name; one that is named otherwise is none of a submission."""
    try:
        return is_needed(bytes.fromhex(name))
    except ValueError:
        return False


def _named(data: bytes) -> str:
    return f"{hashlib.sha256(data).hexdigest()}.json"


def _sync(sink: Any) -> None:
    sink.flush()
    os.fsync(sink.fileno())


def _full(error: OSError) -> PreflightError:
    return PreflightError(f"the hub cannot store files: {error.strerror}", hint="free some space for the hub's store")
