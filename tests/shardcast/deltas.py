"""A run of versions that differ a little, and what clients fetch of them by their differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protocol.shardcast.client import Client
from protocol.shardcast.manifest import Manifest
from protocol.shardcast.source import Source

from .conftest import CHUNK, DEADLINE, Cast, contents, origin_at, relay_at
from .faults import Request, Script
from .test_delta import stepped, weights

CONFIG, TOKENIZER, MODEL, SHARD = "config.json", "tokenizer.json", "model-1.safetensors", "model-2.safetensors"


class Run:
    """Versions of one run that differ by a hundredth, and whoever published them."""

    def __init__(self, cast: Cast, steps: int = 0, *, anchor_every: int = 1000) -> None:
        self.cast = cast
        self.store = cast.store("origin", keep=20)
        self.publisher = cast.publisher(self.store, anchor_every)
        self.server = cast.serve(self.store)
        self.source = origin_at(self.server.url)
        self.manifests: list[Manifest] = []
        self.files = [{CONFIG: b"{}", TOKENIZER: cast.bytes(CHUNK // 2), MODEL: model_of(1), SHARD: model_of(2)}]
        self._publish()
        for _ in range(steps):
            self.step()

    def step(self, share: float = 0.01, **changes: bytes | None) -> Manifest:
        before = self.files[-1]
        files = before | {n: stepped_by(before[n], share, len(self.files)) for n in (MODEL, SHARD) if n in before}
        files |= {name.replace("__", "."): content for name, content in changes.items() if content is not None}
        self.files.append({n: c for n, c in files.items() if changes.get(n.replace(".", "__"), b"") is not None})
        return self._publish()

    def _publish(self) -> Manifest:
        number = len(self.manifests)
        manifest = self.publisher.publish(self.cast.folder(self.files[number], f"version-{number}"), number)
        self.manifests.append(manifest)
        return manifest

    def fetch(self, client: Client, step: int, sources: list[Source] | None = None) -> Path:
        folder = client.fetch(step, self.manifests[step].digest, sources or [self.source], DEADLINE)
        assert contents(folder) == self.files[step]
        assert client.store.manifest(step) == self.store.manifest(step)
        return folder

    def holder(self, step: int, name: str = "client", **options: object) -> Client:
        """A client that holds this version already."""
        client = self.cast.client(self.cast.store(name), **options)
        self.fetch(client, step)
        client.statistics.bytes_from.clear()
        return client

    def served(self, step: int, *names: str) -> dict[str, bytes]:
        """The delta files that a source of it sends."""
        return {path.name: path.read_bytes() for path in (self.store.folder(step) / ".delta").iterdir()}

    def scripted(self, step: int, of_delta: Script, of_files: Script = Request.serve) -> Source:
        """A source of this version that answers for delta and files as it is told."""
        manifest, files, deltas = self.store.manifest(step), self.files[step], self.served(step)

        def script(request: Request) -> None:
            if "/delta/" in request.target:
                request.content = deltas.get(request.target.split("/")[-1], b"")
                return of_delta(request)
            return of_files(request)

        return relay_at(self.cast.scripted(manifest, files, script).url, f"scripted {of_delta.__name__}")


def model_of(seed: int) -> bytes:
    """Of 5 chunks and a bit, in bf16."""
    return weights(5 * CHUNK // 2 + 77, seed).tobytes()


def stepped_by(content: bytes, share: float, seed: int) -> bytes:
    return stepped(np.frombuffer(content, "<u2"), share, seed).tobytes()


def received(client: Client) -> int:
    return sum(client.statistics.bytes_from.values())
