"""Fetches a version from several sources at once and believes none of them.

The signed manifest is taken from any source and checked against chain and trainer before anything else is fetched. Then
several threads ask for runs of chunks; each chunk is verified before it counts, so a lie costs one chunk and its teller
is known. A version is visible only when all of it is here; what was fetched before a crash, a deadline or a full disk is found again
on disk by verifying it. What was verified and written is not read back: it would come from memory, and prove nothing; nor is it by
the next attempt of the same process after a deadline, where nobody has touched the files since. Where the disk fails, all of the draft is
thrown away, since reading it back proves nothing there either: the next attempt fetches and writes everything anew.

While a version arrives, servers on the same store give its chunks to others, and relays are asked what they hold.

Where an earlier version is here and the deltas from it are fewer bytes, these are fetched instead and applied to it. What
comes out is verified as if it had been fetched, and whatever is wrong with a delta, the version is fetched whole.

It does not look for sources (protocol/p2p does) and does not load weights.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock

from eth_typing import ChecksumAddress

from protocol.constants import SHARDCAST_CHUNK_BYTES
from protocol.errors import LockHeld, ProtocolViolation, Unavailable, UsageError
from protocol.shardcast import by_delta
from protocol.shardcast.ahead import LABEL, Ahead
from protocol.shardcast.connection import Timeouts
from protocol.shardcast.fetch import Fetch, closed
from protocol.shardcast.manifest import Expected, Manifest, ManifestLimits, digest_of
from protocol.shardcast.partial import Partial
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.source import Source, Standing
from protocol.shardcast.store import VersionStore, disk_errors
from protocol.shardcast.task import Statistics
from protocol.signing import Domain

_PATIENCE_SECONDS = 8.0  # longer than the usual time between two looks at the chain: a relay may see the version later
_RELAYS_MAX = 16  # asked in one fetch: those that served best before, and as many strangers
_DRAFTS_REMEMBERED = 4  # of which it is known what has verified in them
_VERSIONS_REMEMBERED = 16  # for how many unfinished versions it is known who lied

_DraftState = tuple[tuple[int, int, int], ...]
"""Of each file of a draft device, inode and the moment of its last change: another write, or another file, shows."""


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
        self.former: tuple[ChecksumAddress, ...] = ()
        """Keys that were the trainer's before."""
        self.timeouts, self.streams, self.limits = timeouts or Timeouts(), streams, limits or ManifestLimits()
        self.chunk_bytes, self.progress, self.rng = chunk_bytes, progress, rng or random.Random()
        self.serves, self.relays, self.patience = serves, relays, patience
        self.statistics = Statistics()
        self._mutex = Lock()
        self._standings: dict[str, Standing] = {}
        self._banned: dict[bytes, set[str]] = {}
        self.whole_only: deque[bytes] = deque(maxlen=_VERSIONS_REMEMBERED)  # manifests of which the delta failed
        self._drafted: dict[bytes, tuple[_DraftState | None, Collection[int]]] = {}  # by manifest
        self.applied_rate: float | None = None  # bytes of a version a second, when the last one was made by a delta
        self._schedules: set[Schedule] = set()  # of the fetches that are under way
        self._ahead: Ahead | None = None  # the last one that began
        self.is_closed = False

    def close(self) -> None:
        """Breaks off what is being fetched in other threads; every fetch raises Unavailable from now on."""
        with self._mutex:
            self.is_closed = True
            for schedule in self._schedules:
                schedule.abort(closed())
        if self._ahead is not None:
            self._ahead.stop()

    @property
    def fields(self) -> dict[str, str]:
        """Header fields of every request."""
        return {} if self.serves is None else {"Serves": self.serves}

    @contextmanager
    def interruptible(self, schedule: Schedule) -> Iterator[None]:
        """Within the block, `close` ends the schedule."""
        with self._mutex:
            if self.is_closed:
                raise closed()
            self._schedules.add(schedule)
        try:
            yield
        finally:
            with self._mutex:
                self._schedules.discard(schedule)

    def fetch(self, step: int, manifest_digest: bytes, sources: Sequence[Source], deadline: float) -> Path:
        """The folder of version `step`, whose manifest hashes to `manifest_digest` on chain; fetched if need be.

        `deadline` is the number of seconds for which others are waited for; reading what is here and applying deltas come on top. The
        folder stays for as long as the store keeps the version: lease it for use. Of several sources with one name the first is asked. A source that broke the rules is
        not asked for this version again, by later calls neither, unless nobody else is left for them.

        Raises DeadlineExceeded with what is missing and why each source failed; Unavailable once every source has been
        caught lying, or serves others only; PreflightError where the disk is full; DiskFailed where it fails, and nothing is left of
        what was fetched then.
        """
        if len(manifest_digest) != 32:
            raise UsageError("a manifest digest has 32 bytes")  # or honest sources would be blamed for it
        if self._holds(step, manifest_digest):
            return self.store.folder(step)
        ahead = self._end_ahead(step)
        return self._fetched(self.attempt(step, manifest_digest, sources, time.monotonic() + deadline), ahead)

    def fetch_ahead(self, step: int, sources: Sequence[Source]) -> bool:
        """Fetches what its trainer has signed so far of a version that is no version yet, until another thread calls `fetch` for it (or a
        later one) or `close`; False, soon, where nobody knows of any, or where a delta will be cheaper. One at a time.

        Raises Unavailable where the version will not come, PreflightError where the disk is full or fails; nothing is left of it then.
        LockHeld while another thread does so.
        """
        ahead = Ahead(self, step, sources)
        with self._mutex:
            if self.is_closed:
                raise closed()
            if self._ahead is not None and not self._ahead.is_over:
                raise LockHeld(f"version {self._ahead.step} is being fetched ahead", hint="wait for it")
            self._ahead = ahead
        return ahead.run()

    def attempt(self, step: int, digest: bytes, sources: Sequence[Source], until: float) -> Fetch:
        """A fetch of what `digest` stands for, with what is known of these sources, until a moment."""
        expected = Expected(
            self.run, step, digest, self.trainer, self.domain, self.limits, self.chunk_bytes, self.former
        )
        with self._mutex:
            banned = self._banned.setdefault(digest, set())
            while len(self._banned) > _VERSIONS_REMEMBERED:
                del self._banned[next(iter(self._banned))]
            if all(source.name in banned for source in sources):
                banned.clear()
            known = {source.name: self._standings.get(source.name, Standing()) for source in sources}
            self._standings = known
        return Fetch(self, expected, self._choose(sources, known), known, banned, until)

    def _end_ahead(self, step: int) -> Ahead | None:
        """Ends what is fetched ahead of this version or an earlier one; the one of this version."""
        with self._mutex:
            ahead = self._ahead
        if ahead is None or ahead.step > step:
            return None
        ahead.end()
        return ahead if ahead.step == step else None

    def _fetched(self, fetch: Fetch, ahead: Ahead | None) -> Path:
        store, step, label = self.store, fetch.expected.step, fetch.expected.digest.hex()
        signed, manifest = fetch.drafted_manifest(label) or fetch.fetch_manifest(fetch.expected)
        is_adopted = store.adopt(step, LABEL, by=label)
        # Without its draft, what it verified says nothing; nor does it once this attempt has ended, whatever becomes of that.
        handed = ahead.hand_over() if ahead is not None else {}
        verified = handed if is_adopted else {}
        with (
            store.draft(step, label, manifest.total_bytes + manifest.delta_bytes) as draft,
            self._remembering(fetch, draft, manifest) as known,
            Partial(draft, manifest) as partial,
            ExitStack() as kept,  # the delta's files, for whoever asks before the version is visible
        ):
            store.begin(draft, signed)
            _drop_others(draft, manifest)
            present = fetch.present(partial, manifest, verified, known)
            self.statistics.resumed_chunks += len(present)
            made = by_delta.make(fetch, partial, manifest, signed, present, kept)
            if made is not None:
                present = made.present
            fetch.written.update(present)
            has_delta = made is not None and made.delta is not None
            if not has_delta:
                kept.close()

            def commit() -> Path:
                if not has_delta:  # until then the next attempt may go on with it
                    by_delta.drop_delta(draft)
                return store.commit(step, draft, signed)

            try:
                return fetch.fill(partial, manifest, signed, present, commit, delta=made.delta if made else None)
            except Unavailable:
                partial.sync()  # what the next attempt does not read again must have reached the disk
                raise

    @contextmanager
    def _remembering(self, fetch: Fetch, draft: Path, manifest: Manifest) -> Iterator[Collection[int]]:
        """The chunks that an earlier attempt of this process has verified, where nobody has touched the draft since. Where the block fails
        for want of others, those of this attempt are remembered: the next one need not read them all again. After an error of this
        machine's own nothing is: a full disk's draft is read again, and one of a disk that failed is thrown away."""
        digest = fetch.expected.digest
        with self._mutex:
            state, known = self._drafted.pop(digest, (None, ()))
        try:
            yield known if state is not None and state == _state(draft, manifest) else ()
        except Unavailable:
            with self._mutex:
                self._drafted[digest] = _state(draft, manifest), frozenset(fetch.written)
                while len(self._drafted) > _DRAFTS_REMEMBERED:
                    del self._drafted[next(iter(self._drafted))]
            raise

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


def _state(draft: Path, manifest: Manifest) -> _DraftState | None:
    try:
        found = [(draft / file.name).lstat() for file in manifest.files]
    except OSError:
        return None
    return tuple((each.st_dev, each.st_ino, each.st_ctime_ns) for each in found)


def _drop_others(draft: Path, manifest: Manifest) -> None:
    """Removes what was fetched ahead and is no file of the version that it became."""
    names = {file.name for file in manifest.files}
    with disk_errors(draft):
        for path in draft.iterdir():
            if not path.name.startswith(".") and path.name not in names:
                path.unlink()
