"""Child processes that never outlive their parent, whatever ends it.

Each child leads a process group of its own, so that stopping it stops what it started; on Linux the kernel also ends it
when this process dies without a word.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protocol.errors import DeadlineExceeded, PreflightError
from swarm.pace import Patience

ROOT = Path(__file__).resolve().parent.parent.parent
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if platform.system() == "Linux" else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], *, deadline: float, what: str, poll: float = 0.05) -> None:
    """Returns once `condition` holds; DeadlineExceeded after `deadline` seconds of a free machine."""
    patience = Patience(deadline)
    while not condition():
        if patience.ended():
            raise DeadlineExceeded(f"{what}: not within {patience}", hint=patience.hint)
        time.sleep(poll)


def foundry(tool: str) -> Path:
    """The real binary of a Foundry tool; the launchers npm puts into .bin would go through Node.js."""
    system = {"Linux": "linux", "Darwin": "darwin"}.get(platform.system(), "")
    machine = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}.get(
        platform.machine().lower(), ""
    )
    path = ROOT / f"contracts/node_modules/@foundry-rs/{tool}-{system}-{machine}/bin/{tool}"
    if not path.exists():
        raise PreflightError(f"{tool} is missing", hint="run scripts/setup")
    return path


class Process:
    """One running program; its output goes to a log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        detach: bool = False,
    ) -> None:
        """`detach`: stays when this process ends (devnet)."""
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            self._popen = spawn(
                command,
                detach=detach,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=ROOT,  # Python looks for modules in it first, and a caller's folder may have a `protocol` of its own
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    def require_running(self) -> None:
        """Raises PreflightError with the end of the log when the process has ended."""
        if self.exit_code is not None:
            raise PreflightError(f"{self.name} ended with {self.exit_code}:\n{self.tail()}", hint=f"see {self.log}")

    def tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)

    def stop(self, grace: float = 5.0) -> None:
        """Asks with SIGTERM, insists with SIGKILL after `grace` seconds."""
        stop_all([self], grace)

    def wait(self, timeout: float) -> int | None:
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None


def stop_all(processes: Sequence[Process], grace: float = 5.0) -> None:
    for process in processes:
        if process.exit_code is None:
            process.signal(signal.SIGTERM)
    until = time.monotonic() + grace
    for process in processes:
        process.wait(max(0.0, until - time.monotonic()))
        process.signal(signal.SIGKILL)  # also what it may have left behind in its group
        process.wait(2.0)


def command_line(pid: int) -> str:
    """What a process was started as; empty when there is none, or it has ended and only waits to be noticed."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        if Path("/proc").exists():
            return ""
    done = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def spawn(command: Sequence[str | Path], *, detach: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """Popen of a child that the kernel ends together with the thread that starts it, unless it is `detach`ed.

    A signal that comes meanwhile is taken when the child runs: Python drops the exceptions of the hooks that it calls around
    a fork (logging and random have some), and with them a Ctrl-C that is raised there.
    """
    with _signals_held() as came:
        child = subprocess.Popen(
            [str(part) for part in command],
            preexec_fn=None if detach else _die_with_parent,  # noqa: PLW1509  it makes one system call
            **options,
        )
    try:
        for number in came:
            signal.raise_signal(number)
    except BaseException:  # nobody else knows of the child
        child.kill()
        raise
    return child


@contextlib.contextmanager
def _signals_held() -> Iterator[list[int]]:
    """The signals that have come meanwhile; they have had no effect."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main thread only
        yield came
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
