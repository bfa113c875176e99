"""Work beside the training: one job at a time, in order, each in a thread of its own, with a deadline.

Publishing and evaluating do not need the trainer to stand still. A job that failed raises where the next one is handed in,
or where its result is fetched, so that nothing fails unseen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from protocol.errors import DeadlineExceeded
from trainer.telemetry.phases import Phases

T = TypeVar("T")


class Job(Generic[T]):
    """Something that is being done; `result` waits for it."""

    def __init__(
        self, action: Callable[[], T], name: str, phases: Phases, deadline: float, *, fatal: bool = True
    ) -> None:
        self.name = name
        self._fatal = fatal
        self._action = action
        self._phases = phases
        self._deadline = deadline
        self._until = time.monotonic() + deadline
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._phases(self.name, self._deadline, fatal=self._fatal):
                self._value = self._action()
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            self._error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def left(self) -> float:
        """Seconds until its deadline, at least 0."""
        return max(0.0, self._until - time.monotonic())

    def result(self, deadline: float) -> T:
        """What the job returned; raises what it raised, or DeadlineExceeded."""
        self._thread.join(deadline)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"{self.name} is not done after its {self._deadline:g} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Line(Generic[T]):
    """Jobs of one kind, one after the other. Used from one thread."""

    def __init__(self, name: str, phases: Phases, deadline: float, *, fatal: bool = True) -> None:
        """`deadline` in seconds for each job; one that is `fatal` to overrun ends the process (phases.py)."""
        self._fatal = fatal
        self._name = name
        self._phases = phases
        self._deadline = deadline
        self._job: Job[T] | None = None

    @property
    def is_busy(self) -> bool:
        return self._job is not None and not self._job.is_done

    def start(self, action: Callable[[], T]) -> Job[T]:
        """Starts a job once the one before is done; raises what that one raised and nobody has fetched."""
        self.finish()
        self._job = Job(action, self._name, self._phases, self._deadline, fatal=self._fatal)
        return self._job

    def finish(self) -> T | None:
        """Waits for the job that runs and takes its result; None when there is none. Raises DeadlineExceeded, and keeps the job."""
        if self._job is None:
            return None
        if not self._job.is_done:
            with self._phases(f"waiting for {self._name}", self._deadline, fatal=self._fatal):
                self._job.result(self._job.left)
        return self.take()

    def take(self) -> T | None:
        """The result of a job that is done, once; None while there is none."""
        if self._job is None or not self._job.is_done:
            return None
        job, self._job = self._job, None
        return job.result(0)
