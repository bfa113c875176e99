"""What the trainer of a swarm waits for, from the metrics that it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benches.peers import ROOT
from protocol.errors import PreflightError

_DEMO_SECONDS_MAX = 900


def run_demo(folder: Path, steps: int) -> None:
    """A whole swarm of so many steps, with its files in `folder`. Raises RuntimeError where it fails."""
    command = [sys.executable, "-m", "swarm", "--steps", str(steps), "--no-gain", "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_DEMO_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the demo failed:\n{(done.stdout + done.stderr)[-3000:]}")


def shares(metrics: Path) -> dict[str, float]:
    """Each phase's share of the time between the first step's end and the last one's.

    Those beside the training thread ("publishing", "evaluating") are among them; the others add up to 1 at most. Raises
    PreflightError where there are no two steps to look at.
    """
    records = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
    steps = [record for record in records if "seconds" in record]
    if len(steps) < 2:
        raise PreflightError(f"{metrics} has no two steps", hint="name the folder of a demo that has trained")
    span = steps[-1]["time"] - steps[0]["time"]
    names = {name for record in steps[1:] for name in record["seconds"]}
    return {name: sum(record["seconds"].get(name, 0.0) for record in steps[1:]) / span for name in sorted(names)}
