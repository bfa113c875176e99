"""The relay: fetches each version as it is published and serves it, so that the origin does not have to.

It holds no stake and is trusted by nobody: what it serves is checked against the chain by whoever fetches it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from pydantic import Field

from node.serving import serving
from node.versions import Versions, fetching_ahead
from protocol import metrics
from protocol.chain.settings import ChainSettings
from protocol.chain.types import Publication
from protocol.clock import SYSTEM, Clock
from protocol.errors import DiskFailed, MurmurationError, PreflightError
from protocol.gossip.messages import HEAD
from protocol.logs import LoggingSettings
from protocol.metrics import MetricsSettings
from protocol.retry import Backoff
from protocol.settings import Settings
from protocol.shardcast.settings import ServingSettings
from protocol.shell.connection import RELAY, Connection, is_fatal
from protocol.shell.home import Home
from protocol.shell.peers import PeerSettings

log = logging.getLogger("relay")

_HEAD = metrics.gauge("murmur_relay_head_step", "Step of the newest version that the chain knows.")
_NEWEST = metrics.gauge("murmur_relay_newest_step", "Step of the newest version that is served here.")

_DISK_REST, _DISK_REST_MOST = 60.0, 3600.0  # seconds; after each failure of the disk a whole version is fetched anew
_AHEAD_PAUSE = 1.0  # seconds between two looks for a version that is being written


class ServeSettings(ServingSettings):
    """Of relay.toml. Of node.toml too, without `fetch_seconds` and with `enabled`."""

    fetch_seconds: float = Field(default=900.0, gt=0)
    """Longest time one version may take to arrive."""


class RelaySettings(Settings):
    chain: ChainSettings
    peers: PeerSettings = PeerSettings()
    serve: ServeSettings = ServeSettings()
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()


class RelayService:
    def __init__(
        self,
        connection: Connection,
        home: Home,
        settings: ServeSettings,
        stop: threading.Event | None = None,
        *,
        progress: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`progress` is called after every look at the head that succeeded, and when a chunk has arrived. Raises ConfigError when nobody could be told where to reach it."""
        settings.require_reachable()
        self._c = connection
        self._home = home
        self._settings = settings
        self._stop = stop or threading.Event()
        self._progress = progress
        self._clock = clock
        self._news = connection.news(HEAD, clock=clock)
        self._looks = connection.chain.turns()
        self._next: int | None = 0
        """The version that the trainer may be writing."""
        self._disk = Backoff(_DISK_REST, _DISK_REST_MOST, clock=clock)

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Follows the head until stopped."""
        versions = Versions(
            self._c, self._home.data / "weights", fetch_seconds=self._settings.fetch_seconds, relays=True,
            progress=self._progress,
        )  # fmt: skip
        store = versions.store
        pause = max(_AHEAD_PAUSE, self._c.settings.poll_seconds)
        with (
            store,
            serving(self._c, versions, self._settings, RELAY) as server,
            fetching_ahead(versions, lambda: self._next, self._stop, pause),
        ):
            url = self._settings.public_url or server.url
            log.info("serving at %s; it listens on %s, port %d", url, self._settings.host, server.port)

            def tell(problem: str | None = None) -> None:
                self._tell(
                    state="serving", versions=list(store.steps()), bytes_served=server.counts.bytes_served, url=url,
                    problem=problem,
                )  # fmt: skip

            tell()  # the first look may take a minute
            problem: str | None = None
            while not self._stop.is_set():
                followed = False
                if not self._disk.left():
                    problem = self._look(versions)
                    followed = problem is None
                tell(problem)
                self._news.wait(self._stop, self._c.settings.poll_seconds, seldom=followed)

    def _look(self, versions: Versions) -> str | None:
        """Fetches what is new; what kept it from that, which may pass. Raises what will not."""
        try:
            self._follow(versions)
        except MurmurationError as error:
            if is_fatal(error) and not isinstance(error, PreflightError):  # what is here is served on a full disk too
                raise
            again = "again"
            if isinstance(error, DiskFailed):
                again, self._next = f"again in {self._disk.failed():.0f} s", None
            log.warning(
                "%s; trying %s, and serving what is here%s", error, again, f" ({error.hint})" if error.hint else ""
            )
            return str(error)
        self._disk.succeeded()
        self._progress()
        return None

    def _tell(self, **status: Any) -> None:
        try:
            self._home.write_status(**status)
        except PreflightError as error:
            log.warning("%s (%s)", error, error.hint)

    def _follow(self, versions: Versions) -> None:
        with self._looks.turn():
            head = self._c.chain.head(self._c.run)
        if head is None:
            return
        if not versions.holds(head):
            self._next = None  # what is on chain goes first
        _HEAD.set(head.step)  # before it is here: what is missing shows while it is missing
        self._bring(versions, head)
        self._next = head.step + 1
        _NEWEST.set(max(versions.store.steps()))
        for step in self._c.spec.versions_pinned:
            self._bring(versions, self._c.chain.publication(self._c.run, step))

    def _bring(self, versions: Versions, version: Publication) -> None:
        if not versions.holds(version):
            versions.fetch(version)
            log.info("version %d is here", version.step)
