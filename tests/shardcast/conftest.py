"""One run with its trainer key, and everything of SHARDCAST that a test starts: closed at its end, in order."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from swarm.pace import Patience

from protocol.identity import Key
from protocol.shardcast import schedule
from protocol.shardcast.client import Client
from protocol.shardcast.connection import Timeouts
from protocol.shardcast.manifest import Expected, Manifest, ManifestLimits
from protocol.shardcast.origin import Origin
from protocol.shardcast.server import ShardServer
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore
from protocol.signing import Domain

from .faults import Scripted

CHUNK = 64 << 10  # small, so that a few hundred kilobytes are many chunks
RUN = 3
DEADLINE = 20.0
QUICK = Timeouts(connect=1.0, idle=0.3, floor_rate=1 << 20)


class Cast:
    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.stack = root, stack
        self.key = Key.from_secret("0x" + "11" * 32)
        self.domain = Domain(31337, "0x" + "22" * 20)  # type: ignore[arg-type]
        self.content = random.Random(7)

    def bytes(self, count: int) -> bytes:
        return self.content.randbytes(count)

    def folder(self, files: dict[str, bytes], name: str = "weights") -> Path:
        path = self.root / name
        path.mkdir()
        for file, content in files.items():
            (path / file).write_bytes(content)
        return path

    def store(self, name: str, keep: int = 5, **options: Any) -> VersionStore:
        options.setdefault("reserve", 0)
        return self.stack.enter_context(VersionStore(self.root / name, keep, **options))

    def serve(self, store: VersionStore, **options: Any) -> ShardServer:
        return self.stack.enter_context(ShardServer(store, **options))

    def origin(self, files: dict[str, bytes], step: int = 1, **options: Any) -> tuple[Manifest, ShardServer]:
        """Publishes `files` as version `step` of a new origin; `options` are its server's."""
        name = f"origin-{len(list(self.root.iterdir()))}"
        store = self.store(name)
        manifest = self.publisher(store).publish(self.folder(files, f"{name}-weights"), step)
        return manifest, self.serve(store, **options)

    def publisher(self, store: VersionStore, anchor_every: int = 1000) -> Origin:
        return Origin(store, self.key, self.domain, RUN, chunk_bytes=CHUNK, anchor_every=anchor_every)

    def client(self, store: VersionStore | None = None, **options: Any) -> Client:
        options = {"timeouts": QUICK, "streams": 3, "rng": random.Random(0), "chunk_bytes": CHUNK} | options
        return Client(store or self.store("client"), self.domain, RUN, self.key.address, **options)

    def relay(self, manifest: Manifest, sources: list[Source], name: str = "relay") -> ShardServer:
        """What a relay is made of, a client and a server on one store, once it has fetched the version."""
        store = self.store(name)
        self.client(store).fetch(manifest.step, manifest.digest, sources, DEADLINE)
        return self.serve(store)

    def scripted(self, *arguments: Any, **options: Any) -> Scripted:
        return self.stack.enter_context(Scripted(*arguments, **options))

    def expected(self, manifest: Manifest, **changes: Any) -> Expected:
        values: dict[str, Any] = {
            "run": RUN,
            "step": manifest.step,
            "digest": manifest.digest,
            "trainer": self.key.address,
            "domain": self.domain,
            "limits": ManifestLimits(),
            "chunk_bytes": CHUNK,
        }
        return Expected(**(values | changes))


def origin_at(url: str, name: str = "origin") -> Source:
    return Source(url, name, is_relay=False)


def relay_at(url: str, name: str = "relay") -> Source:
    return Source(url, name, is_relay=True)


def contents(folder: Path) -> dict[str, bytes]:
    """The published files of a version's folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def wait_until(condition: Callable[[], bool]) -> None:
    """What another thread brings about in a moment."""
    patience = Patience(DEADLINE)
    while not condition():
        assert not patience.ended(), "it never came to pass"
        threading.Event().wait(0.002)


@pytest.fixture
def cast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cast]:
    """On a busy machine honest sources may stand still for a while: lagging is tested where it is meant.

    Nor does the disk's own time count here: what is synced, and when, is tested in test_store.
    """
    monkeypatch.setattr(schedule, "_LAG_SECONDS", DEADLINE)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    with ExitStack() as stack:
        yield Cast(tmp_path, stack)
