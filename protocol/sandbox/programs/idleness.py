"""How long a program was idle: it neither computed nor waited for a processor or a disk.

    Idleness(first)       `first` is the number of a sandbox's first process, whose only child is the program's

Looked at from outside, now and then. Between two looks the program was idle for the time on the clock, less its CPU time, less what its
threads waited for a processor. What is not known for certain is not idle: a look at a thread that is ready to run says nothing yet (the kernel
writes its wait down when it runs), one at a thread that waits for a disk says that the machine is slow, and what threads waited that have
ended nobody knows: the first seconds of a test in which some end do not count. Does not cover: the time after the
last look, at most as long again as what was looked at; a program that prints so much that this process holds it up.

Sources: proc_pid_stat(5), proc_pid_schedstat (the kernel's Documentation/scheduler/sched-stats), clock_getcpuclockid(3).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from protocol.environments.programs import WALL

_FIRST_S = 0.01
_MOST_S = 0.1
_UNKNOWN_S = 3.0
"""Of a test, in which threads end, as Node.js's do in every program; more than that, and what they waited is estimated."""


@dataclass(frozen=True)
class _Look:
    """A measure of a process, which took from `before` to `after`."""

    before: float
    after: float
    cpu: float
    waits: dict[str, float]
    states: set[str]


class Idleness:
    """Of one test. `seconds` is what was seen so far, and `cpu` what its process computed; `pause` how long the next look may wait."""

    def __init__(self, first: int | None) -> None:
        self._first = first
        self._pid: int | None = None
        self._since: _Look | None = None
        self.seconds = 0.0
        self.cpu = 0.0
        self._unknown = 0.0
        self.pause = _FIRST_S
        self._next = time.monotonic()

    def look(self) -> float:
        """Looks, where it is time; what was seen so far."""
        found = self._looked() if self._first is not None and is_counted() and time.monotonic() >= self._next else None
        since = self._since
        if found is None:
            return self.seconds
        self.cpu = found.cpu
        self.pause = min(_MOST_S, 2 * self.pause)
        self._next = found.after + self.pause
        if since is None or "D" in found.states:
            self._since = found
        elif "R" not in found.states:  # a main thread may have ended, and the others sleep
            self.seconds += max(0.0, self._idle(since, found))
            self._since = found
        return self.seconds

    def skip(self) -> None:
        """What passed since the last look does not count."""
        self._since = None

    def told(self, cpu: float, wall: float) -> float:
        """At the end, of what it took in all."""
        if self._first is None or not is_counted():
            return max(0.0, (wall - 1) / WALL - cpu)  # what the time on the clock allows a busy machine
        return min(self.seconds, wall)

    def _idle(self, since: _Look, found: _Look) -> float:
        """Seconds, rather too few: what lies between two measures is shorter than what either counts."""
        passed = found.before - since.after
        computed = found.cpu - since.cpu
        waited = sum(found.waits.values()) - sum(since.waits.get(thread, 0.0) for thread in found.waits)
        if since.waits.keys() - found.waits.keys():
            self._unknown += passed
            if self._unknown <= _UNKNOWN_S:
                return 0.0
            waited += WALL * computed
        return passed - computed - waited

    def _looked(self) -> _Look | None:
        try:
            if self._pid is None:
                children = Path(f"/proc/{self._first}/task/{self._first}/children").read_text().split()
                if not children:
                    return None
                self._pid = int(children[0])
            before = time.monotonic()
            cpu = time.clock_gettime(_clock_of(self._pid))
            waits: dict[str, float] = {}
            states: set[str] = set()
            for thread in os.listdir(f"/proc/{self._pid}/task"):
                folder = f"/proc/{self._pid}/task/{thread}"
                states.add(Path(folder, "stat").read_text().rpartition(")")[2].split()[0])
                waits[thread] = int(Path(folder, "schedstat").read_text().split()[1]) / 1e9
            return _Look(before, time.monotonic(), cpu, waits, states)
        except (OSError, IndexError, ValueError):
            return None  # it, or a thread of it, ends


@cache
def is_counted() -> bool:
    """Whether this kernel says what a program is, and what it waited for a processor."""
    try:
        own = Path("/proc/thread-self/schedstat").read_text().split()
        Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
        time.clock_gettime(_clock_of(os.getpid()))
    except OSError:
        return False
    return int(own[2]) > 0


def _clock_of(pid: int) -> int:
    """Of a process's CPU time, as clock_getcpuclockid(3) gives it."""
    return (~pid << 3) | 2
