"""uvicorn in a thread: on a port that is known before it answers, and with a deadline for every connection.

uvicorn itself waits for ever for a request that never comes, and for a reader that never reads; each such connection would
take one of the places that `_CONNECTIONS_MAX` leaves, until there are none. No address gets more than `PER_ADDRESS_MAX` of
them, so that one machine cannot take all; at its cap, the connection that has been idle for longest gives way. Upgrades to WebSocket, which are not counted at
all, are off. Header sizes are bounded by h11.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import defaultdict
from typing import Any, ClassVar

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from protocol.errors import PreflightError

_CONNECTIONS_MAX = 512
PER_ADDRESS_MAX = 64
"""Connections from one IP address; many nodes may share one."""
EVICTION_SECONDS = 1.0
"""A connection that has been idle for less is not sent away for a new one."""
HEAD_SECONDS_MAX = 30.0
"""From the beginning of a connection, or the end of an answer, to the next request's headers."""
REQUEST_SECONDS_MAX = 330.0
"""From a request's headers to the end of its answer: more than the longest upload."""

_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class HubServer:
    def __init__(
        self, app: FastAPI, host: str, port: int, *, head_seconds: float = HEAD_SECONDS_MAX,
        request_seconds: float = REQUEST_SECONDS_MAX, per_address: int = PER_ADDRESS_MAX,
        eviction_seconds: float = EVICTION_SECONDS,
    ) -> None:  # fmt: skip
        """Raises PreflightError when the port is taken."""
        try:
            self._socket = socket.create_server((host, port), backlog=256)
        except OSError as error:
            raise PreflightError(
                f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another hub.port"
            ) from error
        self.port = int(self._socket.getsockname()[1])

        class Protocol(_Bounded):
            head, request = head_seconds, request_seconds
            most, youngest = per_address, eviction_seconds
            guests: ClassVar = defaultdict(set)

        config = uvicorn.Config(
            app, http=Protocol, ws="none", lifespan="off", log_level="error", access_log=False,
            limit_concurrency=_CONNECTIONS_MAX, timeout_keep_alive=int(HEAD_SECONDS_MAX),
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(5)
        self._socket.close()


class _Bounded(H11Protocol):
    """HTTP/1.1 that cuts a connection when a request's headers, or its end, are overdue, and refuses one too many."""

    head: float
    request: float
    most: int
    youngest: float
    guests: ClassVar[defaultdict[str, set[_Bounded]]]
    """Who is connected, by IP address."""
    _address = ""
    _idle_since: float | None = None
    _cut: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # asyncio sets this on sockets of its own making only; without it an answer's body waits 40 ms for its head's receipt.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._address = self.client[0] if self.client else ""
        if self._has_room():
            self.guests[self._address].add(self)
            self._expect()
        else:
            transport.write(_REFUSAL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._cut is not None:
            self._cut.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect()

    def _expect(self) -> None:
        """Sets the deadline of what comes next: the end of the request under way, or else the headers of another."""
        if self._cut is not None:
            self._cut.cancel()
        under_way = self.cycle is not None and not self.cycle.response_complete
        self._idle_since = None if under_way else self.loop.time()
        self._cut = self.loop.call_later(self.request if under_way else self.head, self.transport.abort)

    def _has_room(self) -> bool:
        """Whether one more of this address fits in, after sending away its longest idle one if that is what it takes."""
        neighbours = self.guests[self._address]
        if len(neighbours) < self.most:
            return True
        idle = {guest: guest._idle_since for guest in neighbours if guest._idle_since is not None}
        longest = min(idle, key=lambda guest: idle[guest], default=None)
        if longest is None or self.loop.time() - idle[longest] < self.youngest:
            return False
        longest._leave()
        longest.transport.abort()
        return True

    def _leave(self) -> None:
        neighbours = self.guests[self._address]
        neighbours.discard(self)
        if not neighbours:
            del self.guests[self._address]
