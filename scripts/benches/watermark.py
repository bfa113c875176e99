"""The most memory a process took since a moment, on Linux. Standard library only: peers import it too."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path


class Watermark:
    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
        self._base = _read("VmRSS")

    def bytes(self) -> int:
        """Peak of resident memory since then, over what was resident then."""
        return max(0, _read("VmHWM") - self._base)


def _read(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
