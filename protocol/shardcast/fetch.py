"""One fetch of a version: the signed manifest, then its chunks from several sources at once, each verified before it counts.

Client (client.py) says whom it asks and what it remembers of them; by_delta.py makes a version out of an earlier one with the same means.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from protocol.constants import MANIFEST_BYTES_MAX
from protocol.errors import HashMismatch, ProtocolViolation, Unavailable
from protocol.shardcast.arriving import Arriving
from protocol.shardcast.connection import NotServed, SourceConnection
from protocol.shardcast.crew import Crew, Perform
from protocol.shardcast.http1 import file_target, manifest_target
from protocol.shardcast.inquiry import Inquiry
from protocol.shardcast.manifest import Chunk, Expected, Manifest
from protocol.shardcast.partial import Partial
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.source import Source, Standing
from protocol.shardcast.task import FetchTask

if TYPE_CHECKING:
    from protocol.shardcast.client import Client

_NONE: Mapping[tuple[str, int], str] = MappingProxyType({})
_AGAIN_SECONDS = 0.25  # before a relay that has no delta yet is asked for it again


def closed() -> Unavailable:
    return Unavailable("the fetch was broken off")


@dataclass
class Fetch:
    """One call of `Client.fetch`: `standings` and `banned` are the client's memory of `sources`. `deadline` is the moment until which others
    are waited for; what this machine needs for itself (`alone`) puts it off."""

    client: Client
    expected: Expected
    sources: Sequence[Source]
    standings: dict[str, Standing]
    banned: set[str]
    deadline: float
    seconds_alone: float = 0.0
    written: set[int] = field(default_factory=set)
    """Chunks that this attempt has verified, and that lie in the draft as they were then."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which nobody is waited for. A slow disk would otherwise take the whole of every attempt for looking at what is
        here, however many there are."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.put_off(time.monotonic() - began)

    def put_off(self, seconds: float) -> None:
        self.deadline += seconds
        self.seconds_alone += seconds

    def drafted_manifest(self, label: str) -> tuple[bytes, Manifest] | None:
        """The manifest that an earlier attempt began with: relays that have all of a version between them need nobody else to go on."""
        signed = self.client.store.begun(self.expected.step, label)
        with suppress(ProtocolViolation):  # damaged by a crash
            return None if signed is None else (signed, self.expected.open(signed))
        return None

    def fetch_manifest(self, expected: Expected, *, patient: bool = True) -> tuple[bytes, Manifest]:
        """The signed manifest and what it says; sources may not have it yet, or not at all unless `patient`."""
        found: list[tuple[bytes, Manifest]] = []
        schedule = self._schedule([0], [0], lambda _: f"manifest of version {expected.step}")
        began = time.monotonic()

        def perform(task: FetchTask, connection: SourceConnection, room: memoryview) -> None:
            with self.passed_over(schedule, task.source, float("inf") if patient else began):
                length = connection.ask_whole(manifest_target(expected.step), MANIFEST_BYTES_MAX, self.deadline)
            data = bytearray(length)
            connection.read(memoryview(data), self.deadline)
            found.append((bytes(data), expected.open(bytes(data))))
            schedule.arrived(task, 0.0)

        with self.client.interruptible(schedule), self.crew(schedule, perform, room=0):
            schedule.wait_for(0, self.deadline)
        return found[0]

    def fill(
        self,
        partial: Partial,
        manifest: Manifest,
        signed: bytes,
        present: Sequence[int],
        commit: Callable[[], Path],
        *,
        delta: Arriving | None = None,
    ) -> Path:
        """Completes `partial`, which holds the chunks `present`, while it is shown to others; what `commit` then returns."""
        relays = self.relays()
        schedule = self.schedule_of(manifest, present, relays)
        count = len(manifest.numbers)

        def inquire_of(relay: Source) -> Inquiry:
            return Inquiry(schedule, relay, manifest.step, count, self.client.timeouts, self.deadline)

        arriving = Arriving(signed, partial, schedule, manifest.numbers, self.client.chunk_bytes, delta=delta)
        with self.client.interruptible(schedule), self.client.store.show(manifest.step, arriving):
            if len(present) < count:
                perform = self.performing(partial, manifest, schedule, file_target, note=self.written.add)
                with self.crew(
                    schedule, perform, room=self.client.chunk_bytes, relays=relays.values(), inquire_of=inquire_of
                ):
                    schedule.wait_for_all(self.deadline)
            return commit()

    def relays(self) -> dict[str, Source]:
        """Those that are asked what they hold."""
        return {
            source.name: source
            for source in reversed(self.sources)
            if source.is_relay and source.name not in self.banned
        }

    def performing(
        self,
        partial: Partial,
        manifest: Manifest,
        schedule: Schedule,
        target: Callable[[int, str], str],
        asked: Callable[[Source], AbstractContextManager[None]] = lambda source: nullcontext(),
        *,
        chunks: Sequence[Chunk] | None = None,
        arrived: Callable[[Chunk], None] = lambda chunk: None,
        note: Callable[[int], None] = lambda number: None,
    ) -> Perform:
        """How tasks are carried out: neighbouring chunks in one request, each written when it has verified, and then `arrived`; `note` hears its number.
        `chunks` stand in for the manifest's where their hashes come to be known only now."""
        chunks = list(manifest.chunks()) if chunks is None else chunks

        def perform(task: FetchTask, connection: SourceConnection, room: memoryview) -> None:
            began = time.monotonic()
            wanted = [chunks[number] for number in task.chunks]
            file, first, last = wanted[0].file, wanted[0].offset, wanted[-1].offset + wanted[-1].size - 1
            with asked(task.source):
                connection.ask_range(target(manifest.step, file.name), first, last, file.size, self.deadline)
            for number, chunk in zip(task.chunks, wanted, strict=True):
                content = room[: chunk.size]
                connection.read(content, self.deadline)
                if not chunk.matches(content):
                    raise HashMismatch(f"{file.name} from byte {chunk.offset} does not hash to what the manifest says")
                partial.write(chunk, content)
                arrived(chunk)
                note(number)
                ended = time.monotonic()
                schedule.arrived(task, ended - began)
                self.client.progress(manifest.step, schedule.stock.bytes_present, manifest.total_bytes)
                if not schedule.is_wanted(task):
                    return
                began = ended

        return perform

    def present(
        self,
        partial: Partial,
        manifest: Manifest,
        verified: Mapping[tuple[str, int], str] = _NONE,
        known: Collection[int] = (),
    ) -> list[int]:
        """Numbers of the chunks that lie on disk and verify, however long that takes; `verified` are the hashes of some that
        did when they were written into this very draft, by file and offset, and `known` are numbers of others."""
        room = memoryview(bytearray(self.client.chunk_bytes))
        found = []
        with self.alone():
            for number, chunk in enumerate(manifest.chunks()):
                if self.client.is_closed:
                    raise closed()
                is_known = number in known or verified.get((chunk.file.name, chunk.offset)) == chunk.blake3
                if (is_known and not partial.is_hole(chunk)) or partial.holds(chunk, room):
                    found.append(number)
        return found

    @contextmanager
    def passed_over(self, schedule: Schedule, source: Source, since: float) -> Iterator[None]:
        """Within the block a source may say that it does not have what it need not have. It is passed over without blame: at
        once, or where it is a relay that may have it soon, when it was waited for long enough."""
        try:
            yield
        except NotServed as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                raise
            waited = time.monotonic() - since
            if error.status == HTTPStatus.NOT_FOUND and source.is_relay and waited < self.client.patience:
                raise NotServed(error.status, _AGAIN_SECONDS) from error
            schedule.lacks(source)
            raise

    def schedule_of(
        self, manifest: Manifest, present: Sequence[int], watched: Iterable[str] = (), *, known: int | None = None
    ) -> Schedule:
        chunks = list(manifest.chunks())
        numbers = {file.name: number for number, file in enumerate(manifest.files)}
        return self._schedule(
            [chunk.size for chunk in chunks],
            [numbers[chunk.file.name] for chunk in chunks],
            lambda number: f"{chunks[number].file.name} from byte {chunks[number].offset}",
            present,
            watched,
            known,
        )

    def _schedule(
        self, sizes: Sequence[int], files: Sequence[int], describe: Callable[[int], str], present: Sequence[int] = (),
        watched: Iterable[str] = (), known: int | None = None,
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
            known=known,
            patience=self.client.patience,
            relays=self.client.relays,
            rng=self.client.rng,
        )

    def crew(
        self, schedule: Schedule, perform: Perform, *, room: int, relays: Iterable[Source] = (),
        inquire_of: Callable[[Source], Inquiry] | None = None,
    ) -> Crew:  # fmt: skip
        client = self.client
        inquiries = [] if inquire_of is None else [inquire_of(relay) for relay in relays]
        return Crew(
            schedule, perform, client.timeouts, streams=client.streams, room=room, deadline=self.deadline, inquiries=inquiries,
            inquire_of=inquire_of, fields=client.fields,
        )  # fmt: skip
