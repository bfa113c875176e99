"""Who waits for news of what: a poll costs a place in a dictionary, and news wake those only whom they concern.

Many may wait for the same. They are woken in the order in which they came, some at once and the others over the next seconds, so
that one receipt never makes the hub write thousands of answers before it reads its next upload.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable

AT_ONCE = 100
"""Of those who wait for one thing, as many are woken together."""
PAUSE_SECONDS = 0.25


class Bells:
    """For one event loop."""

    def __init__(self, at_once: int = AT_ONCE, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._at_once = at_once
        self._pause = pause_seconds
        self._waiting: defaultdict[Hashable, dict[asyncio.Future[None], None]] = defaultdict(dict)
        self._left: dict[Hashable, int] = {}  # to be woken still, of those who wait for what was rung

    def __len__(self) -> int:
        """How many wait, by topic."""
        return sum(len(waiting) for waiting in self._waiting.values())

    @property
    def is_quiet(self) -> bool:
        """Whether all who were to be woken have been."""
        return not self._left

    async def wait(self, topics: tuple[Hashable, ...], condition: Callable[[], bool], seconds: float) -> None:
        """Returns when the condition holds or the time is up; it is looked at when one of its topics is rung."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not condition() and (left := until - loop.time()) > 0:
            woken: asyncio.Future[None] = loop.create_future()
            timer = loop.call_later(left, _wake, woken)
            for topic in topics:
                self._waiting[topic][woken] = None
            try:
                await woken
            finally:
                timer.cancel()
                for topic in topics:
                    self._forget(topic, woken)

    def waits(self, topic: Hashable) -> bool:
        """Whether anybody waits for it."""
        return topic in self._waiting

    def ring(self, topic: Hashable, *, at_once: int | None = None) -> None:
        """There is news of it; `at_once` of those who wait are woken together, where others than usual."""
        if topic in self._waiting:
            is_ringing, self._left[topic] = topic in self._left, len(self._waiting[topic])
            if not is_ringing:
                self._wake_some(topic, at_once or self._at_once)

    def _wake_some(self, topic: Hashable, at_once: int) -> None:
        """The first of those who wait, and later the others; who comes meanwhile knows the news already."""
        left, waiting = self._left.pop(topic), self._waiting.get(topic, {})
        for woken in list(waiting)[: min(left, at_once)]:
            _wake(woken)
            self._forget(topic, woken)
        if left > at_once and waiting:
            self._left[topic] = left - at_once
            asyncio.get_running_loop().call_later(self._pause, self._wake_some, topic, at_once)

    def _forget(self, topic: Hashable, woken: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.pop(woken, None)
            if not waiting:
                del self._waiting[topic]


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
