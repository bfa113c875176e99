"""The origin's side of a version that is still being written: its chunks are hashed, signed and shown while the rest is to come.

Whoever writes it says beforehand which files it will have and how large they become, and writes each from front to back: what
lies below a file's present end does not change any more. Nothing is copied, and nothing stays in memory but the hashes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock

from blake3 import blake3

from protocol import resources, signing
from protocol.identity import Key
from protocol.shardcast.manifest import Chunk, FileEntry, read_at
from protocol.shardcast.opened import OpenedVersion
from protocol.shardcast.opening import ChunkList, Opening
from protocol.shardcast.store import VersionStore

_BATCH_MAX = 16  # chunks between two signatures, so that a file that is there at once is still told of bit by bit
_STALL_SECONDS = 120.0  # without a new chunk, after which it is shown no longer, until there is one


class VersionStream:
    """Shows what there is in `folder` of the version that `opening` announces, in `store`, until it is closed."""

    def __init__(
        self, store: VersionStore, folder: Path, opening: Opening, key: Key, domain: signing.Domain,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.folder, self.opening = folder, opening
        self._store, self._key, self._domain = store, key, domain
        self._listing = ChunkList(opening)
        self._chunks: list[Chunk] = list(opening.outline().chunks())
        self._fds: dict[str, int] = {}
        self._mutex = Lock()
        self._clock, self._moved = clock, clock()
        self._shown = OpenedVersion(self._listing, self._reopen)
        self._pool = ThreadPoolExecutor(resources.threads(opening.chunk_bytes), thread_name_prefix="hashing")

    @property
    def step(self) -> int:
        return self.opening.step

    def advance(self) -> bool:
        """Lists what has been finished since; whether that was anything. Raises OSError."""
        begin = self._listing.count
        most = self._chunks[begin : begin + min(_BATCH_MAX, max(1, begin))]  # at first one: it is to leave at once
        ready = []
        for chunk in most:
            if not self._is_written(chunk):
                break
            ready.append(chunk)
        if ready:
            self._listing.sign(list(self._pool.map(self._hash, ready)), self._key, self._domain)
            self._moved = self._clock()
            self._store.show_opened(self.step, self._shown)
        elif self._clock() > self._moved + _STALL_SECONDS and not self._listing.is_complete:
            self._store.hide_opened(self.step, self._shown)
        return bool(ready)

    def entries(self, folder: Path) -> dict[str, FileEntry]:
        """What a manifest says of those files in `folder` that are the very ones that were hashed, and have the size they were to have."""
        found, number = {}, 0
        for name, size in self.opening.files:
            count = -(-size // self.opening.chunk_bytes)
            hashes = tuple(self._listing.hash_of(number + index) for index in range(count))
            number += count
            if number > self._listing.count:
                break
            with suppress(OSError):
                there = os.stat(folder / name, follow_symlinks=False)
                mine = os.fstat(self._fds[name]) if name in self._fds else None
                if there.st_size == size and mine and (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                    found[name] = FileEntry(name, size, hashes)
        return found

    def close(self) -> None:
        """Nobody sees it any more."""
        self._store.hide_opened(self.step, self._shown)
        self._pool.shutdown()
        with self._mutex:
            while self._fds:
                os.close(self._fds.popitem()[1])

    # ---- inside

    def _is_written(self, chunk: Chunk) -> bool:
        fd = self._open(chunk.file.name)
        return fd is not None and os.fstat(fd).st_size >= chunk.offset + chunk.size

    def _hash(self, chunk: Chunk) -> bytes:
        room = memoryview(bytearray(chunk.size))
        read_at(self._fds[chunk.file.name], room, chunk.offset, self.folder / chunk.file.name)
        return blake3(room).digest()

    def _open(self, name: str) -> int | None:
        with self._mutex:
            if name not in self._fds:
                with suppress(FileNotFoundError):
                    self._fds[name] = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            return self._fds.get(name)

    def _reopen(self, name: str) -> int | None:
        with self._mutex:
            return os.dup(self._fds[name]) if name in self._fds else None
