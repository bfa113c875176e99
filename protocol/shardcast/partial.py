"""A version that is not whole yet: chunks land at their place in any order, and count only after they were verified.

There is no list on disk of what has arrived, because after a crash it could be wrong: what verifies is there, everything
else is missing. That holds until the disk fails. From then on what it has lost would still verify, out of memory, so the files lose
their names at once: neither a later attempt nor another process finds them. A server reads the chunks that have been written already
through `reopen`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from protocol.errors import DiskFailed
from protocol.shardcast.manifest import Chunk, Manifest
from protocol.shardcast.store import disk_errors

_SYNC_BYTES = 64 << 20  # written between two waits for the disk
_WRITE_BYTES = 64 << 10
"""At once. For long writes a kernel takes large pages, and a virtual machine may have to get those from its host each time."""


class Partial:
    """The files of `manifest` in `folder`, open for writing. Any thread may write; one thread closes."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self._sizes = {file.name: file.size for file in manifest.files}
        self._fds: dict[str, int] = {}
        self._mutex = Lock()
        self._writing = Lock()  # the kernel lets one write a file at a time; the others would spin
        self._written = 0
        self._open()

    def close(self) -> None:
        """Raises PreflightError for what a file's closing says, once all are closed: some disks say only then that they have failed."""
        refused: OSError | None = None
        with self._mutex:
            while self._fds:
                try:
                    os.close(self._fds.popitem()[1])
                except OSError as error:
                    refused = refused or error
        if refused is not None:
            with self._disk(is_sync=True):
                raise refused

    def sync(self) -> None:
        """Waits until the disk has everything that was written: only while a file is open is its failure certain to be told. Raises
        DiskFailed."""
        with self._mutex:
            fds = list(self._fds.values())
        for fd in fds:
            with self._disk(is_sync=True):
                os.fdatasync(fd)

    def begin_anew(self) -> None:
        """Puts empty files in place of these: nothing is believed that was written to them. No other thread may be at work."""
        with disk_errors(self.folder):
            for name in self._sizes:
                (self.folder / name).unlink(missing_ok=True)
        self.close()
        self._open()

    def reopen(self, name: str) -> int | None:
        """Another descriptor of a file, which the caller closes; None once this is closed, or if there is no such file."""
        with self._mutex:
            return os.dup(self._fds[name]) if name in self._fds else None

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def holds(self, chunk: Chunk, buffer: memoryview) -> bool:
        """Whether the chunk's bytes on disk verify. `buffer` has room for one chunk."""
        return not self.is_hole(chunk) and self._verifies(chunk, buffer)

    def write(self, chunk: Chunk, content: memoryview) -> None:
        """Puts verified bytes in their place. Raises PreflightError when the disk refuses, DiskFailed where it may have lost others.

        Now and then one writer waits until the disk has what was written, while the others go on: else all of it would be
        left to the end.
        """
        fd = self._fds[chunk.file.name]
        done = 0
        with self._disk(), self._writing:
            while done < chunk.size:
                done += os.pwrite(fd, content[done : done + _WRITE_BYTES], chunk.offset + done)
        if self._is_time_to_sync(chunk.size):
            with self._disk(is_sync=True):
                os.fdatasync(fd)

    def _open(self) -> None:
        with disk_errors(self.folder):
            try:
                for name, size in self._sizes.items():
                    fd = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
                    self._fds[name] = fd
                    os.ftruncate(fd, size)
            except BaseException:
                self.close()
                raise

    @contextmanager
    def _disk(self, *, is_sync: bool = False) -> Iterator[None]:
        """As `disk_errors`; takes the files' names where the disk has failed. Whoever has them open goes on: what it sends is verified."""
        try:
            with disk_errors(self.folder, is_sync=is_sync):
                yield
        except DiskFailed:
            for name in self._sizes:  # the draft is thrown away as a whole besides, but threads may have to end before
                with suppress(OSError):
                    (self.folder / name).unlink()
            raise

    def _is_time_to_sync(self, count: int) -> bool:
        with self._mutex:
            before, self._written = self._written, self._written + count
            return before // _SYNC_BYTES != self._written // _SYNC_BYTES

    def _verifies(self, chunk: Chunk, buffer: memoryview) -> bool:
        view = buffer[: chunk.size]
        return self._read(chunk, view) == chunk.size and chunk.matches(view)

    def _read(self, chunk: Chunk, view: memoryview) -> int:
        with self._disk():
            return os.preadv(self._fds[chunk.file.name], [view], chunk.offset)

    def is_hole(self, chunk: Chunk) -> bool:
        """Whether nothing was ever written there, so that a fresh draft is not read just to be found empty."""
        seek_data = getattr(os, "SEEK_DATA", None)
        if seek_data is None:
            return False
        try:
            return os.lseek(self._fds[chunk.file.name], chunk.offset, seek_data) >= chunk.offset + chunk.size
        except OSError:
            return True  # ENXIO: no data from here to the end
