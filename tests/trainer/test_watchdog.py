"""A phase that overruns ends the process with the stacks of all threads, even one that holds the interpreter's lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HANGS = """
import ctypes, sys, threading, time
from pathlib import Path
from trainer.telemetry import watchdog
from trainer.telemetry.phases import Phases

watchdog._LOOK_SECONDS, watchdog._MARGIN_SECONDS = 0.05, 0.5
folder, how = Path(sys.argv[1]), sys.argv[2]
phases = Phases()

def evaluating_for_ever():
    with phases("evaluating", 0.3):
        time.sleep(60)

def hang():
    if how == "with the lock":
        time.sleep(0.2)  # one look of the watchdog, which sets the timer
        ctypes.PyDLL(None).sleep(60)
    elif how == "in another thread":
        threading.Thread(target=evaluating_for_ever, daemon=True).start()
        time.sleep(60)
    elif how == "not":
        time.sleep(0.2)
    else:
        time.sleep(60)

with watchdog.Watchdog(phases, folder / "stacks.txt", lambda phase: (folder / "told").write_text(phase.name)):
    with phases("training", 30 if how == "in another thread" else 0.6):
        hang()
"""


def hang(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HANGS, folder, how], timeout=50, check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("how", "phase", "where"),
    [("asleep", "training", "in hang"), ("in another thread", "evaluating", "in evaluating_for_ever")],
)
def test_a_hang_ends_the_process_and_shows_where(tmp_path: Path, how: str, phase: str, where: str) -> None:
    ended = hang(tmp_path, how)
    assert ended.returncode == 1
    assert where in (tmp_path / "stacks.txt").read_text()
    assert where in ended.stderr
    assert (tmp_path / "told").read_text() == phase


def test_a_hang_that_holds_the_interpreters_lock_ends_the_process_too(tmp_path: Path) -> None:
    assert hang(tmp_path, "with the lock").returncode == 1
    assert "in hang" in (tmp_path / "stacks.txt").read_text()
    assert not (tmp_path / "told").exists()  # Python itself could say nothing any more


def test_what_ends_in_time_is_left_alone(tmp_path: Path) -> None:
    ended = hang(tmp_path, "not")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "stacks.txt").read_text() == ""
