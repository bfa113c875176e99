"""What the trainer is doing: every phase and every wait has a name, a duration and a deadline.

Each thread is in one phase at a time; a phase within another interrupts the clock of the outer one, so that the times of a
thread add up. The watchdog (watchdog.py) ends the process when a phase outlasts its deadline, unless it may be done without.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from protocol import metrics
from protocol.clock import SYSTEM, Clock

_SECONDS = metrics.counter(
    "murmur_trainer_phase_seconds_total", "Time spent in phases that have ended, by phase.", "phase"
)
_UNTOLD_MAX = 1_000  # phases that have ended and nobody has asked for

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
    step: int | None = None
    """The step that was under way when it began; None before the first."""
    beside: bool = False
    """Whether it goes on beside the training, in another thread."""

    def left(self, now: float) -> float:
        return self.started + self.deadline - now

    def as_json(self, now: float) -> dict[str, Any]:
        return {
            "name": self.name, "since": self.at, "seconds": round(now - self.started, 1), "deadline": self.deadline,
            "step": self.step, "beside": self.beside,
        }  # fmt: skip

    def as_span(self, spent: float) -> dict[str, Any]:
        """Once it has ended, as a line of phases.jsonl; `net` is without the phases within."""
        return {
            "step": self.step, "name": self.name, "at": round(self.at, 3), "seconds": round(spent, 3),
            "net": round(spent - self.inner, 3), "beside": self.beside,
        }  # fmt: skip


class Phases:
    """Safe to share between threads."""

    def __init__(self, clock: Clock = SYSTEM, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called at each beginning and end of a phase. The thread that makes this is the one that trains."""
        self.step: int | None = None
        """The step that is under way."""
        self._trains = threading.get_ident()
        self._ended: deque[dict[str, Any]] = deque(maxlen=_UNTOLD_MAX)
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
        thread = threading.get_ident()
        phase = Phase(
            name, self._clock.monotonic(), self._clock.wall(), deadline, fatal=fatal, step=self.step, beside=thread != self._trains
        )  # fmt: skip
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
                self._ended.append(phase.as_span(spent))
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

    def take_ended(self) -> list[dict[str, Any]]:
        """The phases that have ended since this was asked last, in the order of their ends."""
        with self._lock:
            ended = list(self._ended)
            self._ended.clear()
        return ended

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
