"""The published versions of the weights on this machine: fetched when needed, checked, kept for as long as they count.

The one that the trainer is still writing may be fetched ahead, beside whatever else a role does.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from protocol.calibration_notice import CalibrationNotice, changes, require_allowed
from protocol.chain.events import Published
from protocol.chain.types import Publication
from protocol.clock import SYSTEM, Clock
from protocol.errors import IntegrityError, LockHeld, Malformed, MurmurationError, PreflightError, Retired, Unavailable
from protocol.model_files import require_model_files, require_nothing_else
from protocol.notice_book import FILE, NoticeBook
from protocol.shardcast.client import Client
from protocol.shardcast.manifest import digest_of, stored
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore
from protocol.shell.connection import Connection
from protocol.shell.manifest_lookup import LOOKUP_SECONDS, manifest_of

log = logging.getLogger("weights")

_SOURCES_SECONDS = 60.0  # for how long the peers that were found are asked again without a new look-up
_LOCKS = 64  # versions of which it is known that a thread may be fetching them
_AHEAD_MAX = 60.0  # seconds before it is tried again to fetch ahead, after failing several times
_SOUND_MOST = 16  # versions of which it is remembered that they can be used
_FIRST_SECONDS = 60.0  # of a fetch, before it is looked whether the version still counts; doubles each time

Version = Publication | Published
"""What the chain says of a version: its step and the digest of its manifest, as the contract or the event has them."""


class Versions:
    """Safe to share between threads, each of which fetches another step."""

    def __init__(
        self,
        connection: Connection,
        folder: Path,
        *,
        sources: Callable[[], list[Source]] | None = None,
        head: Callable[[], Version | None] | None = None,
        fetch_seconds: float = 480.0,
        relays: bool = False,
        progress: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`sources` finds where to fetch from, all relays and the origin by default; `head` names the newest version, asked of the
        chain by default; `fetch_seconds` is the longest time one attempt may take, and the next one resumes it; `relays` says that this is a
        relay, which others wait for; `progress` is called when a chunk has arrived."""
        self._connection = connection
        self.store = VersionStore(folder, connection.spec.versions_kept, pinned=connection.spec.versions_pinned)
        domain = connection.chain.domain
        self._client = Client(
            self.store, domain, connection.run, connection.trainer, relays=relays, progress=lambda *_: progress()
        )
        self._look_up = sources or connection.sources
        self._head = head or (lambda: connection.chain.head(connection.run))
        self._fetch_seconds = fetch_seconds
        self._clock = clock
        self._sources: list[Source] = []
        # By manifest, of versions that can be used: what they say of the calibration.
        self._sound: OrderedDict[bytes, CalibrationNotice | None] = OrderedDict()
        self.notices = NoticeBook(folder.parent / FILE)
        """What versions that were here have said of the calibration."""
        self._found_at = float("-inf")
        self._is_stopped = False
        self._mutex = Lock()
        self._fetching: dict[int, Lock] = {}  # by step

    def stop(self) -> None:
        """Breaks off what other threads fetch, now and from now on: Unavailable."""
        self._is_stopped = True
        self._client.close()

    def close(self) -> None:
        self.store.close()

    def served_at(self, url: str) -> None:
        """From now on, sources are told that the store is served to others at `url`."""
        self._client.serves = url

    def folder(self, publication: Version) -> Path:
        """The folder of exactly this version of the run's model, fetched if it is not here.

        Raises Unavailable, HashMismatch when it is of another model, or Malformed when it holds more or less than a version.
        """
        if not self.holds(publication):
            self.fetch(publication)
        return self.held(publication)

    def held(self, publication: Version) -> Path:
        """The folder of a version that is here. Raises as `folder`, Malformed for a calibration notice that the run does not allow, and
        PreflightError where it has gone meanwhile."""
        folder = self.store.folder(publication.step)
        if publication.manifest not in self._sound:
            try:
                require_nothing_else(folder)
                notice = self._noticed(publication.step)
            except (IntegrityError, Malformed) as error:  # its bytes are the chain's: its trainer is to blame
                raise Malformed(f"version {publication.step} of the weights: {error}", hint=error.hint) from error
            self._sound[publication.manifest] = notice
            if len(self._sound) > _SOUND_MOST:
                self._sound.popitem(last=False)
        require_model_files(folder, self._connection.spec.model)
        return folder

    def notice(self, publication: Version) -> CalibrationNotice | None:
        """What a version that is here says of the calibration. Raises as `held`."""
        if publication.manifest not in self._sound:
            self.held(publication)
        return self._sound[publication.manifest]

    def _noticed(self, step: int) -> CalibrationNotice | None:
        """The calibration notice of a version. Raises Malformed where it is none that the run allows, or contradicts another version's."""
        spec, notice = self._connection.spec, stored(self.store.manifest(step)).notice
        if spec.verification.recalibration is None and notice is None:
            return None
        if notice is not None:
            require_allowed(spec, notice)
        was = self.notices.newest
        self.notices.take(step, notice)
        if notice is not None and notice != was:
            log.warning(
                "work is judged by %s: %s; whoever does not agree stops here, and keeps what it earned",
                notice,
                "; ".join(changes(spec.verification, notice)) or "by the limits of the run spec",
            )
        return notice

    def newest(self) -> Path:
        """The folder of the head, for whoever needs what all versions share: the tokenizer. Raises as `folder`."""
        head = self._head()
        if head is None:
            raise Unavailable("no weights are published yet")
        return self.folder(head)

    def holds(self, publication: Version) -> bool:
        """Whether exactly this version is here. One of its number may be of another run, or from before a reorg."""
        step = publication.step
        with suppress(PreflightError):  # another thread has just put something else in its place
            return self.store.holds(step) and digest_of(self.store.manifest(step)) == publication.manifest
        return False

    def fetch(self, publication: Version) -> None:
        """Fetches a version, in place of another one of its number; where another thread is fetching it, waits for that.

        Raises Retired at once where nobody keeps the version any more, and soon when that happens meanwhile; Unavailable where it does not come.
        """
        with self._mutex:
            fetching = self._fetching.setdefault(publication.step, Lock())
            while len(self._fetching) > _LOCKS:
                del self._fetching[next(iter(self._fetching))]
        with fetching:
            if not self.holds(publication):
                self._fetch(publication)

    def fetch_ahead(self, step: int) -> bool:
        """Fetches what the trainer has finished so far of version `step`, which it is still writing, until another thread fetches the
        version or this is stopped; False, soon, where there is nothing of it, or a delta will be cheaper. No version comes of it by
        itself. Raises Unavailable where the trainer gave it up, PreflightError where the disk is full."""
        self._trust()
        return self._client.fetch_ahead(step, self._known_sources())

    def _trust(self) -> None:
        """The run's owner may have appointed another trainer."""
        self._client.trainer, self._client.former = self._connection.trainer, self._connection.former_trainers

    def _known_sources(self) -> list[Source]:
        with self._mutex:
            if self._clock.monotonic() - self._found_at > _SOURCES_SECONDS:
                self._sources = self._look_up()
                self._found_at = self._clock.monotonic()
            return self._sources

    def _fetch(self, publication: Version) -> None:
        seconds = min(_FIRST_SECONDS, self._fetch_seconds)
        while True:
            self._require_kept(publication)
            sources = self._known_sources()
            self._trust()
            try:
                self._client.fetch(publication.step, publication.manifest, sources, seconds)
                return
            except Unavailable:
                self._found_at = float("-inf")  # ask the network anew next time
                if self._is_stopped or seconds >= self._fetch_seconds:
                    raise
            except PreflightError:
                self._require_kept(publication)  # other threads may have brought newer ones meanwhile
                raise
            seconds = min(2 * seconds, self._fetch_seconds)

    def _require_kept(self, publication: Version) -> None:
        spec, newest = self._connection.spec, self._head()
        head = -1 if newest is None else newest.step
        if publication.step <= head - spec.versions_kept and publication.step not in spec.versions_pinned:
            raise Retired(f"version {publication.step} of the weights is older than what anybody keeps")
        for step in self.store.steps():
            if step > head:
                with suppress(LockHeld):  # somebody is just loading it
                    self.store.discard(step)  # of another run; it would look newer than anything to come


