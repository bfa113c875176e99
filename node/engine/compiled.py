"""Loops that are compiled when they are first imported: what a CPU does in many small steps, for which torch has no operation.

Numba compiles for the processor at hand, in some two seconds for all of them, and keeps the result beside the modules or in the user's
cache, in a folder that is named by what was compiled: another version never finds it. A module of such loops is imported where it is used, and
imports no torch: `--help` has no time for either.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import ParamSpec, TypeVar

from numba import config, njit
from platformdirs import user_cache_path

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_settings = Lock()  # Numba's are the process's, and modules may be imported by two threads at once
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Function = Callable[_Arguments, _Result]


def compiled(*signatures: str) -> Callable[[_Function[_Arguments, _Result]], _Function[_Arguments, _Result]]:
    """Compiles a function for arguments of these types, as Numba writes them; it runs without the interpreter's lock."""

    def compile_one(function: _Function[_Arguments, _Result]) -> _Function[_Arguments, _Result]:
        made: _Function[_Arguments, _Result]
        try:
            with _kept_in(folder()):
                made = njit([*signatures], cache=True, nogil=True)(function)
        except Exception as error:  # noqa: BLE001  nowhere to write, a full disk, or a damaged file, which raises anything
            log.debug("%s is compiled anew: %r", function.__name__, error)
            shutil.rmtree(folder(), ignore_errors=True)
            made = njit([*signatures], nogil=True)(function)
        return made

    return compile_one


@cache
def folder() -> Path:
    """Where what is compiled is kept."""
    sources = [_HERE / "noise.py", *sorted(_HERE.glob("compiled*.py"))]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    beside = _HERE / "__pycache__"
    return (beside if os.access(beside, os.W_OK) else user_cache_path("murmuration")) / f"compiled-{digest[:16]}"


@contextmanager
def _kept_in(place: Path) -> Iterator[None]:
    with _settings:
        before, config.CACHE_DIR = config.CACHE_DIR, str(place)
        try:
            yield
        finally:
            config.CACHE_DIR = before
