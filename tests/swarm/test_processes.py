"""Children of the scripts: no signal is lost while one is started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from swarm.processes import ROOT

_STARTED_UNDER_FIRE = """
import os, signal
from swarm.processes import spawn

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
signal.signal(signal.SIGTERM, interrupt)
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.{number}))
try:
    spawn(["sleep", "600"])
except KeyboardInterrupt:
    print("interrupted; the child ended with", os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_during_a_start_is_not_lost_and_ends_the_child(number: str) -> None:
    """Python calls hooks in the parent after a fork, and drops what is raised in them."""
    done = subprocess.run(
        [sys.executable, "-c", _STARTED_UNDER_FIRE.format(number=number)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "interrupted; the child ended with -9\n", done.stderr
