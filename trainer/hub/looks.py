"""Looks at the chain: those of the thread that follows it, and the few that requests may cause.

Requests are answered from the book. It may be some blocks behind for somebody who has just committed, joined or enlisted, so
that a request which misses something in it has one more look taken. Anybody can send such requests, each under a new key, and
every look costs calls to the operator's endpoint: so those who ask together share one look, and only so many are taken in a
minute, whoever asks. More are not needed: a look shows everybody all that is new, whoever caused it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from protocol.chain.sync import Book
from protocol.clock import Clock
from protocol.errors import MurmurationError
from protocol.hub.wire import TryAgain

T = TypeVar("T")


class Looks:
    """`take` may be called from any thread, `find` from one event loop."""

    def __init__(self, book: Book, per_minute: int, clock: Clock) -> None:
        self._book = book
        self._per_minute = per_minute
        self._clock = clock
        self._taking = threading.Lock()
        self._began = float("-inf")  # monotonic, when the last look that came to its end began
        self._asking = asyncio.Lock()
        self._left = float(per_minute)
        self._counted = clock.monotonic()  # when `_left` was brought up to date

    def take(self) -> None:
        """Reads new events of the chain. Raises what Book.poll raises."""
        with self._taking:  # whoever finds nothing new must find what others have found in place
            began = self._clock.monotonic()
            self._book.poll()
            self._began = began

    async def find(self, read: Callable[[], T | None]) -> T | None:
        """What `read` finds in the book; where that is None, what it finds after a look that began after this call.

        Raises TryAgain where such a look would be one too many, and what a look raises.
        """
        asked_at = self._clock.monotonic()
        found = read()
        if found is not None:
            return found
        async with self._asking:  # those who wait here together share one look
            found = read()
            if found is None and self._began <= asked_at:
                self._spend()
                try:
                    await asyncio.to_thread(self.take)
                except MurmurationError:
                    self._left = 0.0  # those who wait must not ask what fails again, one after the other
                    raise
                found = read()
        return found

    def _spend(self) -> None:
        now = self._clock.monotonic()
        passed, self._counted = now - self._counted, now
        self._left = min(self._per_minute, self._left + passed * self._per_minute / 60)
        if self._left < 1:
            raise TryAgain("the hub has not read this block of the chain yet", (1 - self._left) * 60 / self._per_minute)
        self._left -= 1
