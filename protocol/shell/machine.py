"""Recognises, among all that can be raised, what this machine refuses: a full disk, a file that may not be written.

Libraries wrap it in errors of their own (SQLite, Arrow, safetensors), so the text is looked at too.
"""

from __future__ import annotations

import errno
import os
import sqlite3

from protocol.errors import DiskFull, MurmurationError, PreflightError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_DISK = "the disk is full"
_FULL_TEXTS = tuple(os.strerror(number) for number in _FULL)
_SQLITE = {
    sqlite3.SQLITE_FULL: _FULL_DISK,
    sqlite3.SQLITE_READONLY: "a database may not be written",
    sqlite3.SQLITE_CANTOPEN: "a database cannot be opened",
    sqlite3.SQLITE_IOERR: "the disk does not read or write as it should",
    sqlite3.SQLITE_CORRUPT: "a database file is damaged",
    sqlite3.SQLITE_NOTADB: "a database file is damaged",
}
_HINTS = {
    _FULL_DISK: "free space; nothing that was finished is lost, and the same command goes on from there",
    "a database file is damaged": "move the .sqlite file away: it is filled again from the chain and the hub",
}


def trouble(error: BaseException) -> PreflightError | None:
    """`error` as a sentence about this machine; None when it is something else."""
    said = _said(error)
    kind = DiskFull if said == _FULL_DISK else PreflightError
    return None if said is None else kind(said, hint=_HINTS.get(said, "see that this user may write there"))


def full_disk(error: BaseException) -> DiskFull | None:
    """`error`, where all that it says is that a disk is full."""
    found = error if isinstance(error, MurmurationError) else trouble(error)
    return found if isinstance(found, DiskFull) else None


def _said(error: BaseException) -> str | None:
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return None if code is None else _SQLITE.get(code & 0xFF)  # the low byte of an extended code is the plain one
    if getattr(error, "errno", None) in _FULL or any(text in str(error) for text in _FULL_TEXTS):
        return _FULL_DISK
    if isinstance(error, PermissionError) and error.filename is not None:
        return f"{error.filename} may not be used: {error.strerror}"
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return f"{error.filename or 'the disk'} is read-only"
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return "too many files are open (raise the limit: ulimit -n)"
    return None
