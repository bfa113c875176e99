"""What the swarm starts as a module of its own is there to be started."""

from __future__ import annotations

import subprocess
import sys

from swarm.processes import ROOT
from swarm.swarm import environment_of_modules


def test_the_cheats_can_be_started_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cheats.play", "--help"],
        env=environment_of_modules({}), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, "CHEAT=HOME" in done.stdout) == (0, True), done.stderr
