"""Ending a running role by SIGTERM or Ctrl-C: at once, wherever it waits or computes.

A role may be cut off like that because it may be killed like that: what it must not forget is on disk before it acts on it.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Ended(BaseException):
    """Not an Exception: no supervisor may take it for a failure and go on."""


@contextmanager
def until_signalled() -> Iterator[threading.Event]:
    """Runs the block until it ends or a signal comes, whichever is first; the event is set by the signal.

    Raising inside the block ends it wherever it is; the event is for where an exception gets lost (a finaliser). A second
    signal, while the block cleans up, ends the process.
    """
    ending = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(*_: object) -> None:
        ending.set()
        restore()
        raise _Ended

    for number in before:
        signal.signal(number, end)
    try:
        yield ending
    except _Ended:
        pass
    finally:
        restore()
        gc.freeze()  # or the interpreter's last collection walks through all of torch: seconds on a loaded machine
