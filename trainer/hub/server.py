"""uvicorn in a thread: on a port that is known before it answers, with a deadline for every connection and refusals in an order.

uvicorn itself waits for ever for a request that never comes, and for a peer that never reads or sends on. Here every connection
has a deadline for what comes next and must move bytes while it is its turn; places.py says who may be connected, load.py what is
answered. Whoever is refused is told when to come back (503, Retry-After). A poll holds a connection and a task, no thread.

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
from uvicorn.protocols.http.h11_impl import H11Protocol

from protocol import metrics
from protocol.errors import PreflightError
from trainer.hub.load import REQUESTS_MAX, RETRY_SECONDS, Load, RequestKind, kind_of
from trainer.hub.places import EVICTION_SECONDS, PER_ADDRESS_MAX, Places, household

CONNECTIONS_MAX = 8192
"""Connections in all, as far as the system lets this process open files."""
HEAD_SECONDS_MAX = 30.0
"""From the beginning of a connection, or the end of an answer, to the next request's headers."""
REQUEST_SECONDS_MAX = 330.0
"""From a request's headers to the end of its answer: more than the longest upload."""
SLOW_SECONDS = 20.0
"""A peer whose turn it is must move `SLOW_RATE` bytes a second in every so many."""
SLOW_RATE = 16 << 10
"""A quarter of what a client grants itself (wire.py), in bytes a second."""
_HEAD_BYTES_MAX = 16 << 10
_BEGUN_BYTES, _BEGUN_SECONDS = 32 << 10, 12.0  # of a body, or all of it, and until when: then the request counts as one
_OTHER_FILES = 512  # that this process opens besides: databases, rollouts, the origin's and libp2p's connections
_LEAVING_MAX = 128  # refused connections that are given a moment to read why
_LEAVING_SECONDS = 2.0

_SHED = metrics.counter(
    "murmur_hub_shed_total", "Requests and connections that were refused because there were too many.", "kind"
)
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
        house = _House(connections, per_address, eviction_seconds, self.load)

        class Protocol(_Bounded):
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


class _House:
    """What the connections of one server share."""

    def __init__(self, connections: int, per_address: int, eviction_seconds: float, load: Load) -> None:
        self.load = load
        self.leaving = 0
        self._limits = connections, per_address, eviction_seconds
        self._places: Places | None = None

    def places(self, loop: asyncio.AbstractEventLoop) -> Places:
        if self._places is None:
            self._places = Places(*self._limits, loop.time)
        places = self._places

        def tell() -> None:
            for state, count in (("idle", len(places.idle)), ("waiting", len(places.waiting)), ("all", len(places))):
                _CONNECTIONS.set(count, state=state)
            _LEVEL.set(self.load.level)

        self.load.watch(loop, lambda: len(places), tell)
        return places


class _Bounded(H11Protocol):
    """HTTP/1.1 whose peer is held to deadlines, has a place among the others, and is refused in an order."""

    head: float
    request: float
    slow: float

    def __init__(self, house: _House, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.address = ""
        self._house = house
        self._hub = self.app
        self.app = self._answer
        self._cut: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._polling: asyncio.Task[Any] | None = None
        self._gives_way = False
        self._until = 0.0  # the deadline of the request
        self._moved = 0  # bytes that the peer sent or was given, in this request
        self._moved_before = 0

    # ---- the connection ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # asyncio sets this on sockets of its own making only; without it an answer's body waits 40 ms for its head's receipt.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = household(self.client[0]) if self.client else ""
        self._places = self._house.places(self.loop)
        if self._places.enter(self):
            self._expect()
        else:
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.leave(self)
        if self._is_refused:
            self._house.leaving -= 1
        self._stop_timer()
        super().connection_lost(exc)
        if self._polling is not None:
            self._polling.cancel()  # nobody waits for its answer any more

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._moved += len(data)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect()

    def give_way(self) -> None:
        if self._polling is None:
            self.transport.abort()
        elif not self._gives_way:
            self._gives_way = True
            self._polling.cancel()

    def _turn_away(self) -> None:
        """Says so before it hangs up, and lets the peer read it: bytes of its that nobody read would take the answer back."""
        _SHED.add(kind="connection")
        self.transport.write(_refusal())
        if self._house.leaving >= _LEAVING_MAX:
            self.transport.close()
            return
        self._is_refused = True
        self._house.leaving += 1
        with suppress(OSError):  # it has hung up already
            self.transport.write_eof()
        self._cut = self.loop.call_later(_LEAVING_SECONDS, self.transport.abort)

    # ---- deadlines -----------------------------------------------------------------------------------------------------

    def _expect(self) -> None:
        """Sets the deadline of what comes next: the end of the request under way, or else the headers of another. A connection that ends
        with its answer is open until that has been read: its deadlines stay, and like others it may give way from now on."""
        self._stop_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            self._places.works(self)
            self._moved, self._moved_before = 0, -self.transport.get_write_buffer_size()  # of earlier answers
            self._until = self.loop.time() + self.request
            self._look_on()
            return
        self._places.rests(self)
        if self.transport.is_closing():
            self._look_on()
        else:
            self._cut = self.loop.call_later(self.head, self.transport.abort)

    def _look_on(self) -> None:
        """Cuts the connection when the request is overdue, or when its peer does not get on with it."""
        left = self._until - self.loop.time()
        if left <= 0:
            self.transport.abort()
            return
        self._cut = self.loop.call_later(min(left, self.slow), self._look_again)

    def _look_again(self) -> None:
        unread = self.transport.get_write_buffer_size()
        moved, self._moved_before = self._moved - unread - self._moved_before, self._moved - unread
        unsent = self.cycle.more_body and not self.flow.read_paused
        if (unread or unsent) and not self._polling and moved < SLOW_RATE * self.slow:
            self.transport.abort()
        else:
            self._look_on()

    def _stop_timer(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

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
