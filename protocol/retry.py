"""What failed is tried again, but not at once: pauses that grow, for one thing or for many, and a loop that keeps trying."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from protocol.clock import SYSTEM, Clock

T = TypeVar("T")

_FORGET_FROM = 1024  # things remembered before those that failed long ago are looked for


@dataclass
class _Pause:
    failures: int
    until: float
    """Monotonic."""


class Backoff:
    """Leaves alone what failed: for `first` seconds, twice as long after each further failure in a row, at most `most`.

    Things are told apart by `key`; a backoff of one thing needs none. `key in backoff` says whether it is left alone now.
    """

    def __init__(self, first: float, most: float | None = None, *, jitter: bool = False, clock: Clock = SYSTEM) -> None:
        """`most`: `first` where it is not given, so that pauses do not grow. `jitter`: each pause is 0.5 to 1.5 times as
        long, by chance, so that many who failed together do not return together."""
        self._first = first
        self._most = first if most is None else most
        self._jitter = jitter
        self._clock = clock
        self._pauses: dict[Hashable, _Pause] = {}
        self._forget_from = _FORGET_FROM

    def failed(self, key: Hashable = None) -> float:
        """Notes a failure. Returns for how many seconds the thing is left alone now."""
        failures = self._pauses[key].failures if key in self._pauses else 0
        seconds = min(self._first * 2.0 ** min(failures, 64), self._most)
        if self._jitter:
            seconds = jittered(seconds)
        self._note(key, failures + 1, seconds)
        return seconds

    def hold(self, key: Hashable, seconds: float) -> None:
        """Leaves a thing alone for so long, which is no failure of it."""
        self._note(key, self._pauses[key].failures if key in self._pauses else 0, seconds)

    def succeeded(self, key: Hashable = None) -> None:
        """Forgets the failures of a thing; it may be tried at once."""
        self._pauses.pop(key, None)

    def clear(self) -> None:
        """Forgets all failures."""
        self._pauses.clear()

    def left(self, key: Hashable = None) -> float:
        """Seconds for which a thing is still left alone; 0 where it may be tried."""
        pause = self._pauses.get(key)
        return 0.0 if pause is None else max(0.0, pause.until - self._clock.monotonic())

    def __contains__(self, key: Hashable) -> bool:
        return self.left(key) > 0

    def _note(self, key: Hashable, failures: int, seconds: float) -> None:
        now = self._clock.monotonic()
        self._pauses[key] = _Pause(failures, now + seconds)
        if len(self._pauses) >= self._forget_from:
            # Nobody has come back to these for as long as the longest pause: they are done, or as good as new.
            self._pauses = {k: pause for k, pause in self._pauses.items() if now - pause.until < self._most}
            self._forget_from = max(_FORGET_FROM, 2 * len(self._pauses))


def jittered(seconds: float) -> float:
    """0.5 to 1.5 times as long, by chance."""
    return seconds * random.uniform(0.5, 1.5)


def retry(
    action: Callable[[], T],
    *,
    on: type[Exception] | tuple[type[Exception], ...],
    within: float,
    pause: float,
    unless: Callable[[Exception], bool] = lambda error: False,
    failed: Callable[[Exception], object] = lambda error: None,
    clock: Clock = SYSTEM,
) -> T:
    """Repeats `action` while it raises `on`, with `pause` seconds between attempts; after `within` seconds raises the last error.

    An error for which `unless` is true is raised at once. `failed` is called with each that is followed by another attempt.
    """
    until = clock.monotonic() + within
    while True:
        try:
            return action()
        except on as error:
            if unless(error) or clock.monotonic() > until:
                raise
            failed(error)
            clock.sleep(pause)
