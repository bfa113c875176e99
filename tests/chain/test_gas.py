"""What `scripts/bench gas` measures, and that every goal is met."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from swarm.processes import ROOT


@pytest.mark.chain
def test_the_gas_bench_runs_and_every_goal_is_met() -> None:
    command = [sys.executable, "-m", "benches", "gas", "--json"]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=True)
    bench = json.loads(done.stdout)
    assert bench["bench"] == "gas"
    rows = {row["name"]: row for row in bench["rows"]}
    promised = {name: row["goal"] for name, row in rows.items() if row["goal"] is not None}
    assert promised == {
        "submit, steady": 78_000, "submitMany(64), per submission": 30_000, "soft: challenge": 160_000, "soft: settle": 120_000,
        "hard: accuse and settle": 450_000, "vote": 100_000, "vote that decides (acquits)": 180_000,
        "claim, an operator's first": 80_000, "claim": 80_000, "join": 110_000, "publish and draw": 150_000,
    }  # fmt: skip
    assert {name: row["ours"] for name, row in rows.items() if row["met"] is False} == {}
    assert all(row["met"] is None for name, row in rows.items() if name not in promised)
    for row in rows.values():
        assert row["ours"] > 20_000, row
        assert row["ratio"] == (None if row["peer"] is None else row["peer"] / row["ours"])
