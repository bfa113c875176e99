"""The watchdog: a phase that outlasts its deadline ends the process, loudly, with the stacks of all threads.

A trainer that hangs costs more than one that has to be resumed. Two clocks watch: a thread of ours, which can say what
hangs; and faulthandler's timer in C, re-armed by that thread, which fires even where some library holds the interpreter's
lock. `kill -USR1` dumps the stacks without ending anything.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from protocol.errors import DeadlineExceeded
from trainer.telemetry.phases import Phase, Phases

log = logging.getLogger("trainer")

_LOOK_SECONDS = 1.0
_MARGIN_SECONDS = 15.0  # that the C timer gives our own thread


class Watchdog:
    """Use as a context manager around everything that has phases."""

    def __init__(
        self, phases: Phases, stacks: Path, tell: Callable[[Phase], None], *, again: str = "murmur trainer resume"
    ) -> None:
        """`stacks`: file that dumps are appended to; `tell` is called with the phase that overran, before the end; `again`: the
        command that goes on, for the message."""
        self._phases = phases
        self._stacks = stacks
        self._tell = tell
        self._again = again
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._stacks.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._stacks.open("a")
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        faulthandler.cancel_dump_traceback_later()
        self._file.close()

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            urgent = self._phases.most_urgent()
            if urgent is None:
                faulthandler.cancel_dump_traceback_later()
                continue
            left, phase = urgent
            if left <= 0:
                self._end(phase)
            faulthandler.dump_traceback_later(left + _MARGIN_SECONDS, exit=True, file=self._file)

    def _end(self, phase: Phase) -> None:
        """Never returns, whatever fails on the way."""
        try:
            faulthandler.dump_traceback_later(
                _MARGIN_SECONDS, exit=True, file=self._file
            )  # should telling hang as well
            log.critical(
                "%s took longer than its %g s; ending. Stacks are in %s. Then: %s",
                phase.name, phase.deadline, self._stacks, self._again,
            )  # fmt: skip
            self._file.write(f"\n{phase.name} took longer than its {phase.deadline:g} s\n")
            self._file.flush()
            faulthandler.dump_traceback(self._file, all_threads=True)
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            self._tell(phase)
        finally:
            os._exit(DeadlineExceeded.exit_code)
