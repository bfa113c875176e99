"""A signal ends a role at once, but for what is to be finished first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from protocol.shell.signals import until_signalled


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.05)  # Python handles it between two of its instructions


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_block_where_it_is(number: int) -> None:
    reached = []
    before = signal.getsignal(number)
    with until_signalled() as ending:
        send(number)
        reached.append("behind the signal")
    assert not reached
    assert ending.is_set()
    assert signal.getsignal(number) is before


def test_a_signal_that_comes_as_the_main_thread_begins_to_wait_for_it_ends_the_block() -> None:
    """Each wait has the event's lock for a moment, which setting the event takes as well. In a process of its own: it hung for good."""
    program = """
import os, signal
from protocol.shell.signals import until_signalled

with until_signalled() as ending:
    with ending._cond:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        print("behind the signal")
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "ended\n"


def test_what_is_to_be_finished_is_finished() -> None:
    reached = []
    with until_signalled() as ending:
        with ending.finish_first(), ending.finish_first():
            send()
            reached.append("committed")
        reached.append("something else")
    assert reached == ["committed"]


def test_a_failure_while_it_finishes_does_not_hide_the_signal() -> None:
    with until_signalled() as ending, ending.finish_first():
        send()
        raise OSError("the hub is gone")


def test_a_second_signal_does_not_wait() -> None:
    reached = []
    with until_signalled() as ending, ending.finish_first():
        send()
        reached.append("first")
        send()
        reached.append("second")
    assert reached == ["first"]


def test_failures_without_a_signal_stay_failures() -> None:
    with pytest.raises(OSError, match="gone"), until_signalled() as ending, ending.finish_first():
        raise OSError("the hub is gone")


class _Finalised:
    """Python drops whatever is raised in a finaliser."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send

    def __del__(self) -> None:
        self._send()


@pytest.mark.parametrize("times", [1, 3])
def test_a_signal_that_comes_in_a_finaliser_still_ends_the_block(times: int) -> None:
    finalised = 0
    with until_signalled() as ending:
        for _ in range(times):
            _Finalised(send)
            finalised += 1
        threading.Event().wait(30)
        pytest.fail("the signal was lost")
    assert ending.is_set()
    assert finalised >= 1, "it came while the finaliser ran"


SENT_AGAIN_TOO_LATE = """
import os, signal, time
from protocol.shell.signals import until_signalled

class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

with until_signalled():
    try:
        Finalised()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    finally:
        time.sleep(0.2)
        print("cleaned up")
"""


def test_one_that_is_sent_again_too_late_does_not_end_the_process_while_it_cleans_up() -> None:
    done = subprocess.run([sys.executable, "-c", SENT_AGAIN_TOO_LATE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "cleaned up\n"), done.stderr


def test_what_else_is_dropped_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(what.exc_type))

    def fail() -> None:
        raise OSError

    with until_signalled():
        _Finalised(fail)
    assert told == [OSError]
