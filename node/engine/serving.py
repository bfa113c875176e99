"""What a process of its own does that computes for its parent (process.py): one job at a time, and its end with the parent's.

    python -m MODULE PID FD        PID: the parent's; FD: its end of the pipe

A crash, a device out of memory or a kernel that hangs takes this process with it and not the role.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Thread

from protocol.resources import collect_seldom

BEAT_SECONDS = 1.0
"""Between two looks at the parent, and between two signs of life."""


class Server(ABC):
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def serve(self) -> None:
        """Until the parent is gone."""
        while True:
            try:
                message = self._pipe.recv_bytes()
            except (EOFError, OSError):
                return
            try:
                self._do(message)
            except Exception as error:  # noqa: BLE001  whatever a library raises: the parent decides what it means
                self._fail(error)

    @abstractmethod
    def _do(self, message: bytes) -> None:
        """One job, with its answers."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """Says why a job has no answer."""


def run(make: Callable[[Connection], Server]) -> None:
    """The main of such a module."""
    collect_seldom()
    Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    make(Connection(int(sys.argv[2]))).serve()


def _end_with(parent: int) -> None:
    """Ends this process once its parent is gone, whatever it does just then: it may be far from its pipe for minutes. (The kernel's own
    signal for it, PR_SET_PDEATHSIG, comes with the end of the thread that started the process, and jobs have threads of their own.)"""
    while os.getppid() == parent:
        time.sleep(BEAT_SECONDS)
    os._exit(1)
