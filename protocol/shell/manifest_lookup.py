"""The manifest of a version, without what it describes: from whoever keeps it, by the digest on chain."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from protocol.shardcast.client import Client
from protocol.shardcast.manifest import Manifest
from protocol.shardcast.store import VersionStore
from protocol.shell.connection import Connection

LOOKUP_SECONDS = 30.0
"""After which nobody is asked any more."""


def manifest_of(connection: Connection, step: int, digest: bytes, seconds: float = LOOKUP_SECONDS) -> Manifest:
    """The manifest that the chain has this digest of, without what it describes, from whoever keeps it. Raises Unavailable where nobody does within so many seconds."""
    with TemporaryDirectory() as folder, VersionStore(Path(folder), 1) as store:
        client = Client(store, connection.chain.domain, connection.run, connection.trainer)
        client.former = connection.former_trainers
        until = time.monotonic() + seconds
        fetch = client.attempt(step, digest, connection.sources(), until)
        return fetch.fetch_manifest(fetch.expected)[1]
