"""The published versions of the weights on this machine: fetched when needed, checked, kept for as long as they count."""

from __future__ import annotations

import time
from pathlib import Path

from node.engine.weights import require_model_files
from protocol.chain.types import Publication
from protocol.errors import DeadlineExceeded, Unavailable
from protocol.role import Connection
from protocol.shardcast.client import Client
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore

_SOURCES_SECONDS = 60.0  # for how long the peers that were found are asked again without a new look-up


class Versions:
    def __init__(self, connection: Connection, folder: Path, *, fetch_seconds: float = 900.0) -> None:
        """`fetch_seconds`: longest time one version may take to arrive."""
        self._connection = connection
        self.store = VersionStore(folder, connection.spec.versions_kept)
        policy, domain = connection.policy, connection.chain.domain
        self._client = Client(self.store, domain, connection.run, policy.trainer)
        self._fetch_seconds = fetch_seconds
        self._sources: list[Source] = []
        self._found_at = float("-inf")

    def folder(self, publication: Publication) -> Path:
        """The folder of a version, fetched if it is not here. Raises Unavailable or HashMismatch."""
        if self.store.holds(publication.step):
            return self.store.folder(publication.step)
        try:
            folder = self._fetch(publication)
        except (DeadlineExceeded, Unavailable):
            self._found_at = float("-inf")  # ask the network anew next time
            raise
        require_model_files(folder, self._connection.spec.model)
        return folder

    def _fetch(self, publication: Publication) -> Path:
        if time.monotonic() - self._found_at > _SOURCES_SECONDS:
            self._sources = self._connection.sources()
            self._found_at = time.monotonic()
        return self._client.fetch(publication.step, publication.manifest, self._sources, self._fetch_seconds)
