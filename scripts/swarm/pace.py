"""How fast this machine is just now, so that a deadline allows the same work on any machine, free or busy.

The demo's deadlines are seconds of a machine that is free and as fast as the one they were chosen on. While something is
waited for, a fixed piece of work is timed every few seconds; a second in which the machine did a quarter of what a free
one does counts for a quarter. A free machine never waits longer than the deadline says.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable

_SUBMISSION = "sum(i * i for i in range(2_000_000))"
_FREE_SECONDS = 0.1  # what _WORK takes on a free core of two, with the start of Python
_LOOK_SECONDS = 10.0  # between two measurements while somebody waits: they cost one per cent of a core
_SLOW = 1.5  # worth a word where something took too long
_SLOWEST = 100.0  # slower than this is no machine that a swarm runs on: a wait ends at last


def slowness() -> float:
    """How many times as long as a free machine this one takes now for the same work; at least 1."""
    started = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        work = [sys.executable, "-I", "-S", "-c", _SUBMISSION]
        # In a session of its own: a Ctrl-C at the terminal is not for it, and it would answer with a traceback.
        subprocess.run(work, check=True, timeout=_SLOWEST * _FREE_SECONDS, start_new_session=True)
    return min(_SLOWEST, max(1.0, (time.monotonic() - started) / _FREE_SECONDS))


class Patience:
    """`seconds` of a free machine, beginning now."""

    def __init__(
        self, seconds: float, *, clock: Callable[[], float] = time.monotonic, measure: Callable[[], float] = slowness
    ) -> None:
        self.seconds = seconds
        self.slowness = 1.0
        """As measured last."""
        self._left = seconds
        self._clock, self._measure = clock, measure
        self._counted = self._started = clock()

    @property
    def waited(self) -> float:
        """Seconds on the clock."""
        return self._clock() - self._started

    def ended(self) -> bool:
        """Whether they have passed. Measures where that could be so, and else now and then."""
        passed = self._clock() - self._counted
        if passed >= min(_LOOK_SECONDS, max(self._left, 1.0), self.seconds):
            self.slowness = self._measure()
            self._left -= passed / self.slowness
            self._counted = self._clock()
        return self._left <= 0

    @property
    def hint(self) -> str:
        """What to try after a wait in vain; empty where the machine is no explanation."""
        return "end other work on this machine and run it again" if self.slowness > _SLOW else ""

    def __str__(self) -> str:
        """For the error of whoever waited in vain."""
        text = f"{self.seconds:g} s"
        if self.slowness > _SLOW:
            text += f" of a free machine ({self.waited:.0f} s of this one, which is {self.slowness:.1f} times as slow just now)"
        return text
