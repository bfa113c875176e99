"""A desk whose store is a bucket of an S3 service on a real socket."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from tests.hub.cloud import Cloud
from tests.hub.desk import Desk, some_file
from trainer.hub.archive import ArchivedStore


@dataclass
class Shop:
    """A desk whose store is a bucket; `turn` is what a thread of the hub does."""

    desk: Desk
    store: ArchivedStore
    cloud: Cloud

    def deliver(self, size: int = 1000) -> tuple[bytes, bytes]:
        """(root, bytes) of a file that a node has just uploaded."""
        data = some_file(size)
        node = self.desk.node()
        ref = self.desk.commit(node, data)
        answer = self.desk.upload(node, ref, data)
        assert answer.status_code == 200, answer.text
        return ref.root, data

    def lose_locally(self, root: bytes) -> None:
        self.store.file(root).unlink()

    def serve(self, root: bytes, **headers: str) -> httpx.Response:
        url = f"{self.desk.url}/v1/runs/{self.desk.world.run}/files/{root.hex()}"
        return httpx.get(url, headers=headers, timeout=30)
