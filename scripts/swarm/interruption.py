"""Ctrl-C and SIGTERM of a program that starts many others: the first one ends what it does, and none disturbs its stopping.

Imports nothing of ours, so that it is there before anything that takes time. scripts/demo holds SIGINT back until then (`env --block-signal`).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 0.01


class Interruption:
    """For the main thread. Outside `ending` a signal raises nothing and is remembered."""

    def __init__(self) -> None:
        self.came = False
        self.hasten: Callable[[], None] = lambda: None
        self._is_raising = False
        self._main = threading.get_ident()

    def install(self) -> None:
        """From here on the signals come here, those that were held back too."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_again)
        sys.unraisablehook = self._on_unraisable
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Within the block the first signal raises KeyboardInterrupt, once; also one that came before."""
        self._is_raising = True
        try:
            if self.came:
                self._raise()
            yield
        finally:
            self._is_raising = False

    def calm(self, hasten: Callable[[], None]) -> None:
        """From here on nothing is raised, until the process has ended: it stops by itself, and a signal makes it quicker."""
        self._is_raising, self.hasten = False, hasten

    def end(self) -> None:
        """From here on nothing is heard: Python gives signals back to the system as it ends, and the next one would be its exit status."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        self.came = True
        if self._is_raising:
            self._raise(frame)
        else:
            self.hasten()

    def _on_again(self, _: int, frame: FrameType | None) -> None:
        if self._is_raising:
            self._raise(frame)

    def _raise(self, frame: FrameType | None = None) -> None:
        """Not while the hook below runs, for what is raised there is dropped for good."""
        if self._is_in_the_hook(frame):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            return
        self._is_raising = False
        raise KeyboardInterrupt

    def _is_in_the_hook(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code is Interruption._on_unraisable.__code__:
                return True
            frame = frame.f_back
        return False

    def _on_unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """Python drops what is raised in a finaliser: it is raised again in a moment, by a timer of the system, for a thread takes locks to start."""
        if what.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(what)
        elif threading.get_ident() == self._main:
            self._is_raising = True
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
