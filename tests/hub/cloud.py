"""An S3 service on a real socket (moto's server) that can be away, refuse, and be looked into behind the hub's back."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from moto.server import ThreadedMotoServer

from trainer.hub.archive import ArchivedStore
from trainer.hub.bucket import Bucket
from trainer.location import Location

SECRET = "canary-" + secrets.token_hex(8)
_SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}  # moto asks no more
RUN = Location("rollouts", "mine").below("31337", "0xab", "1")


class Cloud:
    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody listens; what was stored is still there afterwards."""
        self.stop()
        yield
        self.start()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """No credentials are good enough."""
        self._require_ok(httpx.post(f"{self.url}/moto-api/reset-auth", content=b"0"))
        yield
        self._require_ok(httpx.post(f"{self.url}/moto-api/reset-auth", content=b"inf"))

    def reset(self) -> None:
        self._require_ok(httpx.post(f"{self.url}/moto-api/reset"))
        self._require_ok(httpx.put(f"{self.url}/{RUN.bucket}"))

    def read(self, name: str, prefix: str = RUN.prefix) -> bytes | None:
        answer = httpx.get(f"{self.url}/{RUN.bucket}/{prefix}/{name}", headers=_SIGNED)
        return answer.content if answer.is_success else None

    def write(self, name: str, data: bytes) -> None:
        self._require_ok(httpx.put(f"{self.url}/{RUN.bucket}/{RUN.prefix}/{name}", content=data, headers=_SIGNED))

    def _require_ok(self, answer: httpx.Response) -> None:
        assert answer.is_success, answer.text


def bucket(location: Location = RUN, timeout: float = 5) -> Bucket:
    return Bucket(location, timeout=timeout)


def archived(folder: Path, *, cache_bytes: int = 1 << 30, location: Location = RUN) -> ArchivedStore:
    return ArchivedStore(folder, bucket(location), cache_bytes=cache_bytes)


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that a hub finds its bucket with."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hub")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
