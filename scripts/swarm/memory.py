"""How much memory a swarm takes: the sum over this process and everything it has started, sampled while it runs.

A page that several processes share counts once (Linux's proportional set size): twenty Pythons map the same libraries. What
rises and falls again between two samples is not seen. Without /proc nothing is measured, and the peak is None.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

EVERY = 2.0  # seconds; a sample takes some 2 ms of CPU time per process

_PROC = Path("/proc")


class Watermark:
    """`peak` bytes of the samples so far, or None. Use as a context manager."""

    def __init__(self) -> None:
        self.peak: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Watermark:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(10)

    def look(self) -> None:
        """Takes one sample."""
        if (_PROC / "self/smaps_rollup").exists():
            self.peak = max(self.peak or 0, sum(map(_bytes, family(os.getpid()))))

    def _sample(self) -> None:
        while not self._done.wait(EVERY):
            self.look()


def family(pid: int) -> Iterator[int]:
    """A process, its children and theirs."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)):
            children[parent].append(int(entry.name))
    waiting = [pid]
    while waiting:
        yield (found := waiting.pop())
        waiting += children[found]


def _parent(entry: Path) -> int | None:
    try:  # the second field is a name in parentheses, which may itself hold any character
        return int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None  # it has ended


def _bytes(pid: int) -> int:
    try:
        lines = (_PROC / f"{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # ended, or somebody else's
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
