"""Fetches a version from several sources at once and believes none of them.

The signed manifest is taken from any source and checked against chain and trainer before anything else is fetched. Then
several threads ask for runs of chunks; each chunk is verified before it counts, so a lie costs one chunk and its teller
is known. A version is visible only when all of it is here; what was fetched before a crash or a deadline is found again
on disk by verifying it. What was verified and written is not read back: it would come from memory, and prove nothing.

While a version arrives, servers on the same store give its chunks to others, and relays are asked what they hold.

Where an earlier version is here and the deltas from it are fewer bytes, these are fetched instead and applied to it. What
comes out is verified as if it had been fetched, and whatever is wrong with a delta, the version is fetched whole.

It does not look for sources (protocol/p2p does) and does not load weights.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from threading import Lock

import numpy as np
from eth_typing import ChecksumAddress

from protocol.constants import MANIFEST_BYTES_MAX, SHARDCAST_CHUNK_BYTES
from protocol.errors import (
    DeadlineExceeded,
    HashMismatch,
    IntegrityError,
    Malformed,
    MurmurationError,
    PreflightError,
    ProtocolViolation,
    Unavailable,
    UsageError,
)
from protocol.shardcast.arriving import Arriving
from protocol.shardcast.connection import NotServed, SourceConnection, Timeouts
from protocol.shardcast.crew import Crew, Perform
from protocol.shardcast.http1 import delta_target, file_target, manifest_target
from protocol.shardcast.inquiry import Inquiry
from protocol.shardcast.manifest import Expected, Manifest, ManifestLimits, digest_of, stored
from protocol.shardcast.partial import Partial
from protocol.shardcast.schedule import FetchTask, Schedule, Statistics
from protocol.shardcast.source import Source, Standing
from protocol.shardcast.store import DELTA_FOLDER, VersionStore, disk_errors
from protocol.signing import Domain

log = logging.getLogger("weights")

_CHAIN_MAX = 16  # deltas that are applied one after the other rather than fetching the whole
_DELTA_SHARE = 0.5  # of a fetch's time, after which what deltas did not bring is fetched whole
_AGAIN_SECONDS = 0.25  # before a relay that has no delta yet is asked for it again
_PATIENCE_SECONDS = 8.0  # longer than the usual time between two looks at the chain: a relay may see the version later
_RELAYS_MAX = 16  # asked in one fetch: those that served best before, and as many strangers
_VERSIONS_REMEMBERED = 16  # for how many unfinished versions it is known who lied


class Client:
    """Fetches versions of `run` into `store`, trusting the key `trainer` and the digests it is given, nobody else.

    `streams` is the number of requests under way at once. `serves` is the address at which others fetch from `store`, if any
    do; `relays` says that they depend on it, as those of a relay do. A relay that has nothing yet is waited for `patience`
    seconds before the origin is asked. `progress(step, present, total)` is called from the threads that fetch, in bytes, after
    every chunk that was verified. `statistics` adds up over all fetches.
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
        self._whole_only: deque[bytes] = deque(maxlen=_VERSIONS_REMEMBERED)  # manifests of which the delta failed
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
        store, step, label = self.client.store, self.expected.step, self.expected.digest.hex()
        signed, manifest = self._drafted_manifest(label) or self._fetch_manifest(self.expected)
        size = manifest.total_bytes + manifest.delta_bytes
        with (
            store.draft(step, label, size) as draft,
            Partial(draft, manifest) as partial,
            ExitStack() as kept,  # the delta's files, for whoever asks before the version is visible
        ):
            store.begin(draft, signed)
            present = self._present(partial, manifest)
            self.client.statistics.resumed_chunks += len(present)
            made = self._make(partial, manifest, signed, present, kept)
            if made is None:
                kept.close()
                _drop_delta(draft)
            else:
                present = made.present
            commit = lambda: store.commit(step, draft, signed)  # noqa: E731
            return self._fill(partial, manifest, signed, present, commit, delta=made.delta if made else None)

    def _drafted_manifest(self, label: str) -> tuple[bytes, Manifest] | None:
        """The manifest that an earlier attempt began with: relays that have all of a version between them need nobody else to go on."""
        signed = self.client.store.begun(self.expected.step, label)
        with suppress(ProtocolViolation):  # damaged by a crash
            return None if signed is None else (signed, self.expected.open(signed))
        return None

    def _fetch_manifest(self, expected: Expected, *, patient: bool = True) -> tuple[bytes, Manifest]:
        """The signed manifest and what it says; sources may not have it yet, or not at all unless `patient`."""
        found: list[tuple[bytes, Manifest]] = []
        schedule = self._schedule([0], [0], lambda _: f"manifest of version {expected.step}")
        began = time.monotonic()

        def perform(task: FetchTask, connection: SourceConnection, room: memoryview) -> None:
            with self._passed_over(schedule, task.source, float("inf") if patient else began):
                length = connection.ask_whole(manifest_target(expected.step), MANIFEST_BYTES_MAX, self.deadline)
            data = bytearray(length)
            connection.read(memoryview(data), self.deadline)
            found.append((bytes(data), expected.open(bytes(data))))
            schedule.arrived(task, 0.0)

        with self.client._interruptible(schedule), self._crew(schedule, perform, room=0):
            schedule.wait_for(0, self.deadline)
        return found[0]

    def _fill(
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
        relays = {
            source.name: source
            for source in reversed(self.sources)
            if source.is_relay and source.name not in self.banned
        }
        schedule = self._schedule_of(manifest, present, relays)
        count = len(manifest.numbers)
        inquiries = [
            Inquiry(schedule, source, manifest.step, count, self.client.timeouts, self.deadline)
            for source in relays.values()
        ]
        arriving = Arriving(signed, partial, schedule, manifest.numbers, self.client.chunk_bytes, delta=delta)
        with self.client._interruptible(schedule), self.client.store.show(manifest.step, arriving):
            if len(present) < count:
                perform = self._performing(partial, manifest, schedule, file_target)
                with self._crew(schedule, perform, room=self.client.chunk_bytes, inquiries=inquiries):
                    for number in range(count):
                        schedule.wait_for(number, self.deadline)
            return commit()

    def _performing(
        self,
        partial: Partial,
        manifest: Manifest,
        schedule: Schedule,
        target: Callable[[int, str], str],
        asked: Callable[[Source], AbstractContextManager[None]] = lambda source: nullcontext(),
    ) -> Perform:
        """How tasks are carried out: neighbouring chunks in one request, each written when it has verified."""
        chunks = list(manifest.chunks())

        def perform(task: FetchTask, connection: SourceConnection, room: memoryview) -> None:
            began = time.monotonic()
            wanted = [chunks[number] for number in task.chunks]
            file, first, last = wanted[0].file, wanted[0].offset, wanted[-1].offset + wanted[-1].size - 1
            with asked(task.source):
                connection.ask_range(target(manifest.step, file.name), first, last, file.size, self.deadline)
            for chunk in wanted:
                content = room[: chunk.size]
                connection.read(content, self.deadline)
                if not chunk.matches(content):
                    raise HashMismatch(f"{file.name} from byte {chunk.offset} does not hash to what the manifest says")
                partial.write(chunk, content)
                ended = time.monotonic()
                schedule.arrived(task, ended - began)
                self.client.progress(manifest.step, schedule.bytes_present, manifest.total_bytes)
                if not schedule.is_wanted(task):
                    return
                began = ended

        return perform

    def _present(self, partial: Partial, manifest: Manifest) -> list[int]:
        """Numbers of the chunks that lie on disk and verify."""
        room = memoryview(bytearray(self.client.chunk_bytes))
        found = []
        for number, chunk in enumerate(manifest.chunks()):
            if self.client._is_closed:
                raise _closed()
            if time.monotonic() > self.deadline:
                raise DeadlineExceeded(f"verifying what is here of version {manifest.step} took too long")
            if partial.holds(chunk, room):
                found.append(number)
        return found

    # ---- out of a version that is here

    def _make(
        self, partial: Partial, manifest: Manifest, signed: bytes, present: Sequence[int], kept: ExitStack
    ) -> _Made | None:
        """Makes the files of `partial` out of a version that is here, where the deltas are fewer bytes than what is missing.

        Whatever fails here is told in the log, and None: then the version is fetched whole.
        """
        client = self.client
        sizes = [chunk.size for chunk in manifest.chunks()]
        missing = sum(sizes) - sum(sizes[number] for number in present)
        if manifest.base is None or manifest.digest in client._whole_only:
            return None
        in_time = replace(self, deadline=time.monotonic() + _DELTA_SHARE * (self.deadline - time.monotonic()))
        try:
            chain = in_time._chain(manifest, missing)
            for earlier_signed, earlier in chain or ():
                in_time._bring(earlier, earlier_signed)
            return None if chain is None else in_time._apply(partial, manifest, signed, kept)
        except (MurmurationError, OSError) as error:
            if client._is_closed:
                raise
            log.warning("version %d is fetched whole: its delta failed (%s)", manifest.step, error)
            client._whole_only.append(manifest.digest)
            return None

    def _chain(self, manifest: Manifest, most: int) -> list[tuple[bytes, Manifest]] | None:
        """Versions to be made before this one out of one that is here, the oldest first; None where fetching the whole,
        `most` bytes, costs no more."""
        chain: list[tuple[bytes, Manifest]] = []
        cost = 0
        if not any(manifest.anchor <= step < manifest.step for step in self.client.store.steps()):
            return None
        lenient = replace(self, banned=set(self.banned))  # whoever has another version of a base's number may be honest
        while (base := manifest.base) is not None:
            cost += manifest.delta_bytes
            if cost >= most or len(chain) == _CHAIN_MAX:
                return None
            digest = bytes.fromhex(base.manifest)
            if self._is_here(base.step, digest):
                return chain
            expected = replace(self.expected, step=base.step, digest=digest)
            signed, manifest = lenient._fetch_manifest(expected, patient=False)
            chain.insert(0, (signed, manifest))
        return None

    def _is_here(self, step: int, digest: bytes) -> bool:
        store = self.client.store
        with suppress(ProtocolViolation, PreflightError):  # damaged on disk, or retired meanwhile
            return store.holds(step) and digest_of(store.manifest(step)) == digest
        return False

    def _bring(self, manifest: Manifest, signed: bytes) -> None:
        """Makes a version between the one that is here and the one that is wanted. Raises HashMismatch where it comes out wrong."""
        store = self.client.store
        size = manifest.total_bytes + manifest.delta_bytes
        with (
            store.draft(manifest.step, manifest.digest.hex(), size) as draft,
            Partial(draft, manifest) as partial,
            ExitStack() as kept,
        ):
            made = self._apply(partial, manifest, signed, kept)
            if len(made.present) < len(manifest.numbers):
                raise HashMismatch(f"the delta of version {manifest.step} makes other bytes than that version's")
            store.commit(manifest.step, draft, signed)

    def _apply(self, partial: Partial, manifest: Manifest, signed: bytes, kept: ExitStack) -> _Made:
        """Fetches the delta of `manifest`, whose base is here, and writes what it makes over the files of `partial`. Meanwhile
        the delta is shown to others; its files stay open in `kept`."""
        store, base = self.client.store, manifest.base
        assert base is not None and manifest.delta is not None
        deltas = partial.folder / DELTA_FOLDER
        with disk_errors(deltas):
            deltas.mkdir(exist_ok=True)
        files = replace(manifest, files=manifest.delta, base=None, delta=None)
        with store.lease(base.step) as folder:
            before = stored(store.manifest(base.step), chunk_bytes=manifest.chunk_bytes)
            if before.digest.hex() != base.manifest:
                raise IntegrityError(f"version {base.step} was replaced")
            of_delta = kept.enter_context(Partial(deltas, files))
            schedule = self._schedule_of(files, self._present(of_delta, files))
            nothing = np.zeros(len(manifest.numbers), np.bool_)
            arriving = Arriving(signed, of_delta, schedule, files.numbers, self.client.chunk_bytes, nothing=nothing)
            with self.client._interruptible(schedule), store.show(manifest.step, arriving):
                since = time.monotonic()
                perform = self._performing(
                    of_delta, files, schedule, delta_target, lambda source: self._passed_over(schedule, source, since)
                )
                with self._crew(schedule, perform, room=self.client.chunk_bytes):
                    for number in range(len(files.numbers)):
                        schedule.wait_for(number, self.deadline)
                self._write(partial.folder, manifest, folder, before)
                present = self._present(partial, manifest)
        log.info(
            "version %d is made out of version %d: %d bytes instead of %d",
            manifest.step, base.step, manifest.delta_bytes, manifest.total_bytes,
        )  # fmt: skip
        return _Made(present, arriving)

    def _write(self, draft: Path, manifest: Manifest, folder: Path, before: Manifest) -> None:
        """Writes the files of `draft` out of its delta and the base in `folder`."""
        known = {file.name: file for file in before.files}
        changed = {file.name for file in manifest.delta or ()}
        for file in manifest.files:
            if self.client._is_closed or time.monotonic() > self.deadline:
                raise DeadlineExceeded("applying it took too long")
            if file.name in changed:
                old = folder / file.name if file.name in known else None
                _write_changed(draft / DELTA_FOLDER / file.name, old, draft / file.name, file.size)
            elif known.get(file.name) == file:
                with disk_errors(draft):
                    shutil.copyfile(folder / file.name, draft / file.name)
            else:
                raise Malformed(f"the delta of version {manifest.step} leaves out {file.name}, which changed")

    @contextmanager
    def _passed_over(self, schedule: Schedule, source: Source, since: float) -> Iterator[None]:
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

    def _schedule_of(self, manifest: Manifest, present: Sequence[int], watched: Iterable[str] = ()) -> Schedule:
        chunks = list(manifest.chunks())
        numbers = {file.name: number for number, file in enumerate(manifest.files)}
        return self._schedule(
            [chunk.size for chunk in chunks],
            [numbers[chunk.file.name] for chunk in chunks],
            lambda number: f"{chunks[number].file.name} from byte {chunks[number].offset}",
            present,
            watched,
        )

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
class _Made:
    """The chunks that came out right, and what they were made with."""

    present: list[int]
    delta: Arriving


def _drop_delta(draft: Path) -> None:
    """What may not be whole must not be served, and was of no use here."""
    with disk_errors(draft), suppress(FileNotFoundError):
        shutil.rmtree(draft / DELTA_FOLDER)


def _write_changed(delta: Path, base: Path | None, target: Path, size: int) -> None:
    from protocol.shardcast.delta import apply  # pyarrow is imported where deltas are used

    with disk_errors(target):
        fd = os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            apply(delta, base, fd, size)
        finally:
            os.close(fd)
