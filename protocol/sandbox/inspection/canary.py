"""What no program may reach, and whether one did: a file, a process, a port of this machine, and a mark that is printed by who came through."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from protocol.sandbox.inspection import hostile_programs
from protocol.sandbox.readiness import READABLE, is_ready

_BYSTANDER = "import sys\nfor line in sys.stdin: sys.stdout.write(line); sys.stdout.flush()"
_ANSWER_S = 60.0  # for what takes milliseconds


class Canary:
    """Use as a context manager."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(16)
        self._open = ExitStack()
        self._asked = 0

    def __enter__(self) -> Canary:
        with ExitStack() as stack:  # closed here where something of it cannot be had
            self._folder = Path(tempfile.mkdtemp(prefix="murmur-canary-"))
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._link = Path(tempfile.gettempdir(), f"murmur-link-{self._folder.name[-8:]}")
            stack.callback(self._link.unlink, missing_ok=True)
            self._precious = self._folder / "precious"
            self._precious.write_text(self.mark)
            self._precious.chmod(0o600)
            self._streams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            self._streams.bind(("127.0.0.1", 0))
            self._streams.listen()
            self._letters = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            self._letters.bind(self._streams.getsockname())
            for listener in (self._streams, self._letters):
                listener.setblocking(False)
            self._bystander = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-S", "-c", _BYSTANDER], env={"MARK": self.mark}, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
            stack.callback(self._bystander.kill)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def programs(self) -> list[tuple[str, str]]:
        """Name and text of programs that try to reach it, and of others that attack."""
        port = self._streams.getsockname()[1]
        return [*hostile_programs.aimed_at(
            folder=str(self._folder), link=str(self._link), port=port, process=self._bystander.pid, mark=self.mark
        )]  # fmt: skip

    def harmed(self) -> Iterator[str]:
        """What was reached, so far as it shows."""
        held = [path.name for path in self._folder.iterdir()] == ["precious"]
        if not (held and self._precious.read_text() == self.mark and self._precious.stat().st_mode & 0o777 == 0o600):
            yield "a file was made or changed"
        if os.path.lexists(self._link):
            yield "a link was made"
        if any(_hears(listener) for listener in (self._streams, self._letters)):
            yield "a port was connected to"
        if not self._answers():
            yield "a process was ended or stopped"

    def _answers(self) -> bool:
        """A signal that was sent before it is asked comes before it answers. Each question has a number: what was not waited for is no answer
        to the next."""
        assert self._bystander.stdin and self._bystander.stdout
        self._asked += 1
        question, heard, source = b"%d\n" % self._asked, b"", self._bystander.stdout.fileno()
        try:
            os.write(self._bystander.stdin.fileno(), question)
        except BrokenPipeError:
            return False
        until = time.monotonic() + _ANSWER_S
        while question not in heard.splitlines(keepends=True):
            if not is_ready(source, READABLE, until - time.monotonic()) or not (more := os.read(source, 1 << 10)):
                return False
            heard += more
        return True


def _hears(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_STREAM:
            listener.accept()[0].close()
        else:
            listener.recv(1)
    except BlockingIOError:
        return False
    return True
