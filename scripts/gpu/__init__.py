"""What only a GPU can show, in one report: `scripts/gpu-report`.

A section is a module here with `run(at, report)`; sections.py names them, with the seconds that each may take. It runs in a process of its
own and writes what it measures line by line, so that one that fails, hangs or dies takes nothing from the others, nor from its own rows
so far (supervision.py). Rows have the form of scripts/benches. On a CPU, with `--dry-run`, every section runs in tiny shapes: that the day
of a GPU is not spent on mistakes that a CPU shows.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benches import Row


class NotRun(Exception):
    """A section, or the rest of one, that this machine cannot run: why, in words. No failure."""


@dataclass(frozen=True)
class Place:
    """Where a section computes, and what it may write to."""

    dry: bool
    """On the CPU, in tiny shapes."""
    work: Path
    """Folder of what sections leave for each other: the model. It is removed at the end."""
    out: Path
    """Folder of what stays: the report, its logs, the calibration."""

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def model(self) -> Path:
        """Folder of the model that sections measure. Raises NotRun where the section `model` has not made it."""
        if not (self.work / "model" / "made").exists():
            raise NotRun("there is no model: the section `model` comes before this one and has not made it")
        return self.work / "model"


class Record:
    """What a section has measured so far, as lines of a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def row(self, row: Row) -> None:
        self._write(row={**asdict(row), "met": row.met})

    def fact(self, **facts: Any) -> None:
        """Anything that JSON holds, by name."""
        self._write(facts=facts)

    def end(self, state: str, reason: str = "") -> None:
        self._write(state=state, reason=reason)

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Rows and facts of a record, and how it ended: `state` is None where it never said so."""
    found: dict[str, Any] = {"state": None, "reason": "", "rows": [], "facts": {}}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            said = json.loads(line)
        except ValueError:  # the line it died in
            continue
        if "row" in said:
            found["rows"].append(said["row"])
        found["facts"] |= said.get("facts", {})
        found |= {name: said[name] for name in ("state", "reason") if name in said}
    return found
