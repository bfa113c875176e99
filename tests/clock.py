"""A clock that stands still unless somebody waits on it or moves it. Safe to share between threads."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock


class VirtualClock:
    """A wait ends at once and moves the clock on by its length, so that a test of minutes takes none.

    `waits` are the lengths that were waited for, in order. `meanwhile` is called within each wait, before it ends: what it
    does happens while the code under test waits.
    """

    def __init__(self, *, wall: float = 1_700_000_000.0) -> None:
        self.waits: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._passed = 0.0
        self._wall = wall
        self._lock = Lock()

    def monotonic(self) -> float:
        return 1000.0 + self._passed

    def wall(self) -> float:
        return self._wall + self._passed

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._passed += max(0.0, seconds)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.advance(seconds)
        self.meanwhile()

    def wait(self, event: Event, seconds: float) -> bool:
        if not event.is_set():
            self.sleep(seconds)
        return event.is_set()
