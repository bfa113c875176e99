"""A run of one process whose groups always teach something, on the policy that all tests share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from swarm.tiny_run import TinyRun, run_tables

from protocol.settings import write_toml


@pytest.fixture
def run_file(tiny_run: TinyRun, tmp_path: Path) -> Path:
    """run.toml with the policy beside it. Lengths are rewarded, and the learning rate is such that one step shows."""
    tables = run_tables()
    tables["spec"]["sampling"]["max_new_tokens"] = 12
    tables["spec"]["reward"] = {"alpha": "0.01", "budgets": {"0": [4, 8]}}
    tables["spec"]["verification"]["uncalibrated"] = []
    tables["spec"]["environments"] = [{**e, "held_out_size": 8} for e in tables["spec"]["environments"]]
    tables["trainer"] |= {
        "online_filter": "reward", "groups_per_step": 4, "optimizer_steps": 1, "pack_tokens": 128, "rows_per_forward": 16, "kl": {"weight": 0},
        "optimizer": {"lr": 0.001, "warmup_steps": 0},
    }  # fmt: skip
    folder = tmp_path / "run"
    shutil.copytree(tiny_run.model, folder / "policy")
    write_toml(folder / "run.toml", tables, "A run of one process.")
    return folder / "run.toml"
