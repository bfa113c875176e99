"""What the trainer did when, step by step: rows of phases, of phases.jsonl and of the status. Runs of an earlier life stand before later ones.

What goes on beside the training (publishing, evaluating) is longer than a step at times: each row has the piece that falls into it.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS = 12
"""Rows that are shown."""
_TAIL_BYTES = 64 << 10
_PHASES_MAX = 60  # of a row
_LETTERS_MAX = 80  # of a name


@dataclass(frozen=True)
class Span:
    """A phase: wall time of its beginning, and seconds until its end, which are None while it goes on."""

    step: int | None
    name: str
    at: float
    seconds: float | None
    net: float
    beside: bool

    @property
    def end(self) -> float:
        return math.inf if self.seconds is None else self.at + self.seconds


@dataclass
class _Row:
    step: int | None
    at: float
    spans: list[Span] = field(default_factory=list)
    beside: list[Span] = field(default_factory=list)

    @property
    def end(self) -> float:
        return max(span.end for span in self.spans)

    def as_json(self) -> dict[str, Any]:
        spent: Counter[str] = Counter()
        for span in (*self.spans, *(one for one in self.beside if one.at >= self.at)):
            spent[span.name] += span.net  # type: ignore[assignment]
        return {
            "step": self.step, "at": self.at, "seconds": _seconds(self.at, self.end),
            "phases": [self._piece(span) for span in self.spans[-_PHASES_MAX:]],
            "beside": [self._piece(span) for span in self.beside[-_PHASES_MAX:]],
            "spent": [[name, round(seconds, 3)] for name, seconds in spent.most_common()],
        }  # fmt: skip

    def _piece(self, span: Span) -> list[Any]:
        """(name, seconds from the row's beginning, how long, None: it goes on)."""
        begun = max(span.at, self.at)
        return [span.name, round(begun - self.at, 3), _seconds(begun, min(span.end, self.end))]


def rows(ended: Sequence[Span], running: Sequence[Span] = ()) -> list[dict[str, Any]]:
    """The last steps, newest first."""
    spans = sorted((*ended, *running), key=lambda span: (span.at, -(span.seconds or math.inf)))
    found: list[_Row] = []
    for span in (one for one in spans if not one.beside):
        if not found or span.step != found[-1].step or span.name == "starting":
            found.append(_Row(span.step, span.at))
        found[-1].spans.append(span)
    found = found[-STEPS:]
    for span in (one for one in spans if one.beside):
        for row in found:
            if span.at < row.end and span.end > row.at:
                row.beside.append(span)
    return [row.as_json() for row in reversed(found)]


def read(path: Path) -> list[Span]:
    """The newest spans of phases.jsonl, in the order of their ends."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    return list(_spans(lines[1:] if size > _TAIL_BYTES else lines))


def running(status: Mapping[str, Any]) -> list[Span]:
    """The phases that a status says go on."""
    return [
        Span(phase.get("step"), str(phase["name"])[:_LETTERS_MAX], float(phase["since"]), None, 0.0, bool(phase.get("beside")))
        for phase in status.get("phases") or ()
    ]  # fmt: skip


def _spans(lines: Sequence[bytes]) -> Iterator[Span]:
    for line in lines:
        try:
            one = json.loads(line)
            step = None if one["step"] is None else int(one["step"])
            times = float(one["at"]), float(one["seconds"]), float(one["net"])
            if all(map(math.isfinite, times)):
                yield Span(step, str(one["name"])[:_LETTERS_MAX], *times, bool(one["beside"]))
        except (ValueError, TypeError, KeyError):  # torn, or of a full disk
            continue


def _seconds(begun: float, end: float) -> float | None:
    return None if math.isinf(end) else round(end - begun, 3)
