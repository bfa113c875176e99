"""`--watch`: printed anew until Ctrl-C, on a terminal of any size, whatever the chain does meanwhile."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from fcntl import ioctl
from threading import Event
from typing import Any

import pytest
from swarm.pace import Patience

from protocol.errors import RpcUnavailable, UsageError
from protocol.shell.repeating import fitting, repeat
from tests.cli.conftest import Contributor
from tests.clock import VirtualClock


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 3), (1, 1)])
def test_it_fits_any_terminal(width: int, height: int) -> None:
    lines = fitting([f"line {number} " + "x" * 100 for number in range(50)], "as of 12:00:00", width, height)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= max(3, height)
    if height >= 10:
        assert "more lines" in lines[-3]
        assert lines[-1].startswith("as of")


def test_without_a_terminal_it_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="draws on a terminal") as error:
        repeat(dict, print, as_json=False)
    assert "--json" in error.value.hint


def test_as_json_it_is_an_object_a_line_and_goes_on_when_the_chain_does_not_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock, stop, looks = VirtualClock(), Event(), iter([{"step": 1}, None, {"step": 2}])

    def look() -> Any:
        found = next(looks, "over")
        if found == "over":
            stop.set()
            return {}
        if found is None:
            raise RpcUnavailable("no endpoint answers")
        return found

    repeat(look, print, as_json=True, clock=clock, stop=stop)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[:3] == [{"step": 1}, {"error": "no endpoint answers"}, {"step": 2}]
    assert set(clock.waits) == {15.0}


def test_the_status_of_a_node_is_watched_in_a_terminal_until_ctrl_c(contributor: Contributor) -> None:
    command = [sys.executable, "-m", "protocol", "node", "status", "--watch", "--home", str(contributor.path)]
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    seen, patience = b"", Patience(60)
    try:
        while b"Ctrl-C ends" not in seen and not patience.ended():
            seen += os.read(master, 4096)
        assert b"next: node stake" in seen
        process.send_signal(signal.SIGINT)
        while process.poll() is None and not patience.ended():
            time.sleep(0.05)
            os.set_blocking(master, False)
            with suppress(OSError):
                seen += os.read(master, 4096)
        assert process.returncode == 0, seen.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert b"Traceback" not in seen
    assert b"\x1b[?1049l" in seen, "the terminal is as it was"
