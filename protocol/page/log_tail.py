"""The last lines that a role has logged, kept for its page."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.logs import TextFormatter

LINES = 200
_BYTES = 64 << 10
_LETTERS = 2_000  # of a line


class LogTail(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self._lines: deque[str] = deque(maxlen=LINES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(_cut(self.format(record)))
        except Exception:  # noqa: BLE001  as every handler: a line that cannot be written stops nobody's work
            self.handleError(record)

    def lines(self) -> list[str]:
        return list(self._lines)

    @contextmanager
    def following(self) -> Iterator[LogTail]:
        """Keeps what is logged within the block."""
        root = logging.getLogger()
        root.addHandler(self)
        try:
            yield self
        finally:
            root.removeHandler(self)


def last_of(path: Path) -> list[str]:
    """The last lines of a log that another process writes; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    whole = lines[1:] if size > _BYTES else lines
    return [_cut(line) for line in whole[-LINES:]]


def _cut(line: str) -> str:
    """Without the word that would be cut: half a secret is not known for one."""
    if len(line) <= _LETTERS:
        return line
    kept = line[:_LETTERS]
    return kept[: max(kept.rfind(" "), kept.rfind("\n")) + 1] + "…"
