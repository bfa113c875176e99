"""Ctrl-C and SIGTERM of a program that starts many others: the first one ends what it does, and none disturbs its stopping.

Imports nothing of ours, so that it is there before anything that takes time. scripts/demo holds SIGINT back until then (`env --block-signal`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

    def _on_signal(self, *_: object) -> None:
        self.came = True
        if self._is_raising:
            self._raise()
        else:
            self.hasten()

    def _raise(self) -> None:
        self._is_raising = False
        raise KeyboardInterrupt

    def _on_unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """Python drops what is raised in a finaliser: it is raised again in a moment."""
        if what.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(what)
        elif threading.get_ident() == self._main:
            self._is_raising = True
            threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()
