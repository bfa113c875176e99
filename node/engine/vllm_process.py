"""The process that vLLM runs in, as its parent sees it: jobs go in, answers come out, and its end is told for what it is.

Covers: the pipe, deadlines by signs of life, the difference between a device that was out of memory, a process that was killed
and one that hangs. On a CPU a process that computes is alive though it says nothing: a slow or busy machine is no hang. What the other end does: vllm_server.py. Does not cover: starting again, which is vllm_engine.py's.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from node.engine import memory
from protocol.errors import IntegrityError

NOT_NUMBERS = "NotNumbers"
"""Name of an error that comes out: hidden states hold NaN or infinity."""
_SAID_BYTES = 4_000
"""Of the end of what the process has printed: what is looked at."""
_EXHAUSTED = ("MemoryError", "OutOfMemoryError", "std::bad_alloc", "Free memory on device", "Available memory on node")
"""What Python, torch, C++ and vLLM at its start say of it."""
_COMPUTES = 0.01
"""Of a core: a process that uses less of it than this has stopped computing."""
_END_SECONDS = 30.0
"""Between the end of its pipe and its own."""
_KILLS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Where the kernel counts processes that it killed for memory: of this container, or else of the machine."""


class Lost(Exception):
    """The process ended, was silent for too long, or cannot go on."""

    def __init__(self, message: str, *, is_memory: bool = False) -> None:
        super().__init__(message)
        self.is_memory = is_memory
        """Whether the device, or the machine, had no memory left."""


class Process:
    def __init__(self, environment: Mapping[str, str], silent_seconds: float, busy_seconds: float = 0) -> None:
        """`silent_seconds`: without a sign of life so long, it counts as hanging. `busy_seconds`: the same where it has used the CPU
        all the while, if that is longer."""
        self._silent_seconds, self._busy_seconds = silent_seconds, busy_seconds
        self._kills = _kills()
        ours, theirs = Pipe()
        _limit(ours, silent_seconds)
        self._pipe: Connection = ours
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "node.engine.vllm_server", str(theirs.fileno())], env=environment,
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, start_new_session=True,
        )  # fmt: skip
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, job: str, *, seconds: float | None = None, **arguments: Any) -> dict[str, Any]:
        """A job with one answer, within so many seconds where it gives no sign of life meanwhile. Raises Lost."""
        self._send(job, arguments)
        return self._answer(seconds or self._silent_seconds)[0]

    def run(self, job: str, **arguments: Any) -> Iterator[tuple[dict[str, Any], bytes]]:
        """A job with many answers: each, and the bytes that come with it. Raises Lost; ValueError where the weights compute no
        numbers."""
        self._send(job, arguments)
        while True:
            answer, data = self._answer(self._silent_seconds)
            if "done" in answer:
                return
            yield answer, data

    def score(self, hidden_TH: Tensor, tokens: list[int], key: int, sampling: dict[str, Any]) -> bytes:
        """Raises Lost; IntegrityError where the logits are no numbers."""
        dtype = str(hidden_TH.dtype).removeprefix("torch.")
        self._send("score", dict(shape=list(hidden_TH.shape), dtype=dtype, tokens=tokens, key=key, sampling=sampling))
        self._write(hidden_TH.view(torch.uint8).numpy().tobytes())
        self._answer(self._silent_seconds)
        return self._read(self._silent_seconds)

    def end(self) -> None:
        """Ends the process and whatever it started."""
        if self._process.returncode is None:  # or else its number may be somebody else's by now
            self._kill()
            self._process.wait()
        self._pipe.close()
        self._said.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, job: str, arguments: dict[str, Any]) -> None:
        self._write(json.dumps({"job": job, **arguments}).encode())

    def _write(self, data: bytes) -> None:
        try:
            self._pipe.send_bytes(data)
        except BlockingIOError as error:
            raise Lost(f"it hangs: it takes nothing in for {self._silent_seconds:.0f} s") from error
        except OSError as error:
            raise self._lost() from error

    def _answer(self, seconds: float) -> tuple[dict[str, Any], bytes]:
        while True:
            answer: dict[str, Any] = json.loads(self._read(seconds))
            if "alive" in answer:
                continue
            if "error" in answer:
                raise _as_error(answer["error"], answer["message"])
            return answer, self._read(seconds) if "shape" in answer else b""

    def _read(self, seconds: float) -> bytes:
        until = time.monotonic() + max(seconds, self._busy_seconds)
        computed = self._computed()
        try:
            while not self._pipe.poll(seconds):
                before, computed = computed, self._computed()
                if computed - before < _COMPUTES * seconds:
                    raise Lost(f"it hangs: no sign of life for {seconds:.0f} s")
                if time.monotonic() >= until:
                    raise Lost(f"it hangs: it computes without a word for {max(seconds, self._busy_seconds):.0f} s")
            return self._pipe.recv_bytes()
        except BlockingIOError as error:
            raise Lost(f"it hangs: half an answer for {self._silent_seconds:.0f} s") from error
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def _computed(self) -> float:
        """Seconds of CPU that it has used; 0 where the system does not tell."""
        try:
            user, system = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        except (OSError, ValueError):
            return 0.0
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _lost(self) -> Lost:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return Lost("it hangs: it has left its pipe and does not end")
        self._kill()  # what it has started: nobody else has its number yet
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - _SAID_BYTES))
        lines = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip()[:300] if lines else "it said nothing"
        if code == -signal.SIGKILL and _kills() > self._kills:
            return Lost("the kernel killed its process, for the machine had no memory left", is_memory=True)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return Lost(f"its process {how}: {last}", is_memory=_is_memory(last))


def _as_error(name: str, message: str) -> Exception:
    """What the other end says it failed of."""
    if name == IntegrityError.__name__:
        return IntegrityError(message)
    if name == NOT_NUMBERS:
        return ValueError(message)
    return Lost(f"{name}: {message}", is_memory=_is_memory(f"{name}: {message}"))


def _is_memory(said: str) -> bool:
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