def notice_of_head(connection: Connection, seconds: float = LOOKUP_SECONDS) -> CalibrationNotice | None:
    """What the newest version says of the calibration, by its manifest alone, for whoever only looks on. Raises Unavailable where nobody has it within
    so many seconds, Malformed for a notice that the run does not allow."""
    head = connection.chain.head(connection.run)
    if head is None or connection.spec.verification.recalibration is None:
        return None
    manifest = manifest_of(connection, head.step, head.manifest, seconds)
    if manifest.notice is not None:
        require_allowed(connection.spec, manifest.notice)
    return manifest.notice


@contextmanager
def fetching_ahead(
    versions: Versions, following: Callable[[], int | None], stop: threading.Event, pause: float
) -> Iterator[None]:
    """For as long as the block lasts and `stop` is not set, the version that `following` names is fetched ahead. A look that
    found nothing is followed by a pause; one that has begun ends when somebody fetches the version itself."""
    over = threading.Event()

    def look() -> None:
        wait = pause
        while not over.wait(wait) and not stop.is_set():
            step = following()
            try:
                if step is not None and versions.fetch_ahead(step):
                    log.info("version %d was fetched ahead, as far as it went", step)
                wait = pause
            except LockHeld:  # it has become a version meanwhile, or an earlier look goes on
                wait = pause
            except (MurmurationError, OSError) as error:  # it is fetched later, when it is a version
                log.info("fetching version %s ahead: %s", step, error)
                wait = min(_AHEAD_MAX, 2 * wait)

    try:
        threading.Thread(target=look, name="ahead", daemon=True).start()
    except RuntimeError as error:  # this system gives no more threads
        log.info("versions are fetched when they are published: %s", error)
    try:
        yield
    finally:
        over.set()
