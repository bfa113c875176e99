"""A page on the loopback that costs a socket and a sleeping thread while nobody looks.

What answers requests (uvicorn, FastAPI and the page's files) is imported when somebody comes first, and its event loop ends when nobody has
looked for a while: the next one who comes starts another. Until then connections wait in the socket's queue.

Other programs of the machine may connect, too, and say nothing: connections are few, the oldest idle one gives way to whoever comes, and each has
deadlines. So a page takes no more files of its process than `CONNECTIONS_MAX`, and a few for those who are being turned away.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
PORTS = 16
"""That are tried, one after the other, from the one that is wanted."""
QUIET_SECONDS = 30.0
CONNECTIONS_MAX = 64
HEAD_SECONDS = 10.0
"""From the beginning of a connection, or the end of an answer, to the next request's headers."""
_REQUEST_SECONDS = 60.0
_SLOW_SECONDS = 20.0
_YOUNGEST_SECONDS = 0.1
"""An idle connection that is younger gives way to nobody: its request may be on its way."""
_LEAVING_MAX = 16
_BACKLOG = 64  # that are accepted at once, before the first of them is counted
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"


def listen(port: int) -> socket.socket | None:
    """On this port or the next one that is free; 0 takes any. None where none is."""
    for candidate in range(port, min(port + PORTS, 1 << 16)) if port else (0,):
        try:
            made = socket.create_server((HOST, candidate), backlog=_BACKLOG)
        except OSError:
            continue
        return made
    return None


class SleepingServer:
    """Serves while its context lasts; closes the socket at the end."""

    def __init__(
        self, listener: socket.socket, make: Callable[[], ASGIApp], quiet_seconds: float = QUIET_SECONDS,
        *, head_seconds: float = HEAD_SECONDS,
    ) -> None:  # fmt: skip
        """`make` makes the app, once; without a connection or request for `quiet_seconds` the server sleeps again."""
        self._listener = listener
        self.url = f"http://{HOST}:{listener.getsockname()[1]}/"
        self._make = make
        self._quiet_seconds, self._head_seconds = quiet_seconds, head_seconds
        self._app: ASGIApp | None = None
        self._server: uvicorn.Server | None = None
        self._is_ending = False
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="page-http", daemon=True)

    @property
    def is_awake(self) -> bool:
        return self._server is not None

    def __enter__(self) -> SleepingServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending = True
        os.write(self._wake, b".")
        if (server := self._server) is not None:
            server.should_exit = True
        self._thread.join(5)
        for end in (self._woken, self._wake):
            os.close(end)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as comers, self._listener:
            for one in (self._listener, self._woken):
                comers.register(one, selectors.EVENT_READ)
            while comers.select() and not self._is_ending:
                try:
                    self._answer()
                except Exception:  # a page that fails takes nothing with it
                    log.exception("the page is not served any more")
                    return
                finally:
                    self._server = None

    def _answer(self) -> None:
        """Until nobody looks any more."""
        import uvicorn

        from protocol.bounded_http import BoundedConnection, House

        house = House(CONNECTIONS_MAX, CONNECTIONS_MAX, _YOUNGEST_SECONDS, refusal=_REFUSAL, leaving=_LEAVING_MAX)
        quiet_seconds, since, requests = self._quiet_seconds, time.monotonic(), 0

        class Connection(BoundedConnection):
            head, request, slow = self._head_seconds, _REQUEST_SECONDS, _SLOW_SECONDS

            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(house, *arguments, **named)

            def _begin(self) -> None:
                if self.cycle.scope["path"].endswith("/events"):
                    self._places.waits(self)
                else:
                    super()._begin()

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                asyncio.get_running_loop().set_exception_handler(_Complaints())
                await super().startup(sockets)

            async def on_tick(self, counter: int) -> bool:
                nonlocal since, requests
                now, state = time.monotonic(), self.server_state
                if state.connections or state.total_requests != requests:
                    since, requests = now, state.total_requests
                return await super().on_tick(counter) or now - since > quiet_seconds

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                logging.getLogger("uvicorn.error").setLevel(
                    logging.CRITICAL
                )  # requests that are cut off at the end are no errors
                await super().shutdown(sockets)

        self._app = self._app or self._make()
        config = uvicorn.Config(
            self._app, http=Connection, ws="none", lifespan="off", log_config=None, log_level="error", access_log=False,
            server_header=False, backlog=_BACKLOG, timeout_keep_alive=int(HEAD_SECONDS), timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = Server(config)
        if not self._is_ending:
            with self._listener.dup() as shared:
                self._server.run([shared])


class _Complaints:
    """What an event loop does with them. While this process has no file left, asyncio complains of every connection that it cannot accept."""

    def __init__(self) -> None:
        self._is_told = False

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = context["message"]
        if "_start_serving" in message:
            return  # a second later it would accept again, and is closed by then
        if "socket.accept()" not in message:
            loop.default_exception_handler(context)
        elif not self._is_told:
            self._is_told = True
            log.warning("the page answers nobody new while this process cannot open files: %s", context["exception"])
