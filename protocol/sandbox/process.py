"""A child process that answers requests within deadlines, and is started again when it dies.

Time is held here, the rest by what the child gives up (confinement.py), as far as this machine's kernel goes. The child has a
process group of its own and ends with it: by its deadline, by `close`, and with the thread that holds it. Does not cover:
what this account may read; run services under an account of their own where that matters.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from protocol.constants import REPLY_CHARS_MAX
from protocol.environments.environment import Grants
from protocol.environments.programs import WALL
from protocol.errors import (
    ConfigError,
    DeadlineExceeded,
    HashMismatch,
    Interrupted,
    Malformed,
    PreflightError,
    Unavailable,
    UnknownVersion,
    VersionMismatch,
)
from protocol.folders import TASKS_VARIABLE, tasks_folder
from protocol.runspec import EnvironmentSpec
from protocol.sandbox import programs_wire, wire
from protocol.sandbox.confinement import ANSWER_CPU_SECONDS, Kernel, hide
from protocol.sandbox.programs import Runner, survey
from protocol.sandbox.readiness import READABLE, WRITABLE, is_ready

log = logging.getLogger(__name__)

MOST = Grants(memory=32 << 30, seconds=600.0, files=1024)
"""What an environment may be granted at the most."""
_FILES = 64  # open at once
_ANSWER_BYTES = 1 << 20  # of arrays, granted to any answer
_STARTING_S = 60.0  # for what takes milliseconds
_OPENING_S = 120.0  # packages are imported then, from a busy disk perhaps, and nothing of a stranger's is looked at
_ANSWER_S = WALL * ANSWER_CPU_SECONDS
"""For one answer by itself: its CPU time is bounded, so the clock only ends what waits."""
_ENDING_S = 5.0  # for a child to end that has closed its output, which takes milliseconds
_OF_LIBRARIES = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_IO_THREADS": "1", "MPLCONFIGDIR": "/nonexistent",
    "PYDANTIC_DISABLE_PLUGINS": "__all__",  # else every installed package is asked whether it brings one
}  # fmt: skip
"""Environment variables of the child."""
_OF_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends the child and comes from outside it: the kernel for want of memory, whoever stops a service."""
_OF_THIS_THREAD = 0x20000000  # __WNOTHREAD of waitpid(2)
_LOOK_HERE = "its child is a process of this machine: look there for what ends or holds it (memory, a seccomp profile)"
_OF_FILES = {UnknownVersion.__name__: UnknownVersion}
_OWN = {kind.__name__: kind for kind in (ConfigError, VersionMismatch, HashMismatch, PreflightError)}


class ChildDied(Exception):
    """The child ended or fell silent in the middle of a request."""


class ChildEnded(ChildDied):
    """It closed its output: it has ended, or is about to."""


