"""Memory that was freed, handed back to the system. C's allocator keeps what it may need again: after a step hundreds of megabytes of
activations, beside which weights are published and rollouts made."""

from __future__ import annotations

import ctypes
from functools import cache


def give_back() -> None:
    """On Linux with glibc; elsewhere nothing happens."""
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    try:
        found: ctypes._NamedFuncPointer = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found
