"""Each switch of the paper's presets is seen to act: in one process, and in two that share the model over gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small, switched
from tests.trainer.test_ranks import torchrun
from trainer.learning.learner import Learner
from trainer.presets import preset

pytestmark = pytest.mark.timeout(300)
NAMES = ("intellect2-short", "intellect2-long")
FULL, HALF = ["float32"], ["bfloat16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("switched")
    small.write_model(folder / "model")
    return folder


@pytest.fixture(
    scope="module", params=[pytest.param(1, id="alone"), pytest.param(2, id="two ranks", marks=pytest.mark.long)]
)
def found(folder: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == 1:
        return switched.look(Learner(folder / "model", switched.settings(NAMES[0])))
    return torchrun(2, folder, NAMES[0], module="tests.trainer.switched")


def test_layers_multiply_bfloat16_and_all_that_lasts_is_float32(found: dict[str, Any]) -> None:
    assert found["layers"] == HALF
    assert found["head"] == FULL
    for name in ("masters", "gradients", "moments", "logprobs"):
        assert found[name] == FULL, name
    assert found["published"] == HALF


def test_ranks_gather_layers_in_bfloat16_and_sum_gradients_in_float32(found: dict[str, Any]) -> None:
    both = found["ranks"] == 2
    assert found["gathered"] == ([*HALF, *FULL] if both else [])  # embedding, last norm and head as they are
    assert found["summed"] == (FULL if both else [])


def test_the_reference_is_computed_as_the_policy_is(found: dict[str, Any]) -> None:
    """Else the divergence from it would begin with the difference of two roundings."""
    assert found["reference is the policy"]


def test_layers_are_computed_anew_in_the_backward_pass(found: dict[str, Any]) -> None:
    assert found["passes"] == 2


def test_the_learning_rate_climbs_with_every_optimizer_step(found: dict[str, Any]) -> None:
    assert found["rates"] == pytest.approx([3e-7 / 25, 3e-7 * 2 / 25])


def test_the_long_presets_switches_are_the_short_ones() -> None:
    short, long = (preset(name) for name in NAMES)
    assert short["trainer"] == long["trainer"]
    assert short["spec"].pop("reward") != long["spec"].pop("reward")
    assert short["spec"] == long["spec"]
