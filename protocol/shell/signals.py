"""Ending a running role by SIGTERM or Ctrl-C: at once, wherever it waits or computes.

A role may be cut off like that because it may be killed like that: what it must not forget is on disk before it acts on it.
What is better finished first (work that is committed must reach the hub in time) stands in `Ending.finish_first`.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Ended(BaseException):
    """Not an Exception: no supervisor may take it for a failure and go on."""


class Ending(threading.Event):
    """Set when the role is to end."""

    def __init__(self) -> None:
        super().__init__()
        self._signalled = False
        self._unfinished = 0

    @contextmanager
    def finish_first(self) -> Iterator[None]:
        """In the main thread: a signal ends the role after the block, a second one within it."""
        self._unfinished += 1
        try:
            yield
        finally:
            self._unfinished -= 1
            if self._signalled and not self._unfinished:
                raise _Ended

    def signal(self) -> None:
        """Ends the role: raises out of `until_signalled`'s block, unless something has to be finished first."""
        patient = self._unfinished and not self._signalled
        self._signalled = True
        self.set()
        if not patient:
            raise _Ended


@contextmanager
def until_signalled() -> Iterator[Ending]:
    """Runs the block until it ends or a signal comes, whichever is first; the event is set by the signal.

    Raising inside the block ends it wherever it is; the event is for where an exception gets lost (a finaliser). A second
    signal, while the block cleans up, ends the process.
    """
    ending = Ending()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(*_: object) -> None:
        try:
            ending.signal()
        except _Ended:
            restore()
            raise

    for number in before:
        signal.signal(number, end)
    try:
        yield ending
    except _Ended:
        pass
    finally:
        restore()
        gc.freeze()  # or the interpreter's last collection walks through all of torch: seconds on a loaded machine
