"""The trainer's files as a page shows them: status.json, metrics.jsonl as series, samples.jsonl.

metrics.jsonl is read on from where it was left; a trainer that resumes cuts it off by a rename, and then it is read anew. What is drawn
is bounded: of a long run each series keeps so many points, evenly spaced.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from protocol.shell.home import read_json
from trainer.config import Outputs

POINTS = 300
"""Of a series that is drawn."""
STEPS_MAX = 20_000
"""Records that are kept in memory: of a longer run every second one is, and so on."""
_SERIES = (
    "reward",
    "task_reward",
    "length_error",
    "completion_length",
    "staleness",
    "entropy",
    "gradient_norm",
    "kl",
    "nodes",
)
_BY_NAME = ("reward_by_environment", "length_error_by_environment", "seconds")
_NAMES_MAX = 32  # environments, phases
_TAIL_BYTES = 1 << 20
_SAMPLES_MAX = 8
_LETTERS_MAX = 2_000  # of a text


class TrainingFiles:
    """For one thread."""

    def __init__(self, layout: Outputs) -> None:
        self._layout = layout
        self._metrics = _Lines(layout.metrics)
        self._records: dict[int, dict[str, Any]] = {}
        self._held_out: dict[int, dict[str, Any]] = {}
        self._stride = 1
        self._samples: tuple[tuple[int, int] | None, list[dict[str, Any]]] = (None, [])

    def status(self) -> dict[str, Any]:
        """What the trainer said last; empty before its first word."""
        found = read_json(self._layout.status)
        return found if isinstance(found, dict) else {}

    def hub_status(self) -> dict[str, Any]:
        """What the hub said last; empty where there is none."""
        found = None if self._layout.hub_status is None else read_json(self._layout.hub_status)
        return found if isinstance(found, dict) else {}

    def record(self, step: int) -> dict[str, Any] | None:
        """What metrics.jsonl has of a step."""
        return finite(self._records.get(step))

    def follow(self) -> bool:
        """Reads what the trainer has written since; whether that was anything."""
        is_anew, lines = self._metrics.fresh()
        if is_anew:
            self._records, self._held_out, self._stride = {}, {}, 1
        for line in lines:
            self._take(line)
        return is_anew or bool(lines)

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            step = int(record["step"])
        except (ValueError, TypeError, KeyError):  # torn by a full disk
            return
        if "held_out_score" in record:
            self._held_out[step] = record
        elif step % self._stride == 0:
            self._records[step] = record
        if len(self._records) > STEPS_MAX:
            self._stride *= 2
            self._records = {step: record for step, record in self._records.items() if step % self._stride == 0}

    def newest_with(self, name: str, most: int) -> list[dict[str, Any]]:
        """The newest records of steps in which this number is not 0, newest first."""
        steps = sorted(self._records, reverse=True)
        return [finite(self._records[step]) for step in steps if self._records[step].get(name)][:most]

    def charts(self, more: Sequence[str] = ()) -> dict[str, Any]:
        """Series over steps, with None where a step says nothing of one; `more`: names of others that are wanted."""
        records = [self._records[step] for step in _spread(sorted(self._records))]
        held_out = [self._held_out[step] for step in _spread(sorted(self._held_out))]
        found: dict[str, Any] = {
            "steps": [record["step"] for record in records],
            "held_out": {
                "steps": [record["step"] for record in held_out],
                "score": [_number(record.get("held_out_score")) for record in held_out],
                "by_environment": _by_name(held_out, "held_out_by_environment"),
                "length_error": [_number(record.get("held_out_length_error")) for record in held_out],
            },
        }
        for name in (*_SERIES, *more):
            found[name] = [_number(record.get(name)) for record in records]
        for name in _BY_NAME:
            found[name] = _by_name(records, name)
        return found

    def samples(self) -> list[dict[str, Any]]:
        """Those of the last step that was written, texts as they are: whoever shows them has strangers' words in hand."""
        path = self._layout.samples
        try:
            stat = path.stat()
        except OSError:
            self._samples = (None, [])
            return []
        mark = (stat.st_mtime_ns, stat.st_size)
        if self._samples[0] != mark:
            self._samples = (mark, list(_newest(path, stat.st_size)))
        return self._samples[1]


class _Lines:
    """Whole lines of a file that grows, or is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is: tuple[int, int] | None = None  # device and inode
        self._offset = 0

    def fresh(self) -> tuple[bool, list[bytes]]:
        """(whether it is another file than before, its new lines)."""
        try:
            with self._path.open("rb") as file:
                stat = self._path.stat()
                identity = (stat.st_dev, stat.st_ino)
                is_anew = identity != self._is or stat.st_size < self._offset
                if is_anew:
                    self._is, self._offset = identity, 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            is_anew, self._is, self._offset = self._is is not None, None, 0
            return is_anew, []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return is_anew, whole.splitlines()


def _newest(path: Path, size: int) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return
    rows: list[dict[str, Any]] = []
    for line in reversed(lines):
        try:
            row = json.loads(line)
            shown = {
                "step": int(row["step"]), "prompt": _cut(str(row["prompt"])),
                "completion": _cut(str(row["completion"])), "tokens": int(row["tokens"]),
                "reward": _number(row["reward"]), "advantage": _number(row["advantage"]),
            }  # fmt: skip
        except (ValueError, TypeError, KeyError):  # what stood before the tail's beginning
            continue
        if (rows and shown["step"] != rows[0]["step"]) or len(rows) == _SAMPLES_MAX:
            break
        rows.append(shown)
    yield from reversed(rows)


def _cut(text: str) -> str:
    """Beginning and end: a question stands in the one, an answer in the other."""
    half = _LETTERS_MAX // 2
    return text if len(text) <= _LETTERS_MAX else f"{text[:half]} … {text[-half:]}"


def _spread(steps: list[int]) -> list[int]:
    """At most `POINTS` of them, first and last included."""
    if len(steps) <= POINTS:
        return steps
    return [steps[round(i * (len(steps) - 1) / (POINTS - 1))] for i in range(POINTS)]


def _by_name(records: list[dict[str, Any]], name: str) -> dict[str, list[float | None]]:
    found = (record.get(name) for record in records)
    parts = [part if isinstance(part, dict) else {} for part in found]
    names = list(dict.fromkeys(key for part in parts for key in part))[:_NAMES_MAX]
    return {key: [_number(part.get(key)) for part in parts] for key in names}


def _number(value: object) -> float | None:
    """JSON knows no infinity, and a chart no more than five digits."""
    return float(f"{value:.5g}") if isinstance(value, int | float) and math.isfinite(value) else None


def finite(value: Any) -> Any:
    """The same without what JSON cannot say; the trainer's files are Python's JSON, which knows infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list) else value
