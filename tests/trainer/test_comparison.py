"""Intervals that are the textbook's, differences that are paired, and a checkpoint compared with its base for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from node.engine.weights import stored_tensors
from protocol.errors import IntegrityError, UsageError
from protocol.model_files import WEIGHTS
from tests.trainer import small
from tests.trainer.conftest import Made
from trainer.commands import app
from trainer.config import TrainSettings
from trainer.evaluation.comparison import against, bootstrap, compare, run_file_of, wilson
from trainer.learning.checkpoint import TENSORS, Checkpoints
from trainer.learning.learner import Learner
from trainer.loop.followers import Lead
from trainer.models.export import export
from trainer.rollouts.questions import of_run


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)],
)
def test_wilsons_interval_is_the_textbooks(successes: int, trials: int, low: float, high: float) -> None:
    found = wilson(successes, trials)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_the_bootstraps_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = sum(low <= 0.3 <= high for _ in range(40) for low, high in [_ends(rng.beta(3, 7, 60))])
    assert 33 <= hits <= 40


def _ends(values: np.ndarray) -> tuple[float, float]:
    found = bootstrap(list(values))
    return found.low, found.high


def test_pairing_shows_a_difference_that_the_intervals_alone_would_hide() -> None:
    """Nine problems in a hundred turn from wrong to right, and none back."""
    base = [[float(i < 50)] for i in range(100)]
    better = [[float(i < 59)] for i in range(100)]
    row = compare(["x"] * 100, better, base)[-1]
    assert row.base is not None
    assert row.base.high > row.candidate.low  # the two overlap
    assert row.difference is not None
    assert row.difference.mean == pytest.approx(0.09)
    assert row.difference.low > 0
    assert row.verdict == "better"
    assert compare(["x"] * 100, base, better)[-1].verdict == "worse"
    assert compare(["x"] * 100, base, base)[-1].verdict == "no difference shown"


def test_each_environment_has_a_row_and_all_together_one() -> None:
    rows = compare(["a", "b", "a"], [[1.0], [0.0], [0.0]], None)
    assert [(row.name, row.problems, row.candidate.mean) for row in rows] == [
        ("a", 2, 0.5), ("b", 1, 0.0), ("all", 3, pytest.approx(1 / 3)),
    ]  # fmt: skip


def test_samples_of_one_problem_are_not_taken_for_independent_ones() -> None:
    """Ten samples each of four problems: as uncertain as four, not as forty."""
    scores = [[1.0] * 10, [1.0] * 10, [0.0] * 10, [0.0] * 10]
    interval = compare(["x"] * 4, scores, None)[-1].candidate
    assert interval.high - interval.low > 0.7


# ---- for real ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(made: Made, tmp_path: Path) -> Path:
    """A run's folder with a checkpoint of the made policy at step 3 and one of weights that know nothing at step 4."""
    shutil.copy(made.file, tmp_path / "run.toml")
    with (tmp_path / "run.toml").open("a") as file:
        file.write('\n[chain]\ncontract = "0x0000000000000000000000000000000000000000"\nchain_id = 1\nrun = 1\n')
    (tmp_path / "spec.json").write_bytes(made.spec.canonical())
    shutil.copytree(made.folder, tmp_path / "policy")
    learner = Learner(made.folder, TrainSettings(steps=1))
    checkpoints = Checkpoints(tmp_path / "output/checkpoints", keep=2)
    checkpoints.save(3, {"spec": made.spec.digest.hex()}, Lead(learner).save)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(0.01)
    checkpoints.save(4, {"spec": made.spec.digest.hex()}, Lead(learner).save)
    return tmp_path


def test_a_checkpoint_is_compared_with_the_base_model(run: Path) -> None:
    found = CliRunner().invoke(app, ["eval", str(run / "output/checkpoints/step_4"), "--json"])
    assert found.exit_code == 0, found.output
    row = json.loads(found.stdout)["rows"][-1]
    assert row["name"] == "all"
    assert row["problems"] == 32
    assert row["base"]["mean"] > row["candidate"]["mean"] == 0
    assert row["difference"]["high"] < 0
    assert row["length_error"] > row["base_length_error"] > 0  # answers that never end are far from any budget
    same = CliRunner().invoke(app, ["eval", str(run / "output/checkpoints/step_3")])
    assert same.exit_code == 0, same.output
    assert "no difference shown" in same.output
    assert "0.000 (0.000 to 0.000)" in same.output


def test_a_checkpoint_of_another_run_is_refused(run: Path, made: Made) -> None:
    spec = made.spec.model_copy(update={"name": "another"})
    with of_run(spec) as questions, pytest.raises(IntegrityError, match="another spec"):
        against(None, run / "output/checkpoints/step_3", questions, run / "policy", samples=1)
    with pytest.raises(UsageError, match=r"no run\.toml"):
        run_file_of(Path("/"))


# ---- export ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_exported_checkpoint_loads_as_any_model_does(
    tmp_path: Path, model: Path, new_learner: Callable[..., Learner], dtype: str
) -> None:
    learner = new_learner()
    learner.learn(small.groups(1), 0)
    checkpoint = Checkpoints(tmp_path / "checkpoints", keep=1).save(1, {}, Lead(learner).save)
    folder = export(checkpoint, model, tmp_path / "exported/model", dtype=dtype)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert loaded.dtype == getattr(torch, dtype)
    for name, tensor in stored_tensors(learner.model).items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(loaded.dtype))
    if dtype == "float32":
        ids = torch.tensor([[3, 4, 5, 6]])
        with torch.no_grad():
            assert torch.equal(loaded(input_ids=ids).logits, learner.model(input_ids=ids).logits)
    assert {path.name for path in folder.iterdir()} >= {"config.json", "tokenizer.json", WEIGHTS}
    with pytest.raises(UsageError, match="exists already"):
        export(checkpoint, model, folder)


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path, model: Path, new_learner: Callable[..., Learner]) -> None:
    checkpoint = Checkpoints(tmp_path / "checkpoints", keep=1).save(1, {}, Lead(new_learner()).save)
    (shard,) = (checkpoint / TENSORS).iterdir()
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(IntegrityError):
        export(checkpoint, model, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
