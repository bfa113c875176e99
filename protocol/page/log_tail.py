"""The last lines that a role has logged, kept for its page."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.logs import TextFormatter

LINES = 200
_BYTES = 64 << 10
_LETTERS = 2_000  # of a line that is shown
_KEPT_LETTERS = 8_000  # of one that is kept: what is hidden is hidden before a line is cut, or half a secret would not be known for one


class LogTail(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self._lines: deque[str] = deque(maxlen=LINES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(_cut(self.format(record), _KEPT_LETTERS))
        except Exception:  # noqa: BLE001  as every handler: a line that cannot be written stops nobody's work
            self.handleError(record)

    def lines(self, hide: Callable[[str], str]) -> list[str]:
        """`hide` takes secrets out of a line."""
        return [_cut(hide(line)) for line in list(self._lines)]

    @contextmanager
    def following(self) -> Iterator[LogTail]:
        """Keeps what is logged within the block."""
        root = logging.getLogger()
        root.addHandler(self)
        try:
            yield self
        finally:
            root.removeHandler(self)


def last_of(path: Path, hide: Callable[[str], str]) -> list[str]:
    """The last lines of a log that another process writes, without what `hide` takes out; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    whole = lines[1:] if size > _BYTES else lines
    return [_cut(hide(line)) for line in whole[-LINES:]]


def _cut(line: str, letters: int = _LETTERS) -> str:
    """Without the word that would be cut."""
    if len(line) <= letters:
        return line
    kept = line[:letters]
    return kept[: max(kept.rfind(" "), kept.rfind("\n")) + 1] + "…"
