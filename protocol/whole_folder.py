"""A folder that appears under its name whole or not at all, whatever ends the process or fills the disk meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from protocol.errors import PreflightError

WRITING = ".writing-"
"""Begins the name of a folder until it is whole."""
_ELSEWHERE = "name a folder that can be written to"
_HINTS = {code: _ELSEWHERE for code in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)}


@contextmanager
def whole(final: Path, what: str) -> Iterator[Path]:
    """Yields an empty folder; when the block ends well, all of it is on disk and has become `final` by one rename.

    Raises PreflightError ("cannot write {what}: …") for whatever the disk refuses; nothing of it is left behind then.
    """
    partial = final.with_name(WRITING + final.name)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        _sync(final.parent)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        raise _refused(what, error, partial) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _refused(what: str, error: OSError | SafetensorError, partial: Path) -> PreflightError:
    """Names the file that the disk refused, where it is none of ours."""
    reason, named = getattr(error, "strerror", None) or error, getattr(error, "filename", None)
    elsewhere = isinstance(named, str) and not Path(named).is_relative_to(partial)
    where = f" ({named})" if elsewhere else ""
    hint = _HINTS.get(getattr(error, "errno", None) or 0, "free some space")
    return PreflightError(f"cannot write {what}: {reason}{where}", hint=hint)


def sweep(parent: Path) -> None:
    """Removes what a process that died left half-written; for the only writer in `parent`."""
    for left in parent.glob(WRITING + "*"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
