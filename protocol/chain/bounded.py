"""HTTP connections for `requests` on which an answer ends in time, from connecting to its last byte.

The timeouts of requests are per read: who sends a byte now and then keeps a call for ever, also within the headers, where no code of ours is asked.
Here every read of the socket gets what is left of the call's time. Not covered: the system's resolver, which has limits of its own, and one connect for
each address of a name.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import HTTPResponse
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

_until: ContextVar[float] = ContextVar("monotonic seconds until when the present call may take")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What goes over an `Adapter` inside, on this thread, ends within so many seconds or raises a TimeoutError of urllib3's."""
    token = _until.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(token)


class Adapter(HTTPAdapter):
    """For calls inside `within`; outside it raises LookupError, so that none goes without."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        _bound(self.poolmanager)

    def proxy_manager_for(self, proxy: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        if not proxy.lower().startswith(
            "socks"
        ):  # whose connections are of another kind, and whose answers are bounded by each read
            _bound(manager)
        return manager


def _bound(manager: PoolManager) -> None:
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}


class _Socket(io.RawIOBase):
    """Reads of a socket, each within what is left."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open until both are closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = _until.get() - time.monotonic()
        if left <= 0:
            raise TimeoutError("the whole call took too long")
        self._sock.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Answer(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Socket(sock))


class _Connection(HTTPConnection):
    response_class = _Answer


class _TlsConnection(HTTPSConnection):
    response_class = _Answer


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection
