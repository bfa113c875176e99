"""The whole trainer as its own processes, killed and resumed, with a chain and honest peers around it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from swarm.anvil import Anvil
from swarm.processes import ROOT, Process, wait_until
from swarm.world import World

from protocol.identity import save_keystore
from protocol.settings import write_toml
from protocol.shell.home import read_json
from tests.trainer import small
from tests.trainer.conftest import Made
from tests.trainer.peers import Peers
from trainer.config import Layout, load_run
from trainer.learning import tensors
from trainer.learning.checkpoint import TENSORS, verify
from trainer.learning.learner import MODEL

PASSWORD = "play money only"
STEPS, CHECKPOINT_EVERY = 6, 4


@dataclass
class Run:
    world: World
    layout: Layout
    folder: Path

    def murmur(self, *arguments: str) -> Process:
        command = [ROOT / ".venv/bin/python", "-m", "protocol", "trainer", *arguments, f"@{self.layout.file}"]
        environment = {
            "MURMUR_PASSWORD": PASSWORD, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        return Process(arguments[0], command, self.folder / f"{arguments[0]}.log", env=environment)

    def published(self) -> int:
        return self.world.chain.published(self.world.run)

    def manifests(self) -> list[bytes]:
        return [self.world.chain.publication(self.world.run, step).manifest for step in range(self.published())]

    def status(self) -> dict[str, Any]:
        return read_json(self.layout.status) or {}

    def hub(self) -> dict[str, Any]:
        return read_json(self.layout.hub_status) or {}

    def wait(self, process: Process, condition: Any, what: str) -> None:
        def holds() -> bool:
            process.require_running()
            return bool(condition())

        wait_until(
            holds, deadline=150, what=what
        )  # two whole starts of Python and torch, on a machine that may be busy


@pytest.fixture
def run(anvil: Anvil, made: Made, tmp_path: Path) -> Run:
    world = World.fresh(anvil, made.spec.digest)
    shutil.copytree(made.folder, tmp_path / "policy")
    (tmp_path / "spec.json").write_bytes(made.spec.canonical())
    save_keystore(world.trainer.key, tmp_path / "trainer.json", PASSWORD, chain_id=31337)
    tables = {
        "chain": {
            "rpc": anvil.rpc, "contract": world.chain.runs.address, "chain_id": 31337, "run": world.run, "poll_seconds": 0.05,
        },
        "peers": {"listen": "/ip4/127.0.0.1/tcp/0"},
        "spec": made.tables["spec"],
        "trainer": {
            "steps": STEPS, "groups_per_step": 2, "optimizer_steps": 2, "pack_tokens": 64, "rows_per_forward": 8,
            "online_filter": "reward",  # no group's rewards are all equal
            "evaluate_every": 100, "checkpoint_every": CHECKPOINT_EVERY, "rollout_wait_seconds": 60,
            "optimizer": {"lr": 2e-5, "warmup_steps": 1},  # more, on rollouts of a lost life, and no group has unequal rewards
        },
        "hub": {"host": "127.0.0.1", "port": 0, "origin_port": 0},
    }  # fmt: skip
    file = tmp_path / "run.toml"
    write_toml(file, tables, "A run that will be killed.")
    return Run(world, Layout(file, load_run(file).value), tmp_path)


@contextmanager
def peers(run: Run, made: Made) -> Iterator[Peers]:
    with Peers(run.world, made.spec, run.layout, run.folder / "rollouts") as working:
        yield working
    assert working.failures == []


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]


def bf16(folder: Path) -> dict[str, torch.Tensor]:
    stored = tensors.read(folder / TENSORS, MODEL)
    return {name: tensor.to(torch.bfloat16) for name, tensor in stored.items()}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_killed_trainer_goes_on_and_publishes_no_step_twice(run: Run, made: Made) -> None:
    first, stack = run.murmur("run"), ExitStack()
    try:
        run.wait(first, lambda: run.status().get("state") == "waiting for a node to take a seat", "it waits for a seat")
        assert run.published() == 0
        node = stack.enter_context(peers(run, made)).node.address
        # Beyond its newest checkpoint, which is that of step 0: what was trained since then will be lost.
        run.wait(first, lambda: run.published() >= 3, "three versions are out")
        os.kill(first.pid, signal.SIGKILL)  # the trainer alone; its hub has to notice
        first.wait(10)
        wait_until(lambda: not _alive(run.hub()["pid"]), deadline=30, what="its hub has ended too")
        before = run.manifests()
        checkpoint = run.folder / "checkpoint"
        shutil.copytree(run.layout.checkpoints / "step_0", checkpoint)

        second = run.murmur("run")  # whoever starts it again need not know that it had begun
        run.wait(second, lambda: run.published() > len(before), "a version of the second life is out")
        hub = run.hub()
        os.kill(hub["pid"], signal.SIGKILL)  # its next life has another port
        run.wait(second, lambda: run.status().get("state") == "finished", "the last step is done")
        run.wait(second, lambda: run.published() == STEPS + 1, "the last version is out")
        assert run.hub()["url"] != hub["url"]
        second.signal(signal.SIGTERM)
        assert second.wait(30) == 0, second.tail(40)
    finally:
        first.stop()
        stack.close()

    manifests = run.manifests()
    assert manifests[: len(before)] == before
    log = (run.folder / "run.log").read_text()
    assert "Traceback" not in log
    # Version 0 stands for the checkpoint that was resumed; what follows was trained from it, step by step.
    final = verify(run.layout.checkpoints / f"step_{STEPS}")
    assert final["spec"] == run.world.spec_digest.hex()
    assert small.equal(bf16(run.layout.checkpoints / f"step_{STEPS}"), small.stored(run.layout.outgoing / str(STEPS)))
    again = next(step for step in range(len(before), STEPS + 1) if (run.layout.outgoing / str(step)).exists())
    assert small.equal(small.stored(run.layout.outgoing / str(again)), bf16(checkpoint))
    lines = [json.loads(line) for line in run.layout.metrics.read_text().splitlines()]
    metrics = [line for line in lines if "loss" in line]  # evaluations have lines of their own
    assert [entry["step"] for entry in metrics[-2:]] == [STEPS - 2, STEPS - 1]
    assert run.status()["data"]["bad_receipts"] == run.status()["data"]["bad_files"] == 0
    assert set(run.status()["data"]["trained_nodes"]) == {node}
