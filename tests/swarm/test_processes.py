"""Children of the scripts: no signal is lost while one is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from swarm.processes import ROOT, Process

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


def test_a_module_beside_whoever_starts_a_swarm_is_none_of_its_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "protocol.py").write_text("raise SystemExit('imported from the folder of a caller')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    process = Process("role", [sys.executable, "-m", "protocol", "--help"], tmp_path / "role.log")
    assert process.wait(60) == 0, process.tail()
