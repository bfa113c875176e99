"""A swarm whose samples have turns: workers ask a calculator, validators ask it again, and the trainer learns from it for two steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from swarm.ending import earned_units, finish_judging
from swarm.pace import Patience
from swarm.promises import is_late
from swarm.settings import SwarmSettings
from swarm.swarm import Swarm
from swarm.watch import Watch

from protocol.environments.calculator import TOOL, value
from protocol.rollout import RolloutFile, Sample
from protocol.sandbox import Sandbox
from protocol.settings import read_toml, write_toml
from protocol.shell import runfile
from protocol.verdict import Outcome
from tests.swarm.training import await_training
from tests.trainer import lesson

pytestmark = [pytest.mark.swarm, pytest.mark.chain, pytest.mark.long, pytest.mark.timeout(5400)]
STEPS = 2
SECONDS = 240
"""Of a free machine, for set-up and both steps."""


class ConversingSwarm(Swarm):
    """Two nodes, one validator and the calculator. `made`: folder of a policy that uses it now and then."""

    def __init__(self, folder: Path, made: Path) -> None:
        self._made = made
        spec = lesson.tables()["spec"]
        sampling = spec["sampling"] | {"groups_per_submission": 4}
        super().__init__(
            folder, SwarmSettings(steps=STEPS, honest=2, cheats=(), validators=1, environments=tuple(spec["environments"]), sampling=sampling)
        )  # fmt: skip

    def _write_run_file(self, *, trainer: str, contract: str, bootnode: str) -> None:
        super()._write_run_file(trainer=trainer, contract=contract, bootnode=bootnode)
        tables = read_toml(self.run_toml)
        tables["policy"] |= {"appeal": 0, "vote": 0, "co_signers": 0}
        tables["trainer"] |= {"groups_per_step": 8, "evaluate_every": 1}
        write_toml(self.run_toml, tables, "Conversations.")

    def _make_policy(self) -> None:
        shutil.copytree(self._made, self.folder / "policy")


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """One whose trainer has finished, and whose submissions are all judged."""
    began = lesson.begin(tmp_path_factory.mktemp("lesson"))
    began.sandbox.close()
    running = ConversingSwarm(tmp_path_factory.mktemp("conversing") / "swarm", began.start)
    patience = Patience(SECONDS)
    try:
        running.up(print)
        await_training(running, STEPS, patience)
        watch = Watch(running)
        finish_judging(running, watch, print, lambda: print(*watch.poll(), sep="\n"))
        yield running
    finally:
        running.down()


@pytest.fixture(scope="module")
def watch(swarm: Swarm) -> Watch:
    seen = Watch(swarm)
    seen.poll()
    return seen


@pytest.fixture(scope="module")
def files(swarm: Swarm, watch: Watch) -> dict[bytes, RolloutFile]:
    """What the nodes submitted, by the submission's id. What they were making when they were stopped is nobody's."""
    homes = {node.address: node.home for node in swarm.nodes}
    with Sandbox(runfile.read_spec(swarm.run_toml)) as sandbox:
        return {
            submission: sandbox.read(homes[s.node] / f"data/rollouts/{s.root.hex()}.parquet").file
            for submission, s in watch.seen.submitted.items()
        }


@pytest.fixture(scope="module")
def samples(files: dict[bytes, RolloutFile]) -> list[Sample]:
    return [sample for file in files.values() for sample in file.samples]


def test_workers_ask_the_calculator_and_write_down_what_it_said(samples: list[Sample]) -> None:
    calls = [call for sample in samples for call in sample.tool_calls]
    assert len(calls) > len(samples) / 8
    assert {call.tool for call in calls} == {TOOL}
    assert all(call.result == value(call.arguments) for call in calls)
    assert any(sample.task_reward == 1 and len(sample.turns) for sample in samples), "an answer after a reply is right"


def test_validators_accept_every_honest_conversation_and_generated_tokens_alone_are_paid(
    swarm: Swarm, watch: Watch, files: dict[bytes, RolloutFile]
) -> None:
    receipts = [receipt for of in watch.seen.receipts.values() for receipt in of]
    assert receipts
    assert [r.details for r in receipts if r.outcome != Outcome.ACCEPT and not is_late(r)] == []
    assert sum(r.details.sequences_checked for r in receipts) > 0
    assert {submission: s.units for submission, s in watch.seen.submitted.items()} == {
        submission: sum(len(sample.completion) for sample in file.samples) for submission, file in files.items()
    }
    accepted = [file for submission, file in files.items() if watch.seen.outcome(submission) == Outcome.ACCEPT]
    paid = sum(earned_units(watch, node) for node in swarm.nodes)
    assert paid == sum(file.units for file in accepted)
    assert paid < sum(len(sample.context) for file in accepted for sample in file.samples)


def test_the_trainer_learns_from_both_nodes_conversations(swarm: Swarm) -> None:
    lines = [json.loads(line) for line in (swarm.folder / "output/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == STEPS
    for step in steps:
        assert (step["skipped"], step["blamed"]) == (0, [])
        assert step["gradient_norm"] > 0
        assert step["behaviour_gap"] < 0.02, "the trainer computes what the nodes claim, replies in between"
    status = Watch(swarm).trainer
    assert set(status["data"]["trained_nodes"]) == {node.address for node in swarm.nodes}
    assert status["data"]["bad_files"] == status["data"]["bad_groups"] == 0
    assert len(status["evaluations"]) == STEPS + 1
    assert all(evaluation["by_environment"]["sums"] > 0.1 for evaluation in status["evaluations"])
    before, after = (
        load_file(swarm.folder / name / "model.safetensors") for name in ("policy", f"output/outgoing/{STEPS}")
    )
    assert any(not before[name].equal(after[name]) for name in before)
