"""What a training asks and who grades it: of a run on chain as its spec says, or of a training on this machine alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.environments import Grader, Tasks, TaskSet
from protocol.runspec import AnswerSpec, EnvironmentSpec, RunSpec
from protocol.sandbox import EnvironmentSandbox, Sandbox
from protocol.shell import runfile
from trainer.config import SoloTable, load_solo
from trainer.rollouts.own_tasks import OwnRewards, OwnTasks
from trainer.rollouts.reward_function import RewardFunction

log = logging.getLogger("trainer")


class SoloSpec(AnswerSpec):
    """What a run spec says beyond its parties, and all that a training on one machine depends on; checkpoints name its digest."""

    tasks: str = ""
    """Digest of those rows and of how they are divided (own_tasks.py)."""


@dataclass(frozen=True)
class Questions:
    spec: AnswerSpec
    tasks: Tasks
    grader: Grader


@contextmanager
def of_run(spec: RunSpec) -> Iterator[Questions]:
    """Raises VersionMismatch where this machine draws other problems, Unavailable."""
    with Sandbox(spec) as sandbox:
        tasks = TaskSet(spec.environments, sandbox)
        tasks.require_same_problems()
        yield Questions(spec, tasks, sandbox)


@contextmanager
def of_solo(file: Path, model: Path, table: SoloTable) -> Iterator[Questions]:
    """Those of [solo], or of [spec.environments], in `file`. Raises ConfigError."""
    parts = runfile.answers(file, model)
    beside = file.resolve().parent
    if table.reward is not None and table.tasks is not None:
        own = OwnTasks(beside / table.tasks, table.question, table.held_out)
        function = RewardFunction(table.reward, own.columns, beside)
        yield Questions(_spec(parts, [], own.digest), own, OwnRewards(own, function))
        return
    environments = runfile.environments(file)
    with EnvironmentSandbox(environments) as sandbox:
        tasks = TaskSet(environments, sandbox)
        _tell_of_repeated(sum(environment.held_out_size for environment in environments), len(tasks.held_out))
        yield Questions(_spec(parts, environments), tasks, sandbox)


def _tell_of_repeated(rows: int, questions: int) -> None:
    if questions < rows:
        log.info(
            "%d problems are held out, not %d: the others ask the same questions, none of which is trained on",
            questions,
            rows,
        )


def _spec(parts: AnswerSpec, environments: list[EnvironmentSpec], tasks: str = "") -> SoloSpec:
    return SoloSpec(
        model=parts.model,
        sampling=parts.sampling,
        reward=parts.reward,
        environments=list[Any](environments),
        tasks=tasks,
    )


@contextmanager
def of_checkpoint(checkpoint: Path, file: Path) -> Iterator[Questions]:
    """Those that a checkpoint, or a model beside `file`, was trained on: on chain where spec.json says so, else by itself.

    Raises as `of_run` and `of_solo`.
    """
    settings = load_solo(file).value
    alone = checkpoint.resolve().is_relative_to(file.resolve().parent / settings.solo.output)
    if alone or not (file.parent / runfile.SPEC_FILE).exists():
        with of_solo(file, runfile.model_folder(file), settings.solo) as questions:
            yield questions
    else:
        with of_run(runfile.read_spec(file)) as questions:
            yield questions
