"""Ending a running role by SIGTERM or Ctrl-C: at once, wherever it waits or computes.

A role may be cut off like that because it may be killed like that: what it must not forget is on disk before it acts on it.
What is better finished first (work that is committed must reach the hub in time) stands in `Ending.finish_first`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Ended(BaseException):
    """Not an Exception: no supervisor may take it for a failure and go on."""


class SignalEvent(threading.Event):
    """May be set by a signal, also while this very thread has its lock for a moment, to wait: another event would wait for itself, for good."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = threading.Condition(threading.RLock())


class Ending(SignalEvent):
    """Set when the role is to end."""

    def __init__(self, notice: str = "") -> None:
        """`notice` is for who sent the signal, where something is finished first."""
        super().__init__()
        self._notice = notice
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
        if self._notice:
            os.write(
                2, f"{self._notice}\n".encode()
            )  # a signal may have come within sys.stderr, which is not entered twice


_AGAIN = signal.SIGURG
"""Sent to itself: ignored by default, so that one which comes too late, while the block cleans up, ends nothing."""
_AGAIN_SECONDS = 0.01


@contextmanager
def until_signalled(notice: str = "") -> Iterator[Ending]:
    """Runs the block until it ends or a signal comes, whichever is first; the event is set by the signal. In the main thread.
    `notice` is printed where a signal comes while something is finished first.

    Raising inside the block ends it wherever it is. Where Python drops the exception (a finaliser, a callback of the garbage
    collector), the process signals itself until it is not dropped. A second signal, while the block cleans up, ends the process.
    """
    ending = Ending(notice)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, _AGAIN)}
    hook = sys.unraisablehook
    main = threading.get_ident()
    lost, over = threading.Event(), threading.Event()
    is_noting = False

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def install() -> None:
        for number in before:
            signal.signal(number, end)

    def end(*_: object) -> None:
        if is_noting:
            return  # what is raised in the hook is lost, and it signals itself in a moment
        try:
            ending.signal()
        except _Ended:
            restore()
            lost.clear()
            raise

    def dropped(what: sys.UnraisableHookArgs) -> None:
        nonlocal is_noting
        if not issubclass(what.exc_type, _Ended):
            hook(what)
        elif threading.get_ident() == main:
            is_noting = True
            install()
            lost.set()
            is_noting = False

    def insist() -> None:
        while lost.wait() and not over.is_set():
            time.sleep(_AGAIN_SECONDS)
            if lost.is_set():
                signal.pthread_kill(main, _AGAIN)

    install()
    sys.unraisablehook = dropped
    insisting = threading.Thread(target=insist, daemon=True, name="signals")
    insisting.start()
    try:
        yield ending
    except _Ended:
        pass
    finally:
        restore()
        sys.unraisablehook = hook
        over.set()
        lost.set()
        insisting.join()
        gc.freeze()  # or the interpreter's last collection walks through all of torch: seconds on a loaded machine
