"""Ctrl-C at a real terminal: the demo ends with 130 and a sentence, whatever it is doing, and never with a traceback."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from swarm.processes import ROOT

from tests.clock import eventually

pytestmark = pytest.mark.swarm
PROGRAM = """
import sys, time
from swarm.interruption import Interruption
interruption = Interruption()
interruption.install()
{}
"""
CTRL_C = b"\x03"


class Terminal:
    """A program at a terminal of its own, and everything it has shown there."""

    def __init__(self, command: list[str], rows: int = 24, columns: int = 80) -> None:
        self.shown = b""
        self._ours, theirs = pty.openpty()
        self._theirs = theirs
        self.resize(rows, columns, None)
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}", "TERM": "xterm"}
        for name in ("COLUMNS", "LINES", "PYTEST_CURRENT_TEST"):
            environment.pop(name, None)

        def at_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT, preexec_fn=at_the_terminal
        )

    def resize(self, rows: int, columns: int, process: subprocess.Popen[bytes] | None) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if process is not None:
            process.send_signal(signal.SIGWINCH)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def read(self, seconds: float = 0.02) -> bytes:
        while select.select([self._ours], [], [], seconds)[0]:
            self.shown += os.read(self._ours, 65536)
            seconds = 0.0
        return self.shown

    def until(self, condition: Callable[[], object], within: float = 60, what: str = "the condition") -> None:
        eventually(lambda: self.read() is None or condition(), within=within, what=what)

    def ended(self, within: float = 30) -> int:
        self.until(lambda: self.process.poll() is not None, within, "the end")
        self.read()
        return int(self.process.returncode)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def terminal(*command: str, rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
    made = Terminal([sys.executable, *command], rows, columns)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def demo(folder: Path) -> Iterator[Terminal]:
    held = Terminal(
        ["env", "--block-signal=INT", sys.executable, "-m", "swarm", "--folder", str(folder), "--steps", "2"]
    )
    try:
        yield held
    finally:
        held.close()


def is_held(pid: int) -> bool:
    """Whether SIGINT is blocked in a process, or caught already."""
    words = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool((int(words["SigBlk"], 16) | int(words["SigCgt"], 16)) >> (signal.SIGINT - 1) & 1)


def running(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and "-m swarm " not in line:
            found.append(line)
    return found


def body(text: str) -> str:
    return PROGRAM.format(text)


def test_a_signal_ends_the_block_once_and_no_other_disturbs_what_comes_after() -> None:
    program = body("""
hastened = []
try:
    with interruption.ending():
        print("in", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    interruption.calm(lambda: hastened.append(1))
    print("out", flush=True)
    while not hastened:
        time.sleep(0.01)
    print("done", flush=True)
sys.exit(3)
""")
    with terminal("-c", program) as at:
        at.until(lambda: b"in" in at.shown)
        at.type(CTRL_C)
        at.until(lambda: b"out" in at.shown)
        at.type(CTRL_C)
        assert at.ended() == 3
        assert b"done" in at.shown and b"Traceback" not in at.shown


@pytest.mark.parametrize("busy", [0, 0.1], ids=["at once", "while the machine is busy"])
def test_a_signal_that_python_drops_in_a_finaliser_is_raised_all_the_same(busy: float) -> None:
    """Also where the next one comes before Python has told of the one it dropped."""
    program = body(f"""
import os, signal, threading
start, set_timer = threading.Thread.start, signal.setitimer
waits = [{busy}]
def late(call, *arguments):
    call(*arguments)
    until = time.monotonic() + (waits.pop() if waits else 0)
    while time.monotonic() < until: pass
threading.Thread.start = lambda thread: late(start, thread)
signal.setitimer = lambda *arguments: late(set_timer, *arguments)
class Thing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
try:
    with interruption.ending():
        Thing()
        time.sleep(60)
except KeyboardInterrupt:
    interruption.calm(lambda: None)
    sys.exit(3)
""")
    with terminal("-c", program) as at:
        assert at.ended() == 3
        assert b"KeyboardInterrupt" not in at.shown


def test_a_signal_while_python_ends_is_not_heard() -> None:
    program = body("""
import os, signal
class Last:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGINT):
        kill(me, number)
last = Last()
interruption.end()
sys.exit(3)
""")
    with terminal("-c", program) as at:
        assert at.ended() == 3


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc, and wants the env of GNU")
def test_ctrl_c_while_python_starts_is_heard_when_the_demo_listens(tmp_path: Path) -> None:
    with demo(tmp_path / "swarm") as at:
        at.until(lambda: is_held(at.process.pid), what="SIGINT is held back")
        at.type(CTRL_C)
        assert at.ended() == 130
        assert at.shown.replace(b"^C", b"").strip() == b"interrupted"
    assert not (tmp_path / "swarm").exists()


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
def test_ctrl_c_during_set_up_and_again_while_it_stops(tmp_path: Path) -> None:
    folder = tmp_path / "swarm"
    with demo(folder) as at:
        at.until(lambda: b"deploying" in at.shown, what="a set-up that has begun")
        at.resize(15, 40, at.process)
        at.type(CTRL_C)
        at.until(lambda: b"stopping everything" in at.shown, what="it stops")
        at.type(CTRL_C)
        assert at.ended() == 130
        assert b"Traceback" not in at.shown
        assert b"KeyboardInterrupt" not in at.shown
        assert at.shown.rindex(b"\x1b[?1049l") > at.shown.rindex(b"\x1b[?1049h"), "the terminal is as it was"
        assert at.shown.rindex(b"\x1b[?25h") > at.shown.rindex(b"\x1b[?25l"), "and has its cursor"
    eventually(lambda: not running(folder), within=10, what="the end of every process")


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
@pytest.mark.parametrize("seconds", [0.2, 0.4, 0.6, 0.8, 1, 1.3, 1.6, 3, 8, 20, 45])
def test_ctrl_c_at_any_moment_shows_no_traceback(tmp_path: Path, seconds: float) -> None:
    folder = tmp_path / "swarm"
    with demo(folder) as at:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            at.read()
        at.type(CTRL_C)
        assert at.ended(60) == 130
        assert b"Traceback" not in at.shown, at.shown.decode(errors="replace")[-3000:]
    eventually(lambda: not running(folder), within=10, what="the end of every process")
