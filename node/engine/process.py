"""A process that computes for its parent, as the parent sees it: messages go in and come out, and its end is told for what it is.

Covers: a fresh interpreter (never a fork: CUDA and threads do not outlive one), what it is not given of the environment, the pipe, a
deadline on every read and write, the difference between a device that was out of memory, a process that was killed and one that hangs.
Where it may, a process that computes is alive though it says nothing. What the other end does: serving.py. Does not cover: what the
messages say, which is vllm_process.py's and separate_engine.py's, and starting again, which is the engines'.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from node.engine import memory

_SAID_BYTES = 4_000
"""Of the end of what the process has printed: what is looked at."""
_EXHAUSTED = ("MemoryError", "OutOfMemoryError", "std::bad_alloc", "Free memory on device", "Available memory on node")
"""What Python, torch, C++ and vLLM at its start say of it."""
_COMPUTES = 0.01
"""Of a core: a process that uses less of it than this has stopped computing."""
_END_SECONDS = 30.0
"""Between the end of its pipe and its own."""
_RANK_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_KEPT_BACK = ("MURMUR_PASSWORD", *_RANK_OF_TORCHRUN)
"""Of the environment: a secret, and what would make the process one of torchrun's ranks."""
_KILLS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Where the kernel counts processes that it killed for memory: of this container, or else of the machine."""


class Lost(Exception):
    """The process ended, was silent for too long, or cannot go on."""

    def __init__(self, message: str, *, is_memory: bool = False) -> None:
        super().__init__(message)
        self.is_memory = is_memory
        """Whether the device, or the machine, had no memory left."""


class Hangs(Lost):
    """It gave no sign of life in time."""


class Process:
    """Used from one thread, but for `kill`."""

    def __init__(
        self, module: str, environment: Mapping[str, str], silent_seconds: float, busy_seconds: float = 0
    ) -> None:
        """Starts `python -m module`, whose main is serving.py's `run`, and waits for nothing.

        `environment`: what it gets of it is all but a password and a place among torchrun's ranks. `silent_seconds`: without a sign of
        life so long, it counts as hanging. `busy_seconds`: the same where it has used the CPU all the while, if that is longer.
        """
        self._silent_seconds, self._busy_seconds = silent_seconds, busy_seconds
        self._kills = _kills()
        ours, theirs = Pipe()
        _limit(ours, silent_seconds)
        self._pipe: Connection = ours
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        # -P: modules of the folder that the role was started in are none of ours.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(os.getpid()), str(theirs.fileno())],
            env={name: value for name, value in environment.items() if not _is_kept_back(name)},
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, start_new_session=True,
        )  # fmt: skip
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Without taking note of it: until somebody does, nobody else gets its number."""
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def write(self, message: bytes) -> None:
        """Raises Lost, and Hangs where it takes nothing in."""
        try:
            self._pipe.send_bytes(message)
        except BlockingIOError as error:
            raise Hangs(f"it hangs: it takes nothing in for {self._silent_seconds:.0f} s") from error
        except OSError as error:
            raise self.lost() from error

    def read(self, seconds: float | None = None) -> bytes:
        """One message. Raises Lost, and Hangs where it gives no sign of life for so many seconds (else its `silent_seconds`)."""
        seconds = self._silent_seconds if seconds is None else seconds
        until = time.monotonic() + max(seconds, self._busy_seconds)
        computed = self._computed()
        try:
            while not self._pipe.poll(seconds):
                before, computed = computed, self._computed()
                if computed - before < _COMPUTES * seconds:
                    raise Hangs(f"it hangs: no sign of life for {seconds:.0f} s")
                if time.monotonic() >= until:
                    raise Hangs(f"it hangs: it computes without a word for {max(seconds, self._busy_seconds):.0f} s")
            return self._pipe.recv_bytes()
        except BlockingIOError as error:
            raise Hangs(f"it hangs: half an answer for {self._silent_seconds:.0f} s") from error
        except (EOFError, OSError) as error:
            raise self.lost() from error

    def kill(self) -> None:
        """Ends the process and whatever it started in its session. From any thread: whoever waits for it gets Lost then."""
        if self._process.returncode is None:  # or else its number may be somebody else's by now
            self._kill()

    def end(self) -> None:
        """`kill`, and lets go of what there was of it."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):  # what a driver holds longer is left to it
            self._process.wait(_END_SECONDS)
        self._pipe.close()
        self._said.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def lost(self) -> Lost:
        """Why nothing more is to be heard of it."""
        is_news = self._process.returncode is None
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return Hangs("it hangs: it has left its pipe and does not end")
        if is_news:
            self._kill()  # what it has started: nobody else has its number yet
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - _SAID_BYTES))
        lines = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip()[:300] if lines else "it said nothing"
        if code == -signal.SIGKILL and _kills() > self._kills:
            return Lost("the kernel killed its process, for the machine had no memory left", is_memory=True)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return Lost(f"its process {how}: {last}", is_memory=is_memory(last))

    def _computed(self) -> float:
        """Seconds of CPU that it has used; 0 where the system does not tell."""
        try:
            user, system = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        except (OSError, ValueError):
            return 0.0
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _is_kept_back(variable: str) -> bool:
    return variable in _KEPT_BACK or variable.startswith("TORCHELASTIC_")


def is_memory(said: str) -> bool:
    """Whether somebody says there that memory was used up."""
    return any(name in said for name in _EXHAUSTED) or memory.exhausted(RuntimeError(said)) is not None


def _limit(pipe: Connection, seconds: float) -> None:
    """No single read from it or write to it waits any longer: it raises BlockingIOError."""
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, which, struct.pack("@ll", math.ceil(seconds), 0))


def _kills() -> int:
    """How many processes the kernel has killed for memory; 0 where it does not tell."""
    for path in _KILLS:
        try:
            words = path.read_text().split()
        except OSError:
            continue
        if "oom_kill" in words:
            return int(words[words.index("oom_kill") + 1])
    return 0
