"""The paper's presets, run: a whole swarm each on a scaled twin (twin.py), from rollouts in bfloat16 to the second published version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from swarm.pace import Patience
from swarm.processes import ROOT
from swarm.swarm import Swarm
from swarm.watch import Watch

from node.engine import EngineSettings
from node.judging.calibration import Matrix, calibration, measure
from node.judging.calibration.measure import Variant
from protocol.environments import TaskSet
from protocol.sandbox import EnvironmentSandbox
from protocol.settings import write_toml
from protocol.shell import runfile
from protocol.verdict import Outcome
from tests.swarm import twin
from tests.swarm.training import await_training
from trainer.learning import tensors
from trainer.learning.checkpoint import TENSORS
from trainer.learning.learner import MODEL

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.chain,
    pytest.mark.long,
    pytest.mark.timeout(7200),  # the swarm has deadlines of its own
]
SECONDS = 1_800
"""Of a free machine, for set-up and both steps. A processor that multiplies in bfloat16 needs 360; one without takes some eight minutes a step."""
PRESETS = ("intellect2-short", "intellect2-long")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Policy, tasks and a calibration in bfloat16, as a researcher makes them, for both twins."""
    folder = tmp_path_factory.mktemp("made")
    budgets = [budget for name in PRESETS for budget in twin.tables(name)["spec"]["reward"]["budgets"]["0"]]
    twin.write_model(folder / "policy", budgets)
    rows = twin.write_rows(folder / "rows.jsonl")
    write_toml(folder / "run.toml", twin.tables(PRESETS[0]), "Both twins' tasks and sampling.")
    _murmur("trainer", "tasks", folder / "tasks.parquet", rows)
    (folder / "calibration.json").write_text(json.dumps(_calibrated(folder)))
    return folder


@pytest.fixture(scope="module", params=PRESETS)
def swarm(made: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Swarm]:
    """One whose trainer has finished."""
    running = twin.TwinSwarm(tmp_path_factory.mktemp("twin") / "swarm", request.param, made)
    patience = Patience(SECONDS)
    try:
        running.up(print)
        await_training(running, twin.STEPS, patience)
        print(f"{request.param}: {patience.waited:.0f} s")
        yield running
    finally:
        running.down()


def records(swarm: Swarm) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (swarm.folder / "output/metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]


def test_both_steps_are_learnt_from_rollouts_of_every_node(swarm: Swarm) -> None:
    assert len(records(swarm)) == twin.STEPS
    for step, record in enumerate(records(swarm)):
        assert (record["skipped"], record["blamed"]) == (0, [])
        assert record["tokens"] > 10 * twin.BATCH * 16
        assert record["gradient_norm"] > 0
        assert record["log_ratio"] < 0.01
        assert record["kl"] == pytest.approx(0, abs=1e-4)
        assert record["learning_rate"] == pytest.approx(3e-7 * (step + 1) * 8 / 25)
    trained = Watch(swarm).trainer["data"]["trained_nodes"]
    assert set(trained) == {node.address for node in swarm.nodes}
    assert sum(trained.values()) == 2 * 256 // twin.BATCH


def test_what_nodes_claim_is_what_the_trainer_computes_but_for_rounding(swarm: Swarm) -> None:
    for record in records(swarm):
        assert 0 < record["behaviour_gap"] < 0.02


def test_honest_work_in_bfloat16_is_accepted_whatever_it_is(swarm: Swarm) -> None:
    watch = Watch(swarm)
    watch.poll()
    given = [receipt for receipts in watch.seen.receipts.values() for receipt in receipts]
    assert len(given) >= 2 * 256 // twin.BATCH // 4
    refused = [receipt.details for receipt in given if receipt.outcome != Outcome.ACCEPT]
    assert refused == []


def test_what_is_published_is_the_masters_rounded(swarm: Swarm) -> None:
    masters = tensors.read(swarm.folder / f"output/checkpoints/step_{twin.STEPS}" / TENSORS, MODEL)
    assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
    published = load_file(swarm.folder / f"output/outgoing/{twin.STEPS}/model.safetensors")
    before = load_file(swarm.folder / "policy/model.safetensors")
    assert published.keys() == masters.keys() == before.keys()
    for name, tensor in masters.items():
        assert torch.equal(tensor.to(torch.bfloat16), published[name]), name
    assert any(not torch.equal(published[name], before[name]) for name in before)


def _calibrated(folder: Path) -> dict[str, Any]:
    """As `murmur validator calibrate`, in two variants instead of twelve. Of four completions the limits would be too narrow: then one in
    fifty honest submissions was found soft, by signs."""
    environments, sampling = runfile.environments(folder / "run.toml"), runfile.sampling(folder / "run.toml")
    variants = (Variant("sdpa", 1, 16), Variant("eager", 1, 1))
    matrix = Matrix(
        [folder / "policy"], runfile.compute_dtype(folder / "run.toml"), sampling, problems=4, samples=8, variants=variants,
        engines=[EngineSettings(device="cpu", threads=1)],
    )  # fmt: skip
    with EnvironmentSandbox(environments) as sandbox:
        return calibration(matrix, measure(matrix, TaskSet(environments, sandbox)), [0])


def _murmur(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "protocol", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
