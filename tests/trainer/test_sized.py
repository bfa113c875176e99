"""A model that two ranks share: real processes over gloo, each of which holds its own part and little more, also while it is read."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from node.engine.settings import EngineSettings
from tests.trainer import sized
from tests.trainer.test_planning import HERE, WORK, full_rows, write_model
from tests.trainer.test_ranks import torchrun
from trainer.engines import Engines
from trainer.learning.learner import Learner
from trainer.planning.budget import Budgets

pytestmark = pytest.mark.timeout(300)
READING_MAX = 0.65
"""Of the whole model in float32: half of it is a rank's own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sized")
    write_model(folder / "model", **sized.SIZES)
    return folder


def seen(folder: Path, scene: str) -> list[dict[str, Any]]:
    torchrun(2, folder, scene, module="tests.trainer.sized")
    return [json.loads((folder / f"{scene}-{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks_read_a_model_that_neither_holds_whole(folder: Path) -> None:
    for rank in seen(folder, "read"):
        assert rank["loading"] < READING_MAX * rank["whole"]
        assert rank["equal"], "weights differ from the folder's"
        assert rank["tied"], "head and embedding are no longer one"
        assert rank["buffers"], "rotary frequencies differ from those that the model computes"


@pytest.mark.long
def test_layers_in_bfloat16_learn_as_one_process_that_casts_them(folder: Path) -> None:
    both = seen(folder, "bfloat16")
    alone = Learner(folder / "model", sized.how("bfloat16"))
    vocabulary = alone.model.config.vocab_size
    for step, expected in enumerate(asdict(alone.learn(full_rows(sized.ROWS, vocabulary), step)) for step in range(2)):
        assert both[0]["steps"][step] == both[1]["steps"][step]
        for name in ("entropy", "gradient_norm", "kl"):
            assert both[0]["steps"][step][name] == pytest.approx(expected[name], rel=0.05, abs=1e-4), name


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_of_two_ranks_is_what_the_allocator_counts(folder: Path, dtype: str) -> None:
    two = replace(HERE, ranks=2, per_machine=2)
    device = Budgets(folder / "model", WORK, Engines(EngineSettings()), two).budget(sized.how(dtype)).device
    lasting = device.weights + device.optimizer + device.reference
    for rank in seen(folder, dtype):
        assert device.total - device.evaluation == pytest.approx(lasting + rank["learning"], rel=0.15)
