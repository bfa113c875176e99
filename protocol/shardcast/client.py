"""Fetches a version from several sources at once and believes none of them.

The signed manifest is taken from any source and checked against chain and trainer before anything else is fetched. Then
`streams` threads ask for runs of chunks; each chunk is verified before it counts, so a lie costs one chunk and its teller
is known. Meanwhile the waiting thread hashes the whole files in order. A version is visible only when all of it is right;
what was fetched before a crash or a deadline is found again on disk by verifying it.

It does not look for sources (protocol/p2p does) and does not load weights.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread

from eth_typing import ChecksumAddress

from protocol.constants import MANIFEST_BYTES_MAX, SHARDCAST_CHUNK_BYTES
from protocol.errors import DeadlineExceeded, HashMismatch, ProtocolViolation, Unavailable, UsageError
from protocol.shardcast.connection import Connection, Pool, Timeouts
from protocol.shardcast.http1 import file_target, manifest_target
from protocol.shardcast.manifest import Chunk, Expected, Limits, Manifest, digest_of
from protocol.shardcast.partial import Partial
from protocol.shardcast.schedule import Schedule, Statistics, Task
from protocol.shardcast.source import Source, Standing
from protocol.shardcast.store import VersionStore
from protocol.signing import Domain

Perform = Callable[[Task, Connection], None]
"""Carries out a task on a connection: asks, reads, verifies, writes, and reports each chunk to the schedule."""


class Client:
    """Fetches versions of `run` into `store`, trusting the key `trainer` and the digests it is given, nobody else.

    `streams` is the number of threads, each with one request under way. `progress(step, done, total)` is called with
    numbers of bytes after every chunk that was verified. `statistics` adds up over all fetches.
    """

    def __init__(
        self,
        store: VersionStore,
        domain: Domain,
        run: int,
        trainer: ChecksumAddress,
        *,
        timeouts: Timeouts | None = None,
        streams: int = 4,
        limits: Limits | None = None,
        chunk_bytes: int = SHARDCAST_CHUNK_BYTES,
        progress: Callable[[int, int, int], None] = lambda step, done, total: None,
        rng: random.Random | None = None,
    ) -> None:
        if streams < 1:
            raise UsageError("a client needs at least one stream")
        self.store = store
        self.statistics = Statistics()
        self._domain, self._run, self._trainer = domain, run, trainer
        self._timeouts, self._streams, self._limits = timeouts or Timeouts(), streams, limits or Limits()
        self._chunk_bytes, self._progress, self._rng = chunk_bytes, progress, rng or random.Random()
        self._mutex = Lock()
        self._standings: dict[str, Standing] = {}
        self._banned: dict[bytes, set[str]] = defaultdict(set)

    def fetch(self, step: int, manifest_digest: bytes, sources: Sequence[Source], deadline: float) -> Path:
        """The folder of version `step`, whose manifest hashes to `manifest_digest` on chain; fetched if need be.

        `deadline` is a value of `time.monotonic()`. The folder stays for as long as the store keeps the version: lease
        it for use. Of several sources with one name the first is asked.

        Raises DeadlineExceeded with what is missing and why each source failed; Unavailable once every source has been
        caught lying; HashMismatch if the signed manifest contradicts itself; PreflightError for a full disk.
        """
        if self._is_held(step, manifest_digest):
            return self.store.folder(step)
        expected = Expected(
            self._run, step, manifest_digest, self._trainer, self._domain, self._limits, self._chunk_bytes
        )
        with self._mutex:
            for source in sources:
                self._standings.setdefault(source.name, Standing())
            banned = self._banned[manifest_digest]
        signed, manifest = self._fetch_manifest(expected, sources, banned, deadline)
        with self.store.draft(step, manifest_digest.hex(), manifest.total_bytes) as draft:
            with Partial(draft, manifest) as partial:
                self._fill(partial, manifest, sources, banned, deadline)
            folder = self.store.commit(step, draft, signed)
        with self._mutex:
            self._banned.pop(manifest_digest, None)
            self._standings = {source.name: self._standings[source.name] for source in sources}
        return folder

    def _is_held(self, step: int, digest: bytes) -> bool:
        """Whether the version is here. One with another digest, which the chain has since replaced, is removed."""
        if not self.store.holds(step):
            return False
        if digest_of(self.store.manifest(step)) == digest:
            return True
        self.store.discard(step)
        return False

    # ---- the manifest

    def _fetch_manifest(
        self, expected: Expected, sources: Sequence[Source], banned: set[str], deadline: float
    ) -> tuple[bytes, Manifest]:
        schedule = self._schedule([0], [0], sources, banned, lambda _: f"manifest of version {expected.step}")
        found: list[tuple[bytes, Manifest]] = []

        def perform(task: Task, connection: Connection) -> None:
            length = connection.ask_whole(manifest_target(expected.step), MANIFEST_BYTES_MAX, deadline)
            data = bytearray(length)
            connection.read(memoryview(data), deadline)
            found.append((bytes(data), expected.open(bytes(data))))
            schedule.arrived(task, 0.0)

        with self._crew(schedule, perform, deadline):
            schedule.wait_for(0, deadline)
        return found[0]

    # ---- the chunks

    def _fill(
        self, partial: Partial, manifest: Manifest, sources: Sequence[Source], banned: set[str], deadline: float
    ) -> None:
        """Completes `partial` from the sources and checks its whole files."""
        chunks = list(manifest.chunks())
        numbers = {file.name: number for number, file in enumerate(manifest.files)}
        present = self._present(partial, chunks, deadline)
        self.statistics.resumed_chunks += len(present)
        schedule = self._schedule(
            [chunk.size for chunk in chunks],
            [numbers[chunk.file.name] for chunk in chunks],
            sources,
            banned,
            lambda number: f"{chunks[number].file.name} from byte {chunks[number].offset}",
            present,
        )
        ...
