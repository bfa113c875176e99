"""Pauses that double from `first` to `most`, with jitter, so that many who failed together do not return together."""

from __future__ import annotations

import random


class Backoff:
    def __init__(self, first: float, most: float) -> None:
        self._first, self._most = first, most
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    def pause(self) -> float:
        """Seconds to wait this time."""
        now, self._next = self._next, min(self._next * 2, self._most)
        return jittered(now)


def jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)
