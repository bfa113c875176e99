"""What an offline filter has done so far, in a file that it can go on from after any kill.

A line each: a header that says how problems are tried, then one list per problem. A line is written when its problem is tried, and
the file reaches the disk after each batch; what a kill tears is the last line, which is cut off. Two processes never write one journal.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import IntegrityError, LockHeld, PreflightError, UsageError


@dataclass(frozen=True)
class Tried:
    """One problem, by its number in the run."""

    number: int
    rate: float | None
    """Mean task reward; None for a problem that evaluation asks as well, which nobody tries."""
    solved: int = 0
    """Answers whose task reward is 1."""
    off: float | None = None
    """Mean tokens off the budget; None where none was announced."""


class Journal:
    """Opens, or goes on with, `path`; a context, which holds its lock.

    Raises UsageError where it was begun otherwise than `header` says, LockHeld while another process writes it, IntegrityError where a line
    within it is none, PreflightError.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self._path = path
        self.tried: dict[int, Tried] = {}
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise PreflightError(f"cannot write {path}: {error.strerror}") from error
        try:
            self._lock()
            self._go_on(header)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LockHeld(f"another process is filtering into {self._path}", hint="wait for it, or end it") from error

    def _go_on(self, header: dict[str, Any]) -> None:
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        self._file.truncate(whole)
        lines = data[:whole].split(b"\n")[:-1]
        if not lines:
            self._write(header)
        for number, line in enumerate(lines):
            try:
                said = json.loads(line)
                if number:
                    self._note(Tried(*said))
                elif said != header:
                    raise UsageError(
                        f"{self._path} was begun with another model, task set or sampling", hint=f"remove {self._path}"
                    )
            except (ValueError, TypeError) as error:
                raise IntegrityError(
                    f"line {number + 1} of {self._path} cannot be read: {error}",
                    hint="remove that line: its problem is tried again",
                ) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, one: Tried) -> None:
        self._write([one.number, one.rate, one.solved, one.off])
        self._note(one)

    def sync(self) -> None:
        """What was added survives a failure of the machine."""
        os.fsync(self._file.fileno())

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _write(self, said: Any) -> None:
        self._file.write(json.dumps(said).encode() + b"\n")
        self._file.flush()

    def _note(self, one: Tried) -> None:
        self.tried[one.number] = one
