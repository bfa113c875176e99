"""What is left alone for a while, because something with it failed."""

from __future__ import annotations

import time
from collections.abc import Hashable


class Rests:
    def __init__(self, seconds: float) -> None:
        """`seconds`: how long, unless `add` says otherwise."""
        self._seconds = seconds
        self._until: dict[Hashable, float] = {}

    def add(self, what: Hashable, seconds: float | None = None) -> None:
        self._until[what] = time.monotonic() + (self._seconds if seconds is None else seconds)

    def __contains__(self, what: Hashable) -> bool:
        return time.monotonic() < self._until.get(what, 0.0)
