"""From a model's folder and a file of tasks to a folder that `murmur trainer solo` trains in: policy, tasks and run.toml.

The folder appears whole or not at all. Its run.toml is one to edit, and to go on chain with: what is missing there is what other
parties need (docs/solo.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol import architectures
from protocol.environments import taskfile
from protocol.errors import ConfigError, UsageError
from protocol.model_files import CONFIG
from protocol.settings import write_toml
from protocol.shell import runfile
from trainer.config import load_solo
from trainer.folder import whole
from trainer.models.pretrained import make_policy
from trainer.presets import solo
from trainer.rollouts.own_tasks import OwnTasks, column
from trainer.rollouts.reward_function import RewardFunction

RUN_FILE, TASKS = "run.toml", "tasks.parquet"
_QUESTIONS, _ANSWERS = ("question", "prompt"), ("answer", "solution")
_HELD_OUT_MOST, _HELD_OUT_SHARE = 64, 10


def prepare(
    model: Path, tasks: Path, folder: Path, *, reward: str | None = None, question: str | None = None,
    answer: str | None = None, held_out: int | None = None, changes: Mapping[str, Any] | None = None,
    unlisted: bool = False,
) -> Path:  # fmt: skip
    """Makes `folder`, which must not be there yet or be empty; returns its run.toml.

    Without `reward` an answer counts as a task file's does. `held_out` rows are for evaluation, else a tenth, at most 64. `changes`:
    values of run.toml by dotted path; `unlisted` as `make_policy` takes it. Raises UsageError, ConfigError for a model, tasks or function that cannot be used, PreflightError.
    """
    if (folder / RUN_FILE).exists():
        again = f"murmur trainer solo @{folder / RUN_FILE}"
        raise UsageError(f"{folder} holds a training already", hint=f"{again} --resume, or --out for another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already", hint="--out names another folder")
    asked = column(tasks, question, _QUESTIONS)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with whole(folder.absolute(), f"the folder {folder}") as partial:
        if reward is None:
            rows = taskfile.convert([tasks], partial / TASKS, asked, column(tasks, answer, _ANSWERS))
            table = None
        else:
            own = OwnTasks(tasks, asked, 0)
            RewardFunction(reward, own.columns)
            rows = own.size
            table = {"tasks": _beside(tasks, folder), "question": asked, "reward": _beside(reward, folder)}
        kept_back = min(_HELD_OUT_MOST, rows // _HELD_OUT_SHARE) if held_out is None else held_out
        if not 0 <= kept_back < rows:
            raise ConfigError(f"{kept_back} of {rows} rows of {tasks} cannot be held out")
        imported = make_policy(model, partial / "policy", unlisted=unlisted)
        tables = solo(
            name=tasks.stem, rows=rows, held_out=kept_back, table=table, template=imported.prompt_template,
            positions=_positions(partial / "policy"), dtype="bfloat16" if _has_gpu() else "float32",
        )  # fmt: skip
        for path, value in (changes or {}).items():
            _put(tables, path, value)
        write_toml(partial / RUN_FILE, tables, "Written by `murmur trainer solo`; every key: docs/reference-config.md.")
        load_solo(partial / RUN_FILE)
        runfile.answers(partial / RUN_FILE, partial / "policy")
        runfile.environments(partial / RUN_FILE)
    return folder / RUN_FILE


def _positions(policy: Path) -> int:
    """Of a model whose config.json names none, as many as any has."""
    return architectures.positions(architectures.require_file(policy / CONFIG)) or 4096


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _beside(path: Path | str, folder: Path) -> str:
    """As run.toml in `folder` names it."""
    return os.path.relpath(path, folder)


def _put(tables: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    place = tables
    for parent in parents:
        place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            raise UsageError(f"{path} is no setting of run.toml", hint="edit the file instead")
    place[leaf] = value
