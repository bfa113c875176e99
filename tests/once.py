"""What takes long to make and nobody changes is made by one of the test processes, and found by the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of that name, which `make` is given to fill before anybody finds it. Copy what a test may write to."""
    mine = factory.getbasetemp()
    folder = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / name
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            make(folder.with_suffix(".part"))
            folder.with_suffix(".part").rename(folder)
    return folder
