"""Serving weights to others: what a relay exists for, and what a node may do beside its work.

What is served comes out of the store that this machine fetches into, chunk by chunk while a version arrives. Nobody needs
to trust it: every chunk is checked against the chain by whoever fetches it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from node.versions import Versions
from protocol.shardcast.server import ShardServer
from protocol.shardcast.settings import ServingSettings
from protocol.shardcast.uplink import Uplink
from protocol.shell.connection import Connection

log = logging.getLogger("serving")


@contextmanager
def serving(connection: Connection, versions: Versions, settings: ServingSettings, role: str) -> Iterator[ShardServer]:
    """Serves the store of `versions` and announces it under `role`, for as long as the block lasts."""
    uplink = Uplink(settings.upload_rate)
    with ShardServer(
        versions.store,
        host=settings.host,
        port=settings.port,
        limits=settings.limits(),
        uplink=uplink,
        tls=settings.tls(),
    ) as server:
        url = settings.public_url or server.url
        if settings.needs_proxy:
            log.warning(
                "others are told %s, and this serves http at %s: a reverse proxy must take https there, or set serve.tls_certificate and serve.tls_key",
                url,
                server.url,
            )
        versions.served_at(url)
        connection.announce(role, url)
        yield server
