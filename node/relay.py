"""The relay: fetches each version as it is published and serves it, so that the origin does not have to.

It holds no stake and is trusted by nobody: what it serves is checked against the chain by whoever fetches it.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from pydantic import Field

from protocol.errors import MurmurationError
from protocol.home import Home
from protocol.role import ChainSettings, Connection, PeerSettings, is_fatal
from protocol.settings import Settings
from protocol.shardcast.client import Client
from protocol.shardcast.relay import Relay
from protocol.shardcast.server import Server
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore

log = logging.getLogger("relay")

_SOURCES_SECONDS = 60.0


class ServeSettings(Settings):
    host: str = "0.0.0.0"  # noqa: S104  a relay is there to be reached
    """Address to serve HTTP on."""
    port: int = Field(default=8460, ge=0, le=65535)
    public_url: str | None = None
    """How others reach it (http://host:port), when that differs from where it listens."""
    fetch_seconds: float = Field(default=900.0, gt=0)
    """Longest time one version may take to arrive."""


class RelaySettings(Settings):
    chain: ChainSettings
    peers: PeerSettings = PeerSettings()
    serve: ServeSettings = ServeSettings()


class RelayService:
    def __init__(self, connection: Connection, home: Home, settings: ServeSettings) -> None:
        self._c = connection
        self._home = home
        self._settings = settings
        self._stop = threading.Event()
        self._origin: Source | None = None
        self._found_at = 0.0

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Follows the head until stopped."""
        policy, domain = self._c.policy, self._c.chain.domain
        store = VersionStore(self._folder, self._c.spec.versions_kept)
        server = Server(store, host=self._settings.host, port=self._settings.port)
        with store, Relay(store, Client(store, domain, self._c.run, policy.trainer), server) as relay:
            self._c.announce("relay", self._settings.public_url or relay.url)
            log.info("serving at %s", relay.url)
            while not self._stop.is_set():
                try:
                    self._follow(relay, store)
                except MurmurationError as error:
                    if is_fatal(error):
                        raise
                    log.warning("%s; trying again", error)
                    self._origin = None
                counts = server.counts
                self._home.write_status(
                    state="serving", versions=list(store.steps()), bytes_served=counts.bytes_served, url=relay.url
                )
                self._stop.wait(self._c.settings.poll_seconds)

    @property
    def _folder(self) -> Path:
        return self._home.data / "weights"

    def _follow(self, relay: Relay, store: VersionStore) -> None:
        head = self._c.chain.head(self._c.run)
        if head is None or store.holds(head.step):
            return
        if self._origin is None or time.monotonic() - self._found_at > _SOURCES_SECONDS:
            self._origin = self._c.origin()
            self._found_at = time.monotonic()
        relay.follow(head.step, head.manifest, [self._origin], self._settings.fetch_seconds)
        log.info("version %d is here", head.step)
