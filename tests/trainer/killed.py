"""A training run that can be killed anywhere, for test_killed.py: real learner, checkpoints and outbox on batches that are
functions of the step. Chain, hub and nodes are left out: what a resumed run does with those has tests of its own.

Children are forked from a server that has imported everything already, because importing torch would be most of the time.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from swarm.pace import Patience
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from protocol.errors import MurmurationError
from protocol.settings import write_toml
from protocol.shell.signals import Ending
from tests.hub.desk import small_spec
from tests.trainer import small
from trainer.config import Layout, load_run
from trainer.evaluation.evaluate import Evaluation
from trainer.hub.outbox import Outbox
from trainer.learning import base, randomness
from trainer.learning.checkpoint import Checkpoints
from trainer.learning.learner import Learner
from trainer.learning.optimizer import PartwiseAdamW
from trainer.learning.ranks import Ranks
from trainer.loop.followers import Lead
from trainer.loop.train import Trainer
from trainer.rollouts.counts import DataCounts
from trainer.rollouts.pool import TrainingGroup

STEPS = 4
AT = 2
"""The step whose version is being made when a run is killed."""
POINTS = [
    "before the optimizer", "between optimizer steps", "after the optimizer", "writing the checkpoint",
    "before the checkpoint's name", "between checkpoint and outbox", "writing the version", "before the version's name",
    "after the version's name", "writing the version while the next step trains",
]  # fmt: skip

PRELOADED = (AutoModelForCausalLM, Qwen3ForCausalLM)  # transformers imports its models at their first use


@cache
def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainer.killed"])
    with pytest.MonkeyPatch.context() as patch:
        # The server does not get our sys.path, and passes over what it cannot import.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


def train(folder: Path, model: Path, *, resume: bool, fault: str = "") -> int:
    """Runs or resumes training in a process of its own; returns its exit code."""
    process = _context().Process(target=_train, args=(folder, model, resume, fault))
    process.start()
    process.join(100)
    assert process.exitcode is not None
    return process.exitcode


def kill_after(folder: Path, model: Path, seconds: float, *, resume: bool) -> int:
    process = _context().Process(target=_train, args=(folder, model, resume, "slowly"))
    process.start()
    process.join(seconds)
    process.kill()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


class _Source:
    """Batches by step; two groups each."""

    def __init__(self) -> None:
        self.counts = DataCounts()
        self.trained_nodes: dict[str, int] = {}
        self.cursor: list[list[object]] = []
        self.usable, self.has_seats = 1.0, True

    def poll(self, wait: int) -> None:
        pass

    def restore(self, cursor: list[list[object]]) -> None:
        self.cursor = cursor

    def forget_before(self, step: int) -> None:
        pass

    def ready(self, step: int) -> int:
        return 0

    def settled(self, step: int) -> int:
        return 0

    def workforce(self, step: int) -> None:
        return None

    def take(self, step: int, count: int, *, uncapped: bool) -> list[TrainingGroup]:
        return [TrainingGroup(bytes([step, n]), 0, "0x", step, small.group(10 * step + n)) for n in range(2)]


def _train(folder: Path, model: Path, resume: bool, fault: str) -> None:
    sys.stderr = (folder / "log.txt").open("a")
    file = folder / "run.toml"
    write_toml(file, _tables(), "A run that will be killed.")
    settings = load_run(file).value
    layout = Layout(file, settings)
    layout.output.mkdir(exist_ok=True)
    if not layout.model.exists():
        layout.model.symlink_to(model)
    trainer: Any = Trainer(
        settings, layout, small_spec(), SimpleNamespace(require_running=lambda: None), Ending(), Ranks.alone()
    )
    trainer._open = lambda resume: _open(trainer, layout, model, resume)
    if fault:
        _plant(trainer, fault)
    try:
        trainer.run(resume=resume)
    except MurmurationError as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    os._exit(0)


def _tables() -> dict[str, Any]:
    return {
        "chain": {"contract": "0x" + "00" * 20, "chain_id": 1, "run": 1},
        "trainer": {
            "steps": STEPS, "groups_per_step": 2, "optimizer_steps": 2, "pack_tokens": 24, "rows_per_forward": 2,
            "checkpoint_every": 1, "evaluate_every": 2, "optimizer": {"lr": 1e-2, "warmup_steps": 3},
            "metrics": {"tensorboard": False},
        },
    }  # fmt: skip


def _open(trainer: Any, layout: Layout, model: Path, resume: bool) -> None:
    """What Trainer._open does, without the world outside."""
    trainer._checkpoints = Checkpoints(layout.checkpoints, 2)
    trainer._outbox = Outbox(layout.outgoing, model)
    trainer._lead, trainer._source = Lead(Learner(model, trainer._t)), _Source()
    trainer._sandbox = trainer._book = SimpleNamespace(close=lambda: None, ask=lambda *_: 0)
    trainer._evaluator = SimpleNamespace(evaluate=lambda folder, left: Evaluation(0.5, {}, 1, 1))
    found = trainer._checkpoints.newest()
    if found:
        trainer._restore(*found)
    else:
        randomness.begin(0)
        trainer._base = base.digest_of(model)
        trainer._save()
    trainer._publish()


# ---- faults ------------------------------------------------------------------------------------------------------------


def _die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _wait_for(folder: Path, seconds: float) -> None:
    """For a checkpoint that must not come before the version that is being written."""
    patience = Patience(seconds)
    while not folder.exists() and not patience.ended():
        time.sleep(0.01)


def _plant(trainer: Any, fault: str) -> None:
    """Lets `fault` happen while version AT is made."""
    write_checkpoint, write_version, replace = trainer._write_checkpoint, Outbox.write, os.replace
    updates = 0

    def update(optimizer: Any, original: Callable[..., Any]) -> Any:
        nonlocal updates
        updates += 1
        first, second = 2 * AT - 1, 2 * AT
        if (fault == "before the optimizer" and updates == first) or (
            fault == "between optimizer steps" and updates == second
        ):
            _die()
        result = original(optimizer)
        if fault == "after the optimizer" and updates == second:
            _die()
        if fault == "slowly":
            time.sleep(0.02)
        return result

    step = PartwiseAdamW.step
    PartwiseAdamW.step = lambda self: update(self, step)  # type: ignore[method-assign, assignment]

    def checkpointing(folder: Path) -> None:
        if fault == "full disk" and trainer._step == AT:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        write_checkpoint(folder)
        if fault == "writing the checkpoint" and trainer._step == AT:
            _die()
        if fault == "slowly":
            time.sleep(0.05)

    def writing(outbox: Outbox, weights: Any, number: int) -> Path:
        if fault == "between checkpoint and outbox" and number == AT:
            _die()
        if fault == "writing the version while the next step trains" and number == AT:
            _wait_for(outbox.folder.parent / f"checkpoints/step_{AT + 1}", 1.5)
            _die()
        if fault == "slowly":
            time.sleep(0.05)
        made = write_version(outbox, weights, number)
        if fault == "after the version's name" and number == AT:
            _die()
        return made

    def renaming(source: Any, target: Any) -> None:
        name = Path(target).name
        if fault == "before the checkpoint's name" and name == f"step_{AT}":
            _die()
        if fault == "before the version's name" and name == str(AT):
            _die()
        replace(source, target)

    def copying(source: Any, target: Any) -> Any:
        if fault == "writing the version" and Path(target).parent.name.endswith(f"-{AT}"):
            _die()
        return copy(source, target)

    copy = shutil.copyfile
    trainer._write_checkpoint, Outbox.write = checkpointing, writing  # type: ignore[method-assign]
    os.replace, shutil.copyfile = renaming, copying  # type: ignore[assignment]
