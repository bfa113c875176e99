"""What the trainer is doing: every phase and every wait has a name, a duration and a deadline.

Each thread is in one phase at a time; a phase within another interrupts the clock of the outer one, so that the times of a
thread add up. The watchdog (watchdog.py) ends the process when a phase outlasts its deadline, unless it may be done without.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from protocol import metrics
from protocol.clock import SYSTEM, Clock

_SECONDS = metrics.counter(
    "murmur_trainer_phase_seconds_total", "Time spent in phases that have ended, by phase.", "phase"
)
_GOING_ON = metrics.gauge(
    "murmur_trainer_running_phase_seconds", "For how long the trainer has been in each phase that goes on now.", "phase"
)


@dataclass
class Phase:
    """`started` is monotonic, `at` the wall clock's; `deadline` in seconds from the start; `inner`: spent in phases within."""

    name: str
    started: float
    at: float
    deadline: float
    inner: float = 0.0
    fatal: bool = True
    """Whether overrunning it ends the process."""

    def left(self, now: float) -> float:
        return self.started + self.deadline - now

    def as_json(self, now: float) -> dict[str, Any]:
        return {
            "name": self.name, "since": self.at, "seconds": round(now - self.started, 1), "deadline": self.deadline,
        }  # fmt: skip


class Phases:
    """Safe to share between threads."""

    def __init__(self, clock: Clock = SYSTEM, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called at each beginning and end of a phase."""
        self._clock = clock
        self._changed = changed
        self._stacks: dict[int, list[Phase]] = {}
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, name: str, deadline: float, *, fatal: bool = True) -> Iterator[Phase]:
        """The calling thread is in phase `name` for as long as the block lasts, for at most `deadline` seconds.

        A phase that is not `fatal` may overrun: whoever waits for it looks after its deadline.
        """
        phase = Phase(name, self._clock.monotonic(), self._clock.wall(), deadline, fatal=fatal)
        thread = threading.get_ident()
        with self._lock:
            stack = self._stacks.setdefault(thread, [])
            stack.append(phase)
        self._changed()
        try:
            yield phase
        finally:
            with self._lock:
                stack.remove(phase)
                spent = self._clock.monotonic() - phase.started
                self._seconds[name] += spent - phase.inner  # type: ignore[assignment]
                if stack:
                    stack[-1].inner += spent
                else:
                    del self._stacks[thread]
            _SECONDS.add(spent - phase.inner, phase=name)
            self._changed()

    def measure(self) -> None:
        """Sets the gauge of the phases that go on now, for whoever reads the metrics."""
        now = self._clock.monotonic()
        with self._lock:
            running = {stack[-1].name: now - stack[-1].started for stack in self._stacks.values()}
        _GOING_ON.clear()
        for name, seconds in running.items():
            _GOING_ON.set(seconds, phase=name)

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
        now = self._clock.monotonic()
        with self._lock:
            return [stack[-1].as_json(now) for stack in self._stacks.values()]

    def most_urgent(self) -> tuple[float, Phase] | None:
        """Seconds that are left to the fatal phase whose deadline is next, negative when it is over."""
        now, fatal = self._clock.monotonic(), (phase for phase in self.running() if phase.fatal)
        return min(((phase.left(now), phase) for phase in fatal), key=lambda of: of[0], default=None)
