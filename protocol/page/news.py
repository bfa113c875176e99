"""Who waits for a newer page: coroutines of an event loop, told by another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


class PageNews:
    """Safe to share between threads and loops."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self._is_over = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def wait(self, is_news: Callable[[], bool], seconds: float) -> None:
        """Returns once `is_news` holds, which is asked again at every `ring`, or after so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self._is_over and not is_news() and (left := until - loop.time()) > 0:
            waiter = loop, loop.create_future()
            with self._mutex:
                self._waiting.add(waiter)
            try:
                if not (self._is_over or is_news()):  # it may have come since it was asked
                    async with asyncio.timeout(left):
                        await waiter[1]
            except TimeoutError:
                return
            finally:
                with self._mutex:
                    self._waiting.discard(waiter)

    def close(self) -> None:
        """Nobody waits any more, from now on."""
        self._is_over = True
        self.ring()

    def ring(self) -> None:
        """There may be news."""
        with self._mutex:
            waiting, self._waiting = self._waiting, set()
        for loop, future in waiting:
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
