"""Lends bandwidth: fetches versions like any client and serves them like an origin.

It stores, then forwards: a version is served once all of it has been verified, because the server reads complete versions
of the store only. Cut-through would let the server read a `Partial` and wait for chunks in it; deltas would give the
client another way to fill one. Neither is built. A relay announces itself elsewhere (protocol/p2p).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protocol.errors import UsageError
from protocol.shardcast.client import Client
from protocol.shardcast.server import Server
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore


class Relay:
    """A client and a server on one `store`; it serves while the context lasts."""

    def __init__(self, store: VersionStore, client: Client, server: Server) -> None:
        if client.store is not store or server.store is not store:
            raise UsageError("a relay serves what it fetches: client and server need the same store")
        self.store, self.client, self.server = store, client, server

    def __enter__(self) -> Relay:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    @property
    def url(self) -> str:
        return self.server.url

    def follow(self, step: int, manifest_digest: bytes, sources: Sequence[Source], deadline: float) -> Path:
        """Fetches a version within `deadline` seconds and serves it from then on. Raises what `Client.fetch` raises."""
        return self.client.fetch(step, manifest_digest, sources, deadline)
