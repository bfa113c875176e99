"""uvicorn in a thread: on a port that is known before it answers, with a deadline for every connection and refusals in an order.

protocol/bounded_http.py has the deadlines, protocol/places.py says who may be connected, load.py what is answered. Whoever is refused is told when to come back (503, Retry-After). A poll holds a connection and a task, no thread.

Upgrades to WebSocket, which are not counted at all, are off. h11 bounds the sizes of heads.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol import metrics
from protocol.bounded_http import BoundedConnection, House
from protocol.errors import PreflightError
from protocol.places import EVICTION_SECONDS, PER_ADDRESS_MAX, Places
from trainer.hub.load import REQUESTS_MAX, RETRY_SECONDS, Load, RequestKind, kind_of

CONNECTIONS_MAX = 8192
"""Connections in all, as far as the system lets this process open files."""
HEAD_SECONDS_MAX = 30.0
"""From the beginning of a connection, or the end of an answer, to the next request's headers."""
REQUEST_SECONDS_MAX = 330.0
"""From a request's headers to the end of its answer: more than the longest upload."""
SLOW_SECONDS = 20.0
"""A peer whose turn it is must move so many bytes a second (protocol/bounded_http.py) in every so many."""
_HEAD_BYTES_MAX = 16 << 10
_BEGUN_BYTES, _BEGUN_SECONDS = 32 << 10, 12.0  # of a body, or all of it, and until when: then the request counts as one
_OTHER_FILES = 512  # that this process opens besides: databases, rollouts, the origin's and libp2p's connections
_LEAVING_MAX = 128  # refused connections that are given a moment to read why

_SHED = metrics.counter(
    "murmur_hub_shed_total", "Requests and connections that were refused because there were too many.", "kind"
)
_SHED.from_zero("connection", *(kind.name.lower() for kind in RequestKind))
_CONNECTIONS = metrics.gauge("murmur_hub_connections", "Open connections to the hub.", "state")
_LEVEL = metrics.gauge(
    "murmur_hub_load",
    "How much the hub has to do; from 0.3 on the run's page is refused, from 0.5 polls, at 1 everything.",
)


class HubServer:
    def __init__(
        self, app: ASGIApp, host: str, port: int, *, head_seconds: float = HEAD_SECONDS_MAX,
        request_seconds: float = REQUEST_SECONDS_MAX, slow_seconds: float = SLOW_SECONDS,
        connections: int = CONNECTIONS_MAX, per_address: int = PER_ADDRESS_MAX,
        eviction_seconds: float = EVICTION_SECONDS, requests: int = REQUESTS_MAX,
    ) -> None:  # fmt: skip
        """Raises PreflightError when the port is taken."""
        self._socket = _listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.load = Load(requests)
        house = _HubHouse(connections, per_address, eviction_seconds, self.load)

        class Protocol(_HubConnection):
            head, request, slow = head_seconds, request_seconds, slow_seconds

            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(house, *arguments, **named)

        config = uvicorn.Config(
            app, http=Protocol, ws="none", lifespan="off", log_level="error", access_log=False,
            timeout_keep_alive=int(HEAD_SECONDS_MAX), h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
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


def connections_within_limits(wanted: int) -> int:
    """As many as the system allows beside this process's other files, after raising its limit as far as it goes. Raises PreflightError
    where there is room for none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):  # some systems have a lower one that they do not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft <= _OTHER_FILES:
            raise PreflightError(f"this process may open {soft} files only", hint="raise it: ulimit -n 8192")
        return min(wanted, soft - _OTHER_FILES)
    return wanted


def _listen(host: str, port: int) -> socket.socket:
    """On IPv4 or IPv6, as `host` is; "::" takes both."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as error:
        raise PreflightError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another hub.host or hub.port"
        ) from error


class _HubHouse(House):
    """And the hub's load, which it watches."""

    def __init__(self, connections: int, per_address: int, eviction_seconds: float, load: Load) -> None:
        super().__init__(connections, per_address, eviction_seconds, refusal=_refusal(), leaving=_LEAVING_MAX)
        self.load = load

    def places(self, loop: asyncio.AbstractEventLoop) -> Places:
        places = super().places(loop)

        def tell() -> None:
            for state, count in (("idle", len(places.idle)), ("waiting", len(places.waiting)), ("all", len(places))):
                _CONNECTIONS.set(count, state=state)
            _LEVEL.set(self.load.level)

        self.load.watch(loop, lambda: len(places), tell)
        return places


