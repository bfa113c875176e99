"""Time as a part that is passed in: what waits, or decides by time, takes a `Clock` and has the machine's own by default.

Tests pass a virtual one (tests/clock.py), so that no promise about time costs time or hangs on a busy machine. Deadlines of
the protocol come from block time, which is the chain's to say and no business of a clock.

Not covered: what only measures itself for a log or a bench, timeouts that the system enforces (sockets, subprocesses), and
the p2p host, whose time is trio's.
"""

from __future__ import annotations

import time
from threading import Event
from typing import Protocol


class Clock(Protocol):
    """Seconds throughout."""

    def monotonic(self) -> float:
        """Never goes back; its zero means nothing. For timeouts and pauses."""
        ...

    def wall(self) -> float:
        """Unix time of this machine. For what is shown, stored or compared with the times of files."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def wait(self, event: Event, seconds: float) -> bool:
        """Waits until `event` is set, for at most `seconds`; whether it is set."""
        ...


class SystemClock:
    """The machine's own."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: Event, seconds: float) -> bool:
        return event.wait(seconds)


SYSTEM: Clock = SystemClock()
