"""Fetches a version from several sources at once and believes none of them.

The signed manifest is taken from any source and checked against chain and trainer before anything else is fetched. Then
several threads ask for runs of chunks; each chunk is verified before it counts, so a lie costs one chunk and its teller
is known. A version is visible only when all of it is here; what was fetched before a crash or a deadline is found again
on disk by verifying it. What was verified and written is not read back: it would come from memory, and prove nothing.

While a version arrives, servers on the same store give its chunks to others, and relays are asked what they hold.

It does not look for sources (protocol/p2p does) and does not load weights.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from eth_typing import ChecksumAddress

from protocol.constants import MANIFEST_BYTES_MAX, SHARDCAST_CHUNK_BYTES
from protocol.errors import DeadlineExceeded, HashMismatch, ProtocolViolation, Unavailable, UsageError
from protocol.shardcast.connection import SourceConnection, Timeouts
from protocol.shardcast.crew import Crew, Perform
from protocol.shardcast.holding import Holding
from protocol.shardcast.http1 import file_target, manifest_target
from protocol.shardcast.inquiry import Inquiry
from protocol.shardcast.manifest import Chunk, Expected, Manifest, ManifestLimits, digest_of
from protocol.shardcast.partial import Partial
from protocol.shardcast.schedule import FetchTask, Schedule, Statistics
from protocol.shardcast.source import Source, Standing
from protocol.shardcast.store import VersionStore
from protocol.signing import Domain

_PATIENCE_SECONDS = 8.0  # longer than the usual time between two looks at the chain: a relay may see the version later
_RELAYS_MAX = 16  # asked in one fetch: those that served best before, and as many strangers
_VERSIONS_REMEMBERED = 16  # for how many unfinished versions it is known who lied


class Client:
    """Fetches versions of `run` into `store`, trusting the key `trainer` and the digests it is given, nobody else.

    `streams` is the number of requests under way at once. `serves` is the address at which others fetch from `store`, if any
    do; `relays` says that they depend on it, as those of a relay do. A relay that has nothing yet is waited for `patience`
    seconds before the origin is asked. `progress(step, present, total)` is called from the threads
    that fetch, in bytes, after every chunk that was verified. `statistics` adds up over all fetches.
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
        serves: str | None = None,
        relays: bool = False,
        patience: float = _PATIENCE_SECONDS,
        limits: ManifestLimits | None = None,
        chunk_bytes: int = SHARDCAST_CHUNK_BYTES,
        progress: Callable[[int, int, int], None] = lambda step, present, total: None,
        rng: random.Random | None = None,
    ) -> None:
        if streams < 1:
            raise UsageError("a client needs at least one stream")
        self.store, self.run, self.trainer, self.domain = store, run, trainer, domain
        self.timeouts, self.streams, self.limits = timeouts or Timeouts(), streams, limits or ManifestLimits()
        self.chunk_bytes, self.progress, self.rng = chunk_bytes, progress, rng or random.Random()
        self.serves, self.relays, self.patience = serves, relays, patience
        self.statistics = Statistics()
        self._mutex = Lock()
        self._standings: dict[str, Standing] = {}
        self._banned: dict[bytes, set[str]] = {}
        self._schedules: set[Schedule] = set()  # of the fetches that are under way
        self._is_closed = False

    def close(self) -> None:
        """Breaks off what is being fetched in other threads; every fetch raises Unavailable from now on."""
        with self._mutex:
            self._is_closed = True
            for schedule in self._schedules:
                schedule.abort(_closed())

    @contextmanager
    def _interruptible(self, schedule: Schedule) -> Iterator[None]:
        """Within the block, `close` ends the schedule."""
        with self._mutex:
            if self._is_closed:
                raise _closed()
            self._schedules.add(schedule)
        try:
            yield
        finally:
            with self._mutex:
                self._schedules.discard(schedule)

    def fetch(self, step: int, manifest_digest: bytes, sources: Sequence[Source], deadline: float) -> Path:
        """The folder of version `step`, whose manifest hashes to `manifest_digest` on chain; fetched if need be.

        `deadline` is the number of seconds that all of it may take. The folder stays for as long as the store keeps the
        version: lease it for use. Of several sources with one name the first is asked. A source that broke the rules is
        not asked for this version again, by later calls neither, unless nobody else is left for them.

        Raises DeadlineExceeded with what is missing and why each source failed; Unavailable once every source has been
        caught lying; PreflightError where the disk is full.
        """
        if len(manifest_digest) != 32:
            raise UsageError("a manifest digest has 32 bytes")  # or honest sources would be blamed for it
        if self._holds(step, manifest_digest):
            return self.store.folder(step)
        expected = Expected(self.run, step, manifest_digest, self.trainer, self.domain, self.limits, self.chunk_bytes)
        with self._mutex:
            banned = self._banned.setdefault(manifest_digest, set())
            while len(self._banned) > _VERSIONS_REMEMBERED:
                del self._banned[next(iter(self._banned))]
            if all(source.name in banned for source in sources):
                banned.clear()
            known = {source.name: self._standings.get(source.name, Standing()) for source in sources}
            self._standings = known
        sources = self._choose(sources, known)
        return _Fetch(self, expected, sources, known, banned, time.monotonic() + deadline).run()

    def _choose(self, sources: Sequence[Source], known: dict[str, Standing]) -> list[Source]:
        """The sources of one fetch: every origin, and of many relays half by merit and half by chance."""
        relays = [source for source in sources if source.is_relay]
        if len(relays) > _RELAYS_MAX:
            now = time.monotonic()
            self.rng.shuffle(relays)
            relays.sort(key=lambda source: -(known[source.name].bandwidth or 0.0) * known[source.name].success(now))
            best, rest = relays[: _RELAYS_MAX // 2], relays[_RELAYS_MAX // 2 :]
            relays = best + self.rng.sample(rest, _RELAYS_MAX // 2)
        return [*relays, *(source for source in sources if not source.is_relay)]

    def _holds(self, step: int, digest: bytes) -> bool:
        """Whether the version is here. One with another digest, which the chain has replaced since, is removed."""
        if not self.store.holds(step):
            return False
        with suppress(ProtocolViolation):  # its manifest was damaged on disk
            if digest_of(self.store.manifest(step)) == digest:
                return True
        self.store.discard(step)
        return False


def _closed() -> Unavailable:
    return Unavailable("the fetch was broken off")


@dataclass
class _Fetch:
    """One call of `Client.fetch`: `standings` and `banned` are the client's memory of `sources`, `deadline` is a moment."""

    client: Client
    expected: Expected
    sources: Sequence[Source]
    standings: dict[str, Standing]
    banned: set[str]
    deadline: float

    def run(self) -> Path:
        store, step = self.client.store, self.expected.step
        signed, manifest = self._fetch_manifest()
        label = self.expected.digest.hex()
        with store.draft(step, label, manifest.total_bytes) as draft, Partial(draft, manifest) as partial:
            return self._fill(partial, manifest, signed, lambda: store.commit(step, draft, signed))

    def _fetch_manifest(self) -> tuple[bytes, Manifest]:
        found: list[tuple[bytes, Manifest]] = []
        schedule = self._schedule([0], [0], lambda _: f"manifest of version {self.expected.step}")

        def perform(task: FetchTask, connection: SourceConnection, room: memoryview) -> None:
            length = connection.ask_whole(manifest_target(self.expected.step), MANIFEST_BYTES_MAX, self.deadline)
            data = bytearray(length)
            connection.read(memoryview(data), self.deadline)
            found.append((bytes(data), self.expected.open(bytes(data))))
            schedule.arrived(task, 0.0)

        with self.client._interruptible(schedule), self._crew(schedule, perform, room=0):
            schedule.wait_for(0, self.deadline)
        return found[0]

    def _fill(self, partial: Partial, manifest: Manifest, signed: bytes, commit: Callable[[], Path]) -> Path:
        """Completes `partial` while it is shown to others; what `commit` then returns."""
        chunks = list(manifest.chunks())
        numbers = {file.name: number for number, file in enumerate(manifest.files)}
        present = self._present(partial, chunks)
        self.client.statistics.resumed_chunks += len(present)
        relays = {
            source.name: source
            for source in reversed(self.sources)
            if source.is_relay and source.name not in self.banned
        }
        schedule = self._schedule(
            [chunk.size for chunk in chunks],
            [numbers[chunk.file.name] for chunk in chunks],
            lambda number: f"{chunks[number].file.name} from byte {chunks[number].offset}",
            present,
            relays,
        )
        inquiries = [
            Inquiry(schedule, source, manifest.step, len(chunks), self.client.timeouts, self.deadline)
            for source in relays.values()
        ]

        def perform(task: FetchTask, connection: SourceConnection, room: memoryview) -> None:
            began = time.monotonic()
            for chunk in self._receive([chunks[number] for number in task.chunks], connection, room):
                partial.write(chunk, room[: chunk.size])
                ended = time.monotonic()
                schedule.arrived(task, ended - began)
                self.client.progress(manifest.step, schedule.bytes_present, manifest.total_bytes)
                if not schedule.is_wanted(task):
                    return
                began = ended

        arriving = Arriving(
            signed, partial, schedule, {(chunk.file.name, chunk.offset): n for n, chunk in enumerate(chunks)},
            self.client.chunk_bytes,
        )  # fmt: skip
        with self.client._interruptible(schedule), self.client.store.show(manifest.step, arriving):
            with self._crew(schedule, perform, room=self.client.chunk_bytes, inquiries=inquiries):
                for number in range(len(chunks)):
                    schedule.wait_for(number, self.deadline)
            return commit()

    def _receive(self, chunks: Sequence[Chunk], connection: SourceConnection, room: memoryview) -> Iterator[Chunk]:
        """Asks for neighbouring chunks in one request; gives each when its verified bytes lie in `room`."""
        file, first, last = chunks[0].file, chunks[0].offset, chunks[-1].offset + chunks[-1].size - 1
        connection.ask_range(file_target(self.expected.step, file.name), first, last, file.size, self.deadline)
        for chunk in chunks:
            content = room[: chunk.size]
            connection.read(content, self.deadline)
            if not chunk.matches(content):
                raise HashMismatch(f"{file.name} from byte {chunk.offset} does not hash to what the manifest says")
            yield chunk

    def _present(self, partial: Partial, chunks: Sequence[Chunk]) -> list[int]:
        """Numbers of the chunks that an earlier attempt has left on disk."""
        room = memoryview(bytearray(self.client.chunk_bytes))
        found = []
        for number, chunk in enumerate(chunks):
            if self.client._is_closed:
                raise _closed()
            if time.monotonic() > self.deadline:
                raise DeadlineExceeded(f"verifying what was left of version {self.expected.step} took too long")
            if partial.holds(chunk, room):
                found.append(number)
        return found

    def _schedule(
        self, sizes: Sequence[int], files: Sequence[int], describe: Callable[[int], str], present: Sequence[int] = (),
        watched: Iterable[str] = (),
    ) -> Schedule:  # fmt: skip
        return Schedule(
            sizes,
            files,
            self.sources,
            self.standings,
            self.banned,
            self.client.statistics,
            streams=self.client.streams,
            describe=describe,
            present=present,
            watched=watched,
            patience=self.client.patience,
            relays=self.client.relays,
            rng=self.client.rng,
        )

    def _crew(self, schedule: Schedule, perform: Perform, *, room: int, inquiries: Sequence[Inquiry] = ()) -> Crew:
        client = self.client
        fields = {} if client.serves is None else {"Serves": client.serves}
        return Crew(
            schedule, perform, client.timeouts, streams=client.streams, room=room, deadline=self.deadline, inquiries=inquiries,
            fields=fields,
        )  # fmt: skip


@dataclass(frozen=True)
class Arriving:
    """A version on its way, as a server sees it (protocol.shardcast.store.Growing)."""

    signed: bytes
    partial: Partial
    schedule: Schedule
    chunks: dict[tuple[str, int], int]  # number of the chunk of a file that begins at an offset
    chunk_bytes: int

    def open_range(self, name: str, first: int, last: int) -> int | None:
        begins, ends = (self.chunks.get((name, byte - byte % self.chunk_bytes)) for byte in (first, last))
        if begins is None or ends is None or first > last or not self.schedule.has(range(begins, ends + 1)):
            return None
        return self.partial.reopen(name)

    def holding(self, after: int, seconds: float) -> Holding:
        return self.schedule.holding(after, seconds)
