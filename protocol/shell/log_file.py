"""`… logs`: the last lines of the file that a role logs to, and with -f those that come, across rotations (protocol/logs.py).

Older lines lie in FILE.1, the ones before in FILE.2, and so on. A line is shown without effect on the terminal, whoever wrote its words.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Annotated, BinaryIO

import typer

from protocol.clock import SYSTEM, Clock
from protocol.errors import ConfigError, PreflightError
from protocol.logs import LoggingSettings, escaped
from protocol.shell.signals import until_signalled

LINES = 50
_LOOK_SECONDS = 0.5
_BLOCK = 64 << 10
_LINE_BYTES_MAX = 1 << 20
"""Of a line that has not ended yet; a longer one is shown in parts."""

Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on with the lines that come, until Ctrl-C.")]
Lines = Annotated[
    int, typer.Option("-n", "--lines", min=0, max=1_000_000, help="How many of the newest lines to print.")
]
LogsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def show(settings: LoggingSettings, unit: str, config: Path, *, lines: int, follow: bool, as_json: bool) -> None:
    """The whole of the command. `unit`: the role as a service of systemd. Raises ConfigError where the role logs to no file, PreflightError where that cannot be read."""
    named = settings.file
    if named is None:
        raise ConfigError(
            f"this role logs to its standard error and not to a file: {config} sets no logging.file",
            hint=f'journalctl -u {unit} -n {lines}{" -f" if follow else ""}, where systemd runs it; else put file = "…" under [logging]',
        )
    tell = _tell_json if as_json else _tell
    with closing(LogFile(Path(named))) as file:
        for line in file.newest(lines, whole=follow):
            tell(line)
        if follow:
            with until_signalled() as ending:
                file.follow(tell, ending)


def _tell(line: str) -> None:
    typer.echo(escaped(line))


def _tell_json(line: str) -> None:
    """A line that is JSON already as it is."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    print(json.dumps(found if isinstance(found, dict) else {"line": line}), flush=True)


class LogFile:
    """Of a role that may be writing to it, or none. To be closed."""

    def __init__(self, path: Path) -> None:
        """Raises PreflightError."""
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except FileNotFoundError as error:
            where = "" if path.is_absolute() else ", as seen from this folder"
            raise PreflightError(
                f"there is no log {path}{where}",
                hint="the role makes it at its first start; an absolute logging.file is found from anywhere",
            ) from error
        except OSError as error:
            raise PreflightError(
                f"cannot read the log {path}: {error.strerror}", hint="run this as the user that runs the role"
            ) from error
        self._rest = b""

    def close(self) -> None:
        self._file.close()

    def newest(self, count: int, *, whole: bool = False) -> list[str]:
        """Up to `count` lines, the newest last; with `whole` without one that is still being written. `follow` goes on behind them."""
        lines, end = _last_lines(self._file, count, whole=whole)
        seen = {_inode(self._file)}
        for before in self._put_aside():
            if len(lines) >= count:
                break
            with suppress(OSError), before.open("rb") as file:
                if _inode(file) not in seen:
                    seen.add(_inode(file))
                    lines = _last_lines(file, count - len(lines))[0] + lines
        self._file.seek(end)
        return [_text(line) for line in lines]

    def follow(self, tell: Callable[[str], None], ending: Event, clock: Clock = SYSTEM) -> None:
        """Tells each line that comes, until `ending`."""
        while True:
            self._read(tell)
            after = self._after()
            if after is not None:
                self._read(tell)  # what came before it was put aside
                self._end_line(tell)
                self._file.close()
                self._file = after
            elif clock.wait(ending, _LOOK_SECONDS):
                return

    def _put_aside(self) -> list[Path]:
        """FILE.1, FILE.2, …: the newest first."""
        found: list[Path] = []
        while (path := self.path.with_name(f"{self.path.name}.{len(found) + 1}")).exists():
            found.append(path)
        return found

    def _after(self) -> BinaryIO | None:
        """The file that was begun after the one that is read, where that was put aside."""
        own, files = _inode(self._file), [self.path, *self._put_aside()]
        number = _place(own, files)
        if number == 0:
            return None
        newer = files[number - 1]  # of one that is kept no longer the oldest that is
        with suppress(FileNotFoundError):
            found = newer.open("rb")
            if _place(own, [self.path, *self._put_aside()]) == number:
                return found
            found.close()  # it was put aside meanwhile, too
        return None

    def _read(self, tell: Callable[[str], None]) -> None:
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)  # it was emptied
        while block := self._file.read(_BLOCK):
            *lines, self._rest = (self._rest + block).split(b"\n")
            for line in lines:
                tell(_text(line))
            if len(self._rest) > _LINE_BYTES_MAX:
                self._end_line(tell)

    def _end_line(self, tell: Callable[[str], None]) -> None:
        if self._rest:
            tell(_text(self._rest))
            self._rest = b""


def _inode(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino


def _place(inode: tuple[int, int], files: list[Path]) -> int:
    """Of a file among `files`; behind them where it is none of them."""
    for place, path in enumerate(files):
        with suppress(OSError):
            found = path.stat()
            if (found.st_dev, found.st_ino) == inode:
                return place
    return len(files)


def _last_lines(file: BinaryIO, count: int, *, whole: bool = False) -> tuple[list[bytes], int]:
    """Up to `count` of its last lines, and where they end; with `whole` without a last one that has no end."""
    start, ends, blocks = file.seek(0, os.SEEK_END), 0, list[bytes]()
    while start and ends <= count:
        start -= (step := min(_BLOCK, start))
        file.seek(start)
        blocks.append(file.read(step))
        ends += blocks[-1].count(b"\n")
    data = b"".join(reversed(blocks))
    end = start + len(data)
    if whole:
        kept = data.rfind(b"\n") + 1
        data, end = data[:kept], end - (len(data) - kept)
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines[max(0, len(lines) - count) :], end


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
