"""The hub as the trainer's child process: started, watched, restarted, stopped with it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from protocol.clock import SYSTEM, Clock
from protocol.errors import DeadlineExceeded, LockHeld, MurmurationError, PreflightError
from protocol.retry import retry
from protocol.shell.home import Home, read_json
from trainer.config import Layout

log = logging.getLogger("trainer")

_RESTARTS_PER_HOUR = 5


class HubProcess:
    """`start` it within its context. The child also ends by itself when this process does (its stdin closes)."""

    def __init__(self, layout: Layout, password_file: Path | None, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._layout = layout
        self._password_file = password_file
        self._process: subprocess.Popen[bytes] | None = None
        self._started: list[float] = []
        self._is_awaited = False  # whether nobody was told its URL yet

    def __enter__(self) -> HubProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)

    def start(self, deadline: float = 60.0) -> None:
        """Starts the hub. Raises LockHeld when another one does not let go of its folder in time.

        One that a killed trainer left behind ends by itself, but may be publishing still.
        """
        retry(self._require_free, on=LockHeld, within=deadline, pause=0.1, clock=self._clock)
        self._start()

    def _require_free(self) -> None:
        with Home(self._layout.hub, "hub").lock():
            return

    def wait_for_url(self, deadline: float = 90.0) -> str:
        """The hub's local URL, once it serves. Raises what ended the hub, or DeadlineExceeded."""
        until = self._clock.monotonic() + deadline
        while self._clock.monotonic() < until:
            status = read_json(self._layout.hub_status)
            if status and self._process and status.get("pid") == self._process.pid and status.get("url"):
                self._is_awaited = False
                return str(status["url"])
            self._raise_if_ended()
            self._clock.sleep(0.05)
        raise DeadlineExceeded(f"the hub did not come up within {deadline:g} s", hint="see its messages above")

    def require_running(self) -> str | None:
        """Restarts a hub that has ended, and gives its URL, which may be another one now. Raises what ended it when it keeps
        ending, and DeadlineExceeded while it does not come up: ask again."""
        if self._process is None or (self._process.poll() is None and not self._is_awaited):
            return None
        while True:
            if self._process.poll() is not None:
                log.error("the hub ended with %s; restarting it", self._process.returncode)
                recent = [t for t in self._started if self._clock.monotonic() - t < 3600]
                if len(recent) >= _RESTARTS_PER_HOUR:
                    self._raise_if_ended()
                self._start()
            with suppress(_Ended):
                return self.wait_for_url()

    def _start(self) -> None:
        self._layout.hub.mkdir(parents=True, exist_ok=True)
        self._layout.hub_status.unlink(missing_ok=True)
        command = [sys.executable, "-m", "protocol", "trainer", "hub", "start", str(self._layout.file), "--with-parent"]
        if self._password_file is not None:
            command += ["--password-file", str(self._password_file)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self._started.append(self._clock.monotonic())
        self._is_awaited = True

    def _raise_if_ended(self) -> None:
        if self._process is not None and (code := self._process.poll()) is not None:
            raise _Ended(code)


class _Ended(PreflightError):
    """The hub ended by itself; its own message is on stderr already, and its exit code becomes ours."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the hub ended with exit code {code}", hint="its message is above")
        known = {kind.exit_code for kind in MurmurationError.__subclasses__()}
        self.exit_code = code if code in known else PreflightError.exit_code  # type: ignore[misc]
