"""Logs of a running role: one line per event on stderr, as text or as JSON.

    12:00:00 INFO    validator [3f9a61c0d2e4]: accept, step 3.0 of 0x…        {"time": …, "level": …, "submission": …}

Every line about a submission carries the first 12 digits of its id, from wherever it is written: `about` says which it is,
for the block and the thread. What strangers wrote cannot forge a line: control characters are escaped, and a traceback's
lines are indented. Where a file is named, it is rotated by size.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

from pydantic import Field

from protocol.clock import SYSTEM, Clock
from protocol.errors import PreflightError
from protocol.settings import Settings

_NOISY = (
    "web3", "urllib3", "httpx", "httpcore", "asyncio", "uvicorn.access", "libp2p", "multiaddr", "filelock",
)  # fmt: skip
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")  # also what turns text around
_AGAIN_SECONDS = 3600.0  # after which what has stayed the same is written once more
_KEPT_MOST = 4096  # things of which it is known what was written last
_submission: ContextVar[str | None] = ContextVar("submission", default=None)


class LoggingSettings(Settings):
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object each."""
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The least grave that is written."""
    file: str | None = None
    """A file to write to instead of stderr, rotated by size. A run's hub has one beside it: run-hub.log for run.log; so have ranks but the first."""
    file_megabytes: int = Field(default=64, ge=1)
    """Size at which the file is put aside as FILE.1, the one before as FILE.2, and so on."""
    files_kept: int = Field(default=5, ge=1)
    """How many that were put aside are kept."""


@contextmanager
def about(submission: bytes) -> Iterator[None]:
    """Lines written within the block, on this thread, carry this submission's id."""
    token = _submission.set(short(submission))
    try:
        yield
    finally:
        _submission.reset(token)


def short(submission: bytes) -> str:
    """The first 12 hex digits of a submission's id: how it is named in logs."""
    return submission.hex()[:12]


class SaidOnce:
    """Writes of each thing only what is new: the same again within the hour goes to DEBUG."""

    def __init__(self, log: logging.Logger, clock: Clock = SYSTEM) -> None:
        self._log = log
        self._clock = clock
        self._said: OrderedDict[Hashable, tuple[str, float]] = OrderedDict()

    def say(self, level: int, key: Hashable, text: str, *, exc_info: bool = False) -> None:
        """`key`: what the text is about."""
        now, before = self._clock.monotonic(), self._said.get(key)
        if before is not None and before[0] == text and now - before[1] < _AGAIN_SECONDS:
            level = logging.DEBUG
        else:
            self._said[key] = text, now
            self._said.move_to_end(key)
            if len(self._said) > _KEPT_MOST:
                self._said.popitem(last=False)
        self._log.log(level, "%s", text, exc_info=exc_info)

    def over(self, key: Hashable) -> None:
        """It is not so any more: the next time is new."""
        self._said.pop(key, None)


def set_up_logging(settings: LoggingSettings = LoggingSettings()) -> None:
    """For the whole process, instead of what was set up before. Raises PreflightError where the file cannot be written."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if settings.file is not None:
        handler = _file(Path(settings.file), settings)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=settings.level, handlers=[handler], force=True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def only_warnings() -> None:
    """Logs of a command that does one thing and ends."""
    set_up_logging(LoggingSettings(level="WARNING"))


def _file(path: Path, settings: LoggingSettings) -> logging.Handler:
    from logging.handlers import RotatingFileHandler

    try:
        return RotatingFileHandler(path, maxBytes=settings.file_megabytes << 20, backupCount=settings.files_kept)
    except OSError as error:
        raise PreflightError(f"cannot write the log {path}: {error.strerror}", hint="set logging.file") from error


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        submission = _submission.get()
        name = record.name if submission is None else f"{record.name} [{submission}]"
        line = f"{self.formatTime(record, self.datefmt)} {record.levelname:<7} {name}: {escaped(record.getMessage())}"
        if record.exc_info:
            line += "".join(f"\n    {escaped(part)}" for part in self.formatException(record.exc_info).split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """Keys: time (UTC, ISO 8601), level, logger, message; submission and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03d}Z", "level": record.levelname, "logger": record.name,
            "message": record.getMessage(),
        }  # fmt: skip
        if (submission := _submission.get()) is not None:
            line["submission"] = submission
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def escaped(text: str) -> str:
    """`text` in one line, with every control character written out."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
