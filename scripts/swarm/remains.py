"""What a swarm left running, as it was noted in its folder: so that another command can find and stop it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from protocol.shell.home import read_json
from swarm.processes import command_line

PROCESSES = "processes.json"


def remembered(folder: Path) -> list[dict[str, Any]]:
    """Processes (name, pid) that a swarm in `folder` left running. A number that something else has now is none of them."""
    noted = read_json(folder / PROCESSES) or []
    return [entry for entry in noted if str(folder) in command_line(entry["pid"])]


def stop_remembered(folder: Path) -> int:
    """Stops the processes of a swarm that another process left running; returns how many there were."""
    found = remembered(folder)
    for entry in reversed(found):
        _signal(entry["pid"], signal.SIGTERM)
    until = time.monotonic() + 5
    for entry in found:
        while str(folder) in command_line(entry["pid"]) and time.monotonic() < until:
            time.sleep(0.05)
        if str(folder) in command_line(entry["pid"]):
            _signal(entry["pid"], signal.SIGKILL)
    (folder / PROCESSES).unlink(missing_ok=True)
    return len(found)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
