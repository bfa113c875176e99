"""The calibration notices that a party has seen, version by version, kept on disk: a manifest that contradicts an earlier one is refused.

One manifest alone cannot show that its notice reaches backwards, or takes the place of one that it does not count. Whoever has seen the versions before can. The
book holds for each notice, and for the time before the first, the last version that it was seen with.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from protocol import canonical
from protocol.calibration_notice import CalibrationNotice
from protocol.errors import Malformed, PreflightError, ProtocolViolation

FILE = "calibrations.json"
"""Its name in a role's data folder."""
_BYTES_MAX = 1 << 24
_MOST = 1024  # notices; a run has a few


@dataclass(frozen=True)
class _Seen:
    notice: CalibrationNotice | None
    last: int
    """The newest version seen with it."""

    @property
    def number(self) -> int:
        return 0 if self.notice is None else self.notice.number


class NoticeBook:
    """Safe to share between threads; other processes may read the file."""

    def __init__(self, path: Path) -> None:
        """Raises PreflightError for a file that is none."""
        self._path = path
        self._mutex = Lock()
        self._seen = _read(path)

    @property
    def newest(self) -> CalibrationNotice | None:
        return max(self._seen.values(), key=lambda seen: seen.number).notice if self._seen else None

    @property
    def last(self) -> int:
        """The newest version seen; -1 before the first."""
        return max((seen.last for seen in self._seen.values()), default=-1)

    def of(self, step: int) -> CalibrationNotice | None:
        """What holds for version `step`, as far as is known here."""
        known = [one.notice for one in self._seen.values() if one.notice is not None and one.notice.since <= step]
        return max(known, key=lambda notice: notice.number, default=None)

    def take(self, step: int, notice: CalibrationNotice | None) -> None:
        """Notes what the manifest of version `step` says. Raises Malformed where an earlier or later one contradicts it."""
        with self._mutex:
            number = 0 if notice is None else notice.number
            for seen in self._seen.values():
                self._require_together(step, notice, seen)
            known = self._seen.get(number)
            if known is not None and known.last >= step:
                return
            if known is None and len(self._seen) >= _MOST:
                raise Malformed(f"the run has had more than {_MOST} calibrations")
            found = self._seen | {number: _Seen(notice, step)}
            _write(self._path, found)
            self._seen = found

    def _require_together(self, step: int, notice: CalibrationNotice | None, seen: _Seen) -> None:
        """The same for two versions in whichever order they are read. Raises Malformed."""
        if refused := _contradiction(step, notice, seen):
            now = seen.notice or "the run spec's own calibration"
            raise Malformed(
                refused,
                hint=f"here versions up to {self.last} were read, as {self._path} notes: wait for a version that goes on from {now}, which the run's owner must publish;"
                " if the owner says that this machine alone has read something else, stop, remove that file and start again",
            )


def _contradiction(step: int, notice: CalibrationNotice | None, seen: _Seen) -> str:
    """What speaks against both; empty where nothing does. Of two notices the later one came with a version after all that were seen with the earlier one, and
    each between them with a version of its own."""
    number = 0 if notice is None else notice.number
    if number == seen.number:
        if notice == seen.notice:
            return ""
        return f"notice {number} of the calibration says something else with version {step} than with {seen.last}"
    if number > seen.number:
        assert notice is not None
        if notice.since <= seen.last:
            return f"{notice} reaches backwards: version {seen.last} was published under another"
        if number - seen.number > notice.since - seen.last:
            return f"{notice} leaves out numbers: with version {seen.last} there had been {seen.number}"
        return ""
    assert seen.notice is not None
    if seen.notice.since <= step:
        said = "says nothing of it" if notice is None else f"goes back to notice {number}"
        return f"{seen.notice} is in force, and the manifest of version {step} {said}"
    if seen.number - number > seen.notice.since - step:
        return f"{seen.notice} leaves out numbers: with version {step} there had been {number}"
    return ""


def _read(path: Path) -> dict[int, _Seen]:
    try:
        with path.open("rb") as file:
            table = canonical.parse(file.read(_BYTES_MAX), "a file of notes")
        found = [_entry(of, last) for of, last in table]
        if len({seen.number for seen in found}) < len(found):
            raise ValueError("a notice stands there twice")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PreflightError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, ProtocolViolation) as error:
        hint = "remove it: it is made anew of the versions that come"
        raise PreflightError(f"{path} is damaged ({error})", hint=hint) from error
    return {seen.number: seen for seen in found}


def _entry(of: Any, last: Any) -> _Seen:
    seen = _Seen(None if of is None else CalibrationNotice.parse(of), last)
    if type(last) is not int or not max(0, seen.notice.since if seen.notice else 0) <= last < 1 << 32:
        raise ValueError("no version has such a number")
    return seen


def _write(path: Path, seen: dict[int, _Seen]) -> None:
    table = [[None if one.notice is None else one.notice.table(), one.last] for one in seen.values()]
    partial = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w") as file:
            file.write(json.dumps(table))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise PreflightError(
            f"cannot write {path}: {error.strerror}", hint="free some space or check the folder's rights"
        ) from error
