"""How fast a source serves: some chunks of a version, fetched over one stream, checked and thrown away.

For whoever wants to know before there is anything to fetch (`node hardware`); the client measures by itself while it fetches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.constants import MANIFEST_BYTES_MAX
from protocol.errors import HashMismatch, Malformed, Oversized
from protocol.shardcast.connection import ConnectionPool, SourceConnection, Timeouts
from protocol.shardcast.http1 import file_target, manifest_target
from protocol.shardcast.manifest import Chunk, Expected, Manifest
from protocol.shardcast.source import Source


class Taster:
    """Looks at one source's copy of a version. Every call raises OSError or Unavailable where the source does not answer in time,
    ProtocolViolation where it lies."""

    def __init__(self, source: Source, expected: Expected, *, seconds: float = 20.0) -> None:
        """`seconds` that all calls together may take."""
        self._source = source
        self._expected = expected
        self._deadline = time.monotonic() + seconds

    def manifest(self) -> Manifest:
        with self._connected() as connection:
            length = connection.ask_whole(manifest_target(self._expected.step), MANIFEST_BYTES_MAX, self._deadline)
            data = bytearray(length)
            connection.read(memoryview(data), self._deadline)
        return self._expected.open(bytes(data))

    def read(self, manifest: Manifest, name: str, *, most: int) -> bytes:
        """All of a file of at most so many bytes; Oversized for a larger one, Malformed where the version has none of this name."""
        sizes = {file.name: file.size for file in manifest.files}
        if name not in sizes:
            raise Malformed(f"version {manifest.step} has no {name}")
        if sizes[name] > most:
            raise Oversized(f"{name} has {sizes[name]} bytes, more than {most}")
        with self._connected() as connection:
            return b"".join(self._chunk(connection, chunk) for chunk in manifest.chunks() if chunk.file.name == name)

    def rate(self, manifest: Manifest, *, seconds: float = 3.0, most: int = 128 << 20) -> float:
        """Bytes per second, of the version's chunks in order until the time is up or `most` bytes are here."""
        with self._connected() as connection:
            began, count = time.monotonic(), 0
            for chunk in manifest.chunks():
                count += len(self._chunk(connection, chunk))
                if time.monotonic() - began > seconds or count >= most:
                    break
        return count / max(time.monotonic() - began, 1e-6)

    def _chunk(self, connection: SourceConnection, chunk: Chunk) -> bytes:
        last, size = chunk.offset + chunk.size - 1, chunk.file.size
        target = file_target(self._expected.step, chunk.file.name)
        connection.ask_range(target, chunk.offset, last, size, self._deadline)
        data = bytearray(chunk.size)
        connection.read(memoryview(data), self._deadline)
        if not chunk.matches(memoryview(data)):
            raise HashMismatch(f"{chunk.file.name} from byte {chunk.offset} does not hash to what the manifest says")
        return bytes(data)

    @contextmanager
    def _connected(self) -> Iterator[SourceConnection]:
        pool = ConnectionPool(Timeouts())
        connection = pool.take(self._source, self._deadline, fresh=True)
        try:
            yield connection
        finally:
            pool.drop(connection)
