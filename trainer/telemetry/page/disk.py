"""What of a training lies on the disk: checkpoints, and versions on their way to the hub.

Digests are not computed for a page: a checkpoint appears under its name with all its files or not at all, and one whose files do not
match their digests is passed over when the trainer resumes. So `whole` says here that every file is there that digests.json names.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from protocol.chain.view import View
from protocol.whole_folder import WRITING
from trainer.config import Outputs
from trainer.learning.checkpoint import DIGESTS

VERSIONS = 8
"""Published ones that are shown."""
_CHECKPOINTS_MAX = 60
_NAME = "step_"


def checkpoints(layout: Outputs, *, keep_every: int) -> dict[str, Any]:
    """All that are there, newest first, and the step of one that is being written.

    `stays`: retention never removes it.
    """
    steps = _numbers(layout.checkpoints, _NAME)
    found = [_checkpoint(layout.checkpoints / f"{_NAME}{step}", step) for step in steps[:_CHECKPOINTS_MAX]]
    for one in found:
        one["stays"] = bool(keep_every) and one["step"] % keep_every == 0
    return {
        "rows": found,
        "total": len(steps),
        "writing": next(iter(_numbers(layout.checkpoints, f"{WRITING}{_NAME}")), None),
    }


def outgoing(layout: Outputs) -> dict[str, Any]:
    """Versions that lie ready, newest first, and the one that is being written."""
    writing = next(iter(_numbers(layout.outgoing, WRITING)), None)
    return {"ready": _numbers(layout.outgoing, "")[:VERSIONS], "writing": writing}


def published(book: View | None) -> dict[str, Any]:
    """The newest versions on the chain, newest first, with block times; `now` is the newest block's. None where nothing is known."""
    head = None if book is None else book.head
    newest = None if book is None else book.newest_publication()
    if book is None or newest is None:
        return {"now": head.time if head else None, "rows": []}
    steps = range(newest.data.step, max(-1, newest.data.step - VERSIONS), -1)
    events = [event for event in map(book.publication, steps) if event is not None]
    return {
        "now": head.time if head else None,
        "rows": [{"step": event.data.step, "at": book.block_time(event.block)} for event in events],
    }


def _checkpoint(folder: Path, step: int) -> dict[str, Any]:
    size, names, at = 0, set(), None
    with suppress(OSError):  # retention may remove it at any time
        at = folder.stat().st_mtime
        for path in folder.rglob("*"):
            size += path.stat().st_size if path.is_file() else 0
            names.add(path.relative_to(folder).as_posix())
    missing = _named(folder) - names if (folder / DIGESTS).exists() else None
    return {
        "step": step,
        "bytes": size,
        "at": at,
        "whole": missing == set(),
        "missing": None if missing is None else len(missing),
    }


def _named(folder: Path) -> set[str]:
    """The files that digests.json names; itself where it cannot be read, as one that is missing."""
    try:
        return set(json.loads((folder / DIGESTS).read_text()))
    except (OSError, ValueError, TypeError):
        return {f"{DIGESTS}, as JSON"}


def _numbers(folder: Path, before: str) -> list[int]:
    """Of the entries that are named so and then a number, highest first."""
    try:
        names = [path.name.removeprefix(before) for path in folder.iterdir() if path.name.startswith(before)]
    except OSError:
        return []
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)
