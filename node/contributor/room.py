"""Whether the disk has room for more work. A node that is short of it waits: what it has committed to still goes to the hub."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from protocol.clock import SYSTEM, Clock
from protocol.retry import Backoff

log = logging.getLogger("node")

PAUSE_BYTES = 1 << 30
"""Free below which nothing is made; stores of weights leave as much (protocol/shardcast/store.py)."""
_TOLD_SECONDS = 3600.0


class DiskRoom:
    """Of the disk that holds `folder`; below `warn` bytes the log says so, once an hour. `free` tells the free bytes."""

    def __init__(
        self, folder: Path, warn: int, clock: Clock = SYSTEM, free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    ) -> None:  # fmt: skip
        self._folder, self._warn, self._free = folder, max(warn, PAUSE_BYTES), free
        self._told = Backoff(_TOLD_SECONDS, clock=clock)

    def reason_to_wait(self) -> str:
        """Empty where there is room."""
        free = self._free(self._folder)
        if free >= self._warn:
            return ""
        left = f"the disk of {self._folder} has {free >> 20} MiB free"
        if free < PAUSE_BYTES:
            return f"{left}, and work begins with {PAUSE_BYTES >> 20} MiB"
        if None not in self._told:
            self._told.failed()
            log.warning("%s; below %d MiB the node waits", left, PAUSE_BYTES >> 20)
        return ""
