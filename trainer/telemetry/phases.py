"""What the trainer is doing: every phase and every wait has a name, a duration and a deadline.

Each thread is in one phase at a time; a phase within another interrupts the clock of the outer one, so that the times of a
thread add up. The watchdog (watchdog.py) ends the process when a phase outlasts its deadline.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Phase:
    """`started` is monotonic, `at` the wall clock's; `deadline` in seconds from the start; `inner`: spent in phases within."""

    name: str
    started: float
    at: float
    deadline: float
    inner: float = 0.0

    def left(self, now: float) -> float:
        return self.started + self.deadline - now

    def as_json(self, now: float) -> dict[str, Any]:
        return {
            "name": self.name, "since": self.at, "seconds": round(now - self.started, 1), "deadline": self.deadline,
        }  # fmt: skip


class Phases:
    """Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stacks: dict[int, list[Phase]] = {}
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, name: str, deadline: float) -> Iterator[Phase]:
        """The calling thread is in phase `name` for as long as the block lasts, for at most `deadline` seconds."""
        phase = Phase(name, self._clock(), time.time(), deadline)
        thread = threading.get_ident()
        with self._lock:
            stack = self._stacks.setdefault(thread, [])
            stack.append(phase)
        try:
            yield phase
        finally:
            with self._lock:
                stack.remove(phase)
                spent = self._clock() - phase.started
                self._seconds[name] += spent - phase.inner  # type: ignore[assignment]
                if stack:
                    stack[-1].inner += spent
                else:
                    del self._stacks[thread]

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent in each phase that has ended, all threads together."""
        with self._lock:
            return dict(self._seconds)

    def running(self) -> list[Phase]:
        """All phases that someone is in, the outer before the inner."""
        with self._lock:
            return [phase for stack in self._stacks.values() for phase in stack]

    def as_json(self) -> list[dict[str, Any]]:
        """The innermost phase of each thread."""
        now = self._clock()
        with self._lock:
            return [stack[-1].as_json(now) for stack in self._stacks.values()]

    def most_urgent(self) -> tuple[float, Phase] | None:
        """Seconds that are left to the phase whose deadline is next, negative when it is over."""
        now = self._clock()
        return min(((phase.left(now), phase) for phase in self.running()), key=lambda of: of[0], default=None)
