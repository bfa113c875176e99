"""Fixtures of the trainer's tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.tiny_run import run_tables

from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.settings import write_toml
from protocol.shell import runfile
from tests.once import made_once
from tests.trainer import small
from tests.trainer.field import Field, open_field
from trainer.config import TrainSettings
from trainer.learning.learner import Learner
from trainer.models.tiny import MadePolicy, make_policy


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small model that no test writes to."""
    return small.write_model(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture
def new_learner(model: Path) -> Callable[..., Learner]:
    """Makes learners that all start from the same weights."""

    def make(settings: TrainSettings | None = None) -> Learner:
        return Learner(model, settings or small.settings())

    return make


@dataclass(frozen=True)
class Made:
    """A policy that was warmed up on one task until it scored a little, and the run it was made for."""

    tables: dict[str, Any]
    file: Path
    folder: Path
    policy: MadePolicy
    spec: RunSpec


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    tables = run_tables()
    tables["spec"]["environments"] = [
        {**environment, "held_out_size": 32}
        for environment in tables["spec"]["environments"]
        if environment["dataset"] == "spiral_matrix"
    ]
    tables["spec"]["sampling"]["max_new_tokens"] = 16
    tables["spec"]["reward"] = {"alpha": "0.01", "budgets": {"0": [6, 12]}}  # no group's rewards are all equal
    tables["spec"]["verification"]["uncalibrated"] = []
    folder = tmp_path_factory.mktemp("made")
    file = folder / "run.toml"
    write_toml(file, tables, "A run of one task.")

    def warm_up(part: Path) -> None:
        policy = make_policy(file, part / "policy", target=0.2, seed=0, announces=True)
        (part / "made.json").write_text(json.dumps(asdict(policy)))

    found = made_once(tmp_path_factory, "policy-of-one-task", warm_up)
    shutil.copytree(found / "policy", folder / "policy")
    policy = MadePolicy(**json.loads((found / "made.json").read_text()))
    return Made(tables, file, folder / "policy", policy, runfile.complete(file, folder / "policy"))


@pytest.fixture(scope="package")
def _field(anvil: Anvil, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with open_field(anvil, tmp_path_factory.mktemp("field")) as made:
        yield made


@pytest.fixture
def field(_field: Field) -> Field:
    _field.begin()
    return _field


@pytest.fixture
def node(field: Field) -> Key:
    """Seated, with a version to work on: the test's first step."""
    return field.node()


@pytest.fixture(scope="module")
def validator(_field: Field) -> Key:
    return _field.desk.validator()