class ChildProcess:
    """The child of some environments; may be shared by threads. Use as a context manager."""

    _reads = False
    """Whether it reads rollout files as well."""

    def __init__(self, environments: Sequence[EnvironmentSpec], *, deadline: float, memory: int) -> None:
        """`deadline` in seconds per request, `memory` in bytes of the child's address space; environments may need more."""
        self._environments = [environment.model_dump(mode="json") for environment in environments]
        self._deadline = deadline
        self._memory = memory
        self._files = _FILES
        self._answer_bytes = _ANSWER_BYTES
        self._process: subprocess.Popen[bytes] | None = None
        self._holder: ThreadPoolExecutor | None = None
        self._runner: Runner | None = None
        self._lock = threading.Lock()
        self._answer_seconds = _ANSWER_S
        self.restarts = 0
        self._converses: list[bool] | None = None
        self._too_slow: list[str | None] = []

    @property
    def memory(self) -> int:
        """Bytes of address space that the child may have."""
        return self._memory

    def close(self) -> None:
        with self._lock:
            self._kill()

    def _ask(
        self, request: dict[str, Any], *, attempts: int = 2, of_a_stranger: bool = False
    ) -> tuple[dict[str, Any], wire.Arrays]:
        """`attempts` as a child that was about to die for its own reasons is no fault of the input.

        Raises Unavailable where the child fails, and Interrupted, which is one, where nothing that it was asked did that. What it says of its
        own machine (ConfigError and the like) is believed, but not where the request is about the file `of_a_stranger`: there it is
        Malformed, by its version perhaps.
        """
        with self._lock:
            for attempt in range(1, attempts + 1):
                try:
                    head, arrays = self._send(self._running(), request)
                    break
                except (ChildDied, wire.WireError, OSError) as error:
                    is_ending = isinstance(error, ChildEnded | BrokenPipeError)
                    ended_by = _ended_by(self._process, _ENDING_S if is_ending else 0.0)
                    self._kill()
                    self.restarts += 1
                    log.warning("sandbox child restarted: %s", error)
                    if attempt < attempts:
                        continue
                    if ended_by in _OF_OTHERS:
                        name = signal.Signals(ended_by).name
                        raise Interrupted(f"{name} ended the sandbox from outside", hint=_LOOK_HERE) from error
                    raise DeadlineExceeded(f"the sandbox failed: {error}", hint=_LOOK_HERE) from error
                except Unavailable as error:  # programs cannot be run here, and the child still waits for them
                    self._kill()
                    raise Interrupted(str(error), hint=error.hint) from error
                except BaseException:  # what it answers yet would be taken for the answer to the next request
                    self._kill()
                    raise
            if head.get("ok"):
                return head, arrays
            _raise(head, of_a_stranger=of_a_stranger)
            self._kill()  # what earlier inputs have left behind in it may be why
        raise Unavailable(f"sandbox: {_text(head, 'message')}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and _has_ended(self._process):
            self._kill()
            self.restarts += 1
        if self._process is None:
            process = self._start()
            head = self._open(process)
            if head.get("programs") is True:
                self._runner = self._runner or self._programs(head)
            if self._granted(head):
                self._kill()
                process = self._start()
                self._open(process)
        assert self._process is not None
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        """From a thread that lives as long as the child: Linux ends a child with the thread that started it."""
        _prepare()
        self._holder = ThreadPoolExecutor(1, "sandbox")
        self._process = self._holder.submit(self._popen).result(_STARTING_S)
        assert self._process.stdin
        os.set_blocking(self._process.stdin.fileno(), False)
        return self._process

    def _popen(self) -> subprocess.Popen[bytes]:
        kernel = Kernel.here()
        limits = (self._memory, self._files, os.getpid(), kernel.landlock, int(kernel.seccomp))
        command = [sys.executable, "-m", "protocol.sandbox.child", *map(str, limits)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._variables(),
            bufsize=0, start_new_session=True,
        )  # fmt: skip

    def _variables(self) -> dict[str, str]:
        """The child's environment variables."""
        passed = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR")}
        passed |= {TASKS_VARIABLE: str(tasks_folder())}
        return passed | _OF_LIBRARIES

    def _programs(self, head: dict[str, Any]) -> Runner:
        """Raises PreflightError where this machine cannot run strangers' programs, in the languages that the environments need."""
        try:
            survey.require()
            for interpreter in programs_wire.interpreters(head):
                survey.require_interpreter(interpreter)
        except PreflightError:
            self._kill()
            raise
        return Runner()

    def _open(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Has the child open the environments; what it answers."""
        head, _ = self._send(process, {"op": "open", "environments": self._environments, "reads": self._reads})
        if not head.get("ok"):
            self._kill()
            _raise(head, of_a_stranger=False)
            raise Unavailable(f"sandbox cannot open the environments: {_text(head, 'message')}")
        said, slow = head.get("converses"), head.get("too slow")
        if not (
            isinstance(said, list) and isinstance(slow, list) and len(said) == len(slow) == len(self._environments)
        ):
            raise Unavailable("the sandbox's answer makes no sense")
        self._converses = [one is True for one in said]
        self._too_slow = [one[:REPLY_CHARS_MAX] if isinstance(one, str) else None for one in slow]
        return head

    def _granted(self, head: dict[str, Any]) -> bool:
        """Takes over what the environments need beyond what was given; whether that is anything. Raises PreflightError."""
        try:
            memory, seconds, files = int(head["memory"]), float(head["seconds"]), int(head["files"])
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable("the sandbox's answer makes no sense") from error
        if not (memory <= MOST.memory and seconds <= MOST.seconds and files <= MOST.files):
            self._kill()
            raise PreflightError(
                f"an environment needs {memory >> 20} MiB, {seconds:g} s and {files} open files",
                hint=f"the sandbox grants {MOST.memory >> 20} MiB, {MOST.seconds:g} s and {MOST.files}",
            )
        more = memory > self._memory or files > self._files
        self._memory, self._files = max(memory, self._memory), max(files, self._files)
        self._deadline = max(seconds, self._deadline)
        return more

    def _send(self, process: subprocess.Popen[bytes], request: dict[str, Any]) -> tuple[dict[str, Any], wire.Arrays]:
        deadline = self._deadline
        if request["op"] == "open":
            deadline = max(_OPENING_S, deadline)
        elif _is_of_one(request):
            deadline = max(self._answer_seconds, deadline)
        self._write(process, wire.encode(request))
        allowed = 2 * len(request.get("items", ()))  # trials: two for each answer, at most, or one for each turn
        allowed += sum(len(turns) - first for _, turns, first, _ in request.get("asked", ()))
        while True:
            head, arrays = self._receive(process, deadline)
            if head.get("op") != "run":
                return head, arrays
            trials = programs_wire.parsed(head)
            allowed -= len(trials)
            if self._runner is None or allowed < 0:
                raise ChildDied("it asked for programs that nobody wants")
            self._write(process, programs_wire.answer(self._runner.run_all(trials)))

    def _write(self, process: subprocess.Popen[bytes], message: bytes) -> None:
        assert process.stdin
        until = time.monotonic() + self._deadline
        source = process.stdin.fileno()
        rest = memoryview(message)
        while rest:
            left = until - time.monotonic()
            if left <= 0 or not is_ready(source, WRITABLE, left):
                raise ChildDied(f"it took no request within {self._deadline:g} s")
            rest = rest[os.write(source, rest) :]

    def _receive(self, process: subprocess.Popen[bytes], deadline: float) -> tuple[dict[str, Any], wire.Arrays]:
        assert process.stdout
        until = time.monotonic() + deadline
        descriptor = process.stdout.fileno()

        def receive(count: int) -> bytearray:
            data = bytearray(count)  # filled in place: an answer is never held twice
            missing = memoryview(data)
            while missing:
                left = until - time.monotonic()
                if left <= 0 or not is_ready(descriptor, READABLE, left):
                    raise ChildDied(f"no answer within {deadline:g} s")
                count = os.readv(descriptor, [missing])
                if not count:
                    raise ChildEnded("it ended")
                missing = missing[count:]
            return data

        return wire.read(receive, cap=self._answer_bytes)

    def _kill(self) -> None:
        """Ends the child and all that it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._holder is not None:
                with suppress(TimeoutError):
                    self._holder.submit(_reap, self._process.pid).result(_STARTING_S)
            for stream in (self._process.stdin, self._process.stdout):
                if stream:
                    stream.close()
            self._process = None
        if self._holder is not None:
            self._holder.shutdown()
            self._holder = None


@cache
def _prepare() -> None:
    """Once for this process: hides it from the child where Landlock does not, and logs what this machine does not hold."""
    kernel = Kernel.here()
    if not kernel.landlock:
        hide()
    if kernel.missing:
        log.warning("environments of strangers may here: %s (docs/environments.md)", "; ".join(kernel.missing))


def _reap(group: int) -> None:
    """Takes note of the end of all that was made in this group as children of this process (`clone` with CLONE_PARENT, where no
    filter refuses it), or each would be a zombie until this process ends. Called on the thread that started the child: theirs
    as well, and no other child's, so that whoever started those finds them."""
    if sys.platform == "linux":
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-group, _OF_THIS_THREAD)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Without taking note of it: until somebody does, nothing else gets the number of the child and of its group."""
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return True


def _ended_by(process: subprocess.Popen[bytes] | None, patience: float) -> int:
    """The signal that has ended a child, of which nobody takes note here; 0 where it lives, or ended by itself."""
    until = time.monotonic() + patience
    while process is not None:
        if process.returncode is not None:
            return max(0, -process.returncode)
        with suppress(ChildProcessError):
            found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                return found.si_status if found.si_code == os.CLD_KILLED else 0
        if time.monotonic() >= until:
            break
        time.sleep(0.01)
    return 0


def _is_of_one(request: dict[str, Any]) -> bool:
    """One answer, or one turn."""
    match request:
        case {"op": "score", "items": [_]}:
            return True
        case {"op": "replies", "asked": [[_, turns, first, _]]}:
            return len(turns) - first == 1
    return False


def _raise(head: dict[str, Any], *, of_a_stranger: bool) -> None:
    """What the child blames; nothing where it blames nothing."""
    if head.get("kind") == "malformed":
        own = (_OF_FILES if of_a_stranger else _OWN).get(str(head.get("error")))
        if own is not None:
            raise own(_text(head, "message"), hint=_text(head, "hint"))
        raise Malformed(_text(head, "message"))


def _text(head: dict[str, Any], name: str) -> str:
    return str(head.get(name, ""))[:2000]