class _HubConnection(BoundedConnection):
    """Is refused in an order, and may wait for news."""

    _house: _HubHouse

    def __init__(self, house: _HubHouse, *arguments: Any, **named: Any) -> None:
        super().__init__(house, *arguments, **named)
        self._hub = self.app
        self.app = self._answer
        self._polling: asyncio.Task[Any] | None = None
        self._gives_way = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._polling is not None:
            self._polling.cancel()  # nobody waits for its answer any more

    def give_way(self) -> None:
        if self._polling is None:
            super().give_way()
        elif not self._gives_way:
            self._gives_way = True
            self._polling.cancel()

    def _turn_away(self) -> None:
        _SHED.add(kind="connection")
        super()._turn_away()

    @property
    def _is_waiting(self) -> bool:
        return self._polling is not None

    # ---- a request -----------------------------------------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, load = kind_of(scope), self._house.load
        if scope["method"] == "POST" and not load.refuses(kind):
            try:
                receive = await self._begun(receive)
            except TimeoutError:
                await _refuse(kind, send, b"close")
                return
            except ConnectionError:
                return  # nobody is there to be answered
        if not load.admit(kind, self.address):
            await _refuse(kind, send)
            return
        try:
            if kind.waits:
                await self._poll(kind, scope, receive, send)
            else:
                await self._hub(scope, receive, self._counting(send))
        finally:
            load.done(kind, self.address)

    async def _begun(self, receive: Receive) -> Receive:
        """What gives the body from its beginning, once some of it is here. Until then the request costs a place, which may be lost to a
        newcomer: heads alone cost whoever sends them nothing. (A file is PUT, and its sender known by the head.) Raises TimeoutError, or ConnectionError where the peer has left."""
        self._places.waits(self)
        ahead: list[Message] = []
        size, more = 0, True
        async with asyncio.timeout(_BEGUN_SECONDS):
            while more and size < _BEGUN_BYTES:
                ahead.append(await receive())
                if ahead[-1]["type"] != "http.request":
                    raise ConnectionAbortedError("the sender went away")
                size, more = size + len(ahead[-1].get("body", b"")), ahead[-1].get("more_body", False)
        self._places.works(self)

        async def from_the_beginning() -> Message:
            return ahead.pop(0) if ahead else await receive()

        return from_the_beginning

    async def _poll(self, kind: RequestKind, scope: Scope, receive: Receive, send: Send) -> None:
        """May be ended at any time, by the peer's leaving or for a newcomer's sake."""
        self._polling = asyncio.current_task()
        self._places.waits(self)
        cycle = self.cycle

        async def answer(message: Message) -> None:
            self._polling = None  # what has begun is brought to its end
            self._places.works(self)
            await send(message)

        try:
            await self._hub(scope, receive, self._counting(answer))
        except asyncio.CancelledError:
            if self._gives_way and not cycle.response_started and (task := asyncio.current_task()):
                task.uncancel()
                await _refuse(kind, send, b"close")
            elif not cycle.disconnected:
                raise
        finally:
            self._polling = None

    def _counting(self, send: Send) -> Send:
        async def counted(message: Message) -> None:
            self._moved += len(message.get("body", b""))
            await send(message)

        return counted


_REASON = b"the hub has too much to do; come back after the time that Retry-After says"


async def _refuse(kind: RequestKind, send: Send, connection: bytes = b"keep-alive") -> None:
    _SHED.add(kind=kind.name.lower())
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_REASON)),
        (b"retry-after", b"%d" % RETRY_SECONDS[kind]), (b"connection", connection),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": _REASON})


def _refusal() -> bytes:
    """The same for who has not even a place; nobody knows what it came for."""
    seconds = RETRY_SECONDS[RequestKind.LISTING]
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(_REASON)}\r\nRetry-After: {seconds}\r\nConnection: close\r\n\r\n"
    return head.encode() + _REASON
