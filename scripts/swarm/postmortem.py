"""What each process was doing when a swarm failed: enough to see whose fault it was without the logs at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol.shell.home import read_json
from swarm.swarm import Swarm

_STATUS_PLACES = {"trainer": "output/status.json"}
_LINES = 4


def tell(swarm: Swarm) -> Iterator[str]:
    """A paragraph per process: whether it runs, what it last said of itself, and the end of its log."""
    for process in swarm.processes:
        code = process.exit_code
        yield f"{process.name}: {'running' if code is None else f'ended with {code}'}{_said(swarm.folder, process.name)}"
        yield from (f"    {line[:200]}" for line in process.tail(_LINES).splitlines())


def _said(folder: Path, name: str) -> str:
    try:
        status: dict[str, Any] = read_json(folder / _STATUS_PLACES.get(name, f"{name}/status.json")) or {}
    except ValueError:
        return ""
    shown = [f"{key} {value}" for key, value in status.items() if isinstance(value, (str, int)) and key != "time"]
    return "; " + ", ".join(shown) if shown else ""
