"""A folder that appears under its name whole or not at all, whatever ends the process or fills the disk meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from protocol.errors import PreflightError

_WRITING = ".writing-"


@contextmanager
def whole(final: Path, what: str) -> Iterator[Path]:
    """Yields an empty folder; when the block ends well, all of it is on disk and has become `final` by one rename.

    Raises PreflightError ("cannot write {what}: …") for whatever the disk refuses; nothing of it is left behind then.
    """
    partial = final.with_name(_WRITING + final.name)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield partial
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        _sync(final.parent)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        reason = getattr(error, "strerror", None) or error
        raise PreflightError(f"cannot write {what}: {reason}", hint="free some space") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Removes what a process that died left half-written; for the only writer in `parent`."""
    for left in parent.glob(_WRITING + "*"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
