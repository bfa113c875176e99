"""One life of the p2p thread: a trio run with a `Discovery` in it, and the way in for other threads.

Ends by `stop`, or by a fault that nothing below caught; either way every call that was under way is told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import trio

from protocol.errors import DeadlineExceeded, Unavailable
from protocol.p2p.discovery import Discovery
from protocol.p2p.service import Endpoint, Service
from protocol.p2p.settings import Setup

log = logging.getLogger(__name__)

_SLACK_SECONDS = 0.25  # a function that keeps the deadline itself says better why it ended


class Life:
    def __init__(self, setup: Setup, announcements: Callable[[], Mapping[Service, Endpoint]]) -> None:
        self.discovery = Discovery(setup, announcements)
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        self._over = False
        self._stop: trio.Event
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery

    async def run(self, started: Callable[[], None]) -> None:
        """Calls `started` once it listens, and returns after `stop`. Raises PreflightError when it cannot listen."""
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self.discovery.run)
            started()
            await self._stop.wait()
            self.discovery.save()
            self._nursery.cancel_scope.cancel()

    # ---- from other threads ----

    def stop(self) -> None:
        self.soon(self._stop.set)

    def soon(self, function: Callable[[], None]) -> None:
        """Calls `function` in the thread as soon as it can, or never if the life is over."""

        def guarded() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001  what raises in here would take the whole run down
                log.error("a p2p call failed: %s: %s", type(error).__name__, error)

        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(guarded)

    def begin(self, function: Callable[[Discovery], Awaitable[Any]], seconds: float, what: str) -> Future[Any]:
        """Runs `function` in the thread, for at most `seconds`; `what` names it in errors."""
        future: Future[Any] = Future()
        with self._lock:
            if not self._over:
                self._waiting.add(future)
        future.add_done_callback(self._forget)
        if self._over:
            _settle(future, Unavailable(f"{what}: the p2p host has stopped"))

        async def job() -> None:
            with trio.move_on_after(seconds + _SLACK_SECONDS):
                try:
                    result = await function(self.discovery)
                except Exception as error:  # noqa: BLE001  it belongs to whoever called, in the other thread
                    _settle(future, error)
                else:
                    _settle(future, None, result)
                return
            _settle(future, DeadlineExceeded(f"{what} took longer than {seconds:.3g} s"))

        def start() -> None:
            try:
                self._nursery.start_soon(job)
            except RuntimeError:  # the nursery is closing
                _settle(future, Unavailable(f"{what}: the p2p host has stopped"))

        self.soon(start)
        return future

    def ended(self) -> None:
        """Tells everybody who still waits. Called when the trio run is over."""
        with self._lock:
            self._over = True
            waiting = list(self._waiting)
        for future in waiting:
            _settle(future, Unavailable("the p2p host stopped while it was asked"))

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._waiting.discard(future)


def _settle(future: Future[Any], error: Exception | None, result: Any = None) -> None:
    with suppress(InvalidStateError):  # settled already, or nobody waits any more
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
