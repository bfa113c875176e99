"""What this machine has, and what of it nobody uses now; in a container, what that may use. Imports nothing heavy."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_UNBOUNDED = 1 << 62
_THREADS_MAX = 16  # more wait for the disk, and for Python
_THREADS_SHARE = 8  # one part in so many of the free memory is for threads: the rest is the work's own
_FULL = 100  # collections of the second generation for one of all; Python's own: 10


def collect_seldom() -> None:
    """For processes that import torch and transformers, all of which stays: they would spend a fifth of their start on looking through it again
    and again. What is young is collected as ever: cycles of it hold tensors, and those count (trainer/planning)."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL)


def memory_bytes() -> int:
    """Memory, in use or not."""
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _limit())


def free_bytes() -> int:
    """Memory that nobody uses; what the system keeps of files is given up for whoever needs it."""
    free = memory_bytes()
    with suppress(OSError, KeyError):
        free = min(free, _fields(_MEMINFO)["MemAvailable:"] << 10)
    with suppress(OSError, KeyError, ValueError):
        used = int((_CGROUP / "memory.current").read_text())
        free = min(free, _limit() - used + _fields(_CGROUP / "memory.stat")["inactive_file"])
    return max(0, free)


def cores() -> int:
    """Cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        most, period = (_CGROUP / "cpu.max").read_text().split()
        allowed = min(allowed, int(most) // int(period))
    return max(1, allowed)


def idle_cores() -> int:
    """Those of them that nobody used in the last minute, at least one."""
    return max(1, cores() - round(os.getloadavg()[0]))


def size(count: float) -> str:
    """Bytes, for people."""
    return f"{count / 2**30:.3g} GiB" if count >= 2**27 else f"{count / 2**20:.3g} MiB"


def threads(each: int) -> int:
    """How many threads share work of which each holds `each` bytes: one a core, at most 16, as many as a part of the free memory has room
    for, and one at least."""
    return max(1, min(cores(), _THREADS_MAX, free_bytes() // _THREADS_SHARE // each))


def _limit() -> int:
    """Bytes of memory that the container may take."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
    except OSError:
        return _UNBOUNDED
    return int(limit) if limit.isdigit() else _UNBOUNDED


def _fields(file: Path) -> dict[str, int]:
    return {words[0]: int(words[1]) for words in map(str.split, file.read_text().splitlines())}
