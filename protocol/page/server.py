"""A page on the loopback that costs a socket and a sleeping thread while nobody looks.

What answers requests (uvicorn, FastAPI and the page's files) is imported when somebody comes first, and its event loop ends when nobody has
looked for a while: the next one who comes starts another. Until then connections wait in the socket's queue.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
PORTS = 16
"""That are tried, one after the other, from the one that is wanted."""
QUIET_SECONDS = 30.0
_CONNECTIONS_MAX = 64


def listen(port: int) -> socket.socket | None:
    """On this port or the next one that is free; 0 takes any. None where none is."""
    for candidate in range(port, min(port + PORTS, 1 << 16)) if port else (0,):
        try:
            made = socket.create_server((HOST, candidate), backlog=64)
        except OSError:
            continue
        # Inherited by connections; without it an answer's body waits 40 ms for its head's receipt.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    return None


class SleepingServer:
    """Serves while its context lasts; closes the socket at the end."""

    def __init__(
        self, listener: socket.socket, make: Callable[[], ASGIApp], quiet_seconds: float = QUIET_SECONDS
    ) -> None:
        """`make` makes the app, once; without a connection or request for `quiet_seconds` the server sleeps again."""
        self._listener = listener
        self._make = make
        self._quiet_seconds = quiet_seconds
        self._app: ASGIApp | None = None
        self._server: uvicorn.Server | None = None
        self._is_ending = False
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="page-http", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._listener.getsockname()[1]}/"

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
        self._listener.close()
        for end in (self._woken, self._wake):
            os.close(end)

    def _serve(self) -> None:
        while True:
            select.select([self._listener.fileno(), self._woken], [], [])
            if self._is_ending:
                return
            try:
                self._answer()
            except Exception:  # a page that fails takes nothing with it
                log.exception("the page is not served any more")
                return

    def _answer(self) -> None:
        """Until nobody looks any more."""
        import uvicorn

        quiet_seconds, since, requests = self._quiet_seconds, time.monotonic(), 0

        class Server(uvicorn.Server):
            async def on_tick(self, counter: int) -> bool:
                nonlocal since, requests
                now, state = time.monotonic(), self.server_state
                if state.connections or state.total_requests != requests:
                    since, requests = now, state.total_requests
                return await super().on_tick(counter) or now - since > quiet_seconds

        self._app = self._app or self._make()
        config = uvicorn.Config(
            self._app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            limit_concurrency=_CONNECTIONS_MAX, timeout_keep_alive=30, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = Server(config)
        if not self._is_ending:
            self._server.run([self._listener.dup()])
        self._server = None
