"""1, 2 and 4 ranks, real processes over gloo: the same curve, any of them goes on from any checkpoint, and none hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.errors import DeadlineExceeded
from tests.trainer import ranked, small
from trainer.learning.ranks import Ranks, deal
from trainer.loop import followers

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)
CURVE = 1e-4
"""Relative: ranks add the same float32 gradients in another order, and Adam's first steps enlarge what rounding is left."""


def torchrun(
    size: int, folder: Path, what: str, *, code: int = 0, module: str = "tests.trainer.ranked"
) -> dict[str, Any]:
    """Runs a scene of ranked.py, or of another module; what rank 0 found, if it wrote it, or nothing where it is to fail."""
    command = [sys.executable, "-m", "tests.trainer.started", str(size), module, str(folder), what]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=False)
    if code:
        assert done.returncode != 0
        assert f"exitcode  : {code}" in done.stderr, done.stderr
        return {"log": done.stderr}
    assert done.returncode == 0, done.stderr
    found = folder / f"{what}-{size}.json"
    return dict(json.loads(found.read_text())) if found.exists() else {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranked")
    small.write_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def together(folder: Path) -> Callable[[int, str], dict[str, Any]]:
    """What so many ranks find in one of these scenes, which they play in one process group, each number of them once."""
    scenes = ("train", "adapters", "moments")
    play = cache(lambda size: torchrun(size, folder, ",".join(scenes)))

    def of(size: int, what: str) -> dict[str, Any]:
        assert what in scenes
        play(size)
        return dict(json.loads((folder / f"{what}-{size}.json").read_text()))

    return of


@pytest.fixture(scope="module")
def curve(folder: Path, together: Callable[[int, str], dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
    """What so many ranks find when they train, each number of them once."""
    return cache(lambda size: ranked.alone(folder, "train") if size == 1 else together(size, "train"))


SIZES = [2, pytest.param(4, marks=pytest.mark.long)]


@pytest.mark.parametrize("size", SIZES)
def test_any_number_of_ranks_gives_the_curve_of_one(curve: Callable[[int], dict[str, Any]], size: int) -> None:
    curves = {1: curve(1), size: curve(size)}
    for alone, together in zip(curves[1]["steps"], curves[size]["steps"], strict=True):
        assert together["tokens"] == alone["tokens"]
        for name in ("loss", "entropy", "kl", "log_ratio", "gradient_norm", "clipped"):
            assert together[name] == pytest.approx(alone[name], rel=CURVE, abs=1e-7), name
    losses = [step["loss"] for step in curves[1]["steps"]]
    assert max(losses) - min(losses) > 100 * CURVE * abs(losses[0])  # a curve that tells ranks apart


@pytest.mark.parametrize("size", SIZES)
def test_they_publish_the_same_weights(curve: Callable[[int], dict[str, Any]], size: int) -> None:
    alone, together = (small.stored(Path(curve(n)["version"])) for n in (1, size))
    assert alone.keys() == together.keys()
    for name, tensor in alone.items():
        assert torch.allclose(tensor.float(), together[name].float(), rtol=0.01, atol=1e-4), name


@pytest.mark.parametrize("size", SIZES)
def test_any_number_of_ranks_trains_the_same_adapters(
    folder: Path, together: Callable[[int, str], dict[str, Any]], size: int
) -> None:
    """Sharded in rows that no number of ranks divides; the reference is the same sharded model without them."""
    alone, shared = ranked.alone(folder, "adapters"), together(size, "adapters")
    for one, many in zip([*alone["steps"], alone["again"]], [*shared["steps"], shared["again"]], strict=True):
        for name in ("loss", "entropy", "kl", "log_ratio", "gradient_norm"):
            assert many[name] == pytest.approx(one[name], rel=CURVE, abs=1e-7), name
    assert shared["again"] == shared["steps"][-1]
    assert max(step["kl"] for step in alone["steps"]) > 1e-5
    versions = [small.stored(Path(found["version"])) for found in (alone, shared)]
    assert versions[0].keys() == versions[1].keys() == small.stored(folder / "model").keys()
    for name, tensor in versions[0].items():
        assert torch.allclose(tensor.float(), versions[1][name].float(), rtol=0.01, atol=1e-4), name


@pytest.mark.parametrize("size", SIZES)
def test_moments_in_bfloat16_are_rounded_alike_by_any_number_of_ranks(
    folder: Path, together: Callable[[int, str], dict[str, Any]], size: int
) -> None:
    """Each rank draws for the rows it has, also where it has no rows to learn from; and a checkpoint holds them in their type."""
    alone, shared = ranked.alone(folder, "moments"), together(size, "moments")
    ones, many_ranks = ([*found["thin"], *found["steps"], found["again"]] for found in (alone, shared))
    for one, many in zip(ones, many_ranks, strict=True):
        for name in ("loss", "entropy", "kl", "log_ratio", "gradient_norm"):
            assert many[name] == pytest.approx(one[name], rel=CURVE, abs=1e-7), name
    assert shared["again"] == shared["steps"][-1]
    assert alone["thin"][1]["loss"] == 0.0, "no advantage, no loss of the policy"


@pytest.mark.long
def test_rounded_moments_of_any_number_of_ranks_are_resumed_by_any(folder: Path) -> None:

    def found_by(size: int, what: str) -> dict[str, Any]:
        return ranked.alone(folder, what) if size == 1 else torchrun(size, folder, what)

    written_by = {f"checkpoints-{n}": found_by(n, "moments") for n in (1, 2)}
    for size in (1, 2):
        found = found_by(size, "resume_moments")  # those of other tests lie in the folder as well
        assert set(written_by) <= set(found)
        for name in written_by:
            step = found[name]
            for key in ("loss", "entropy", "gradient_norm"):
                written = written_by[name]["steps"][-1][key]
                assert step[key] == (pytest.approx(written, rel=CURVE) if name != f"checkpoints-{size}" else written), (
                    name
                )


@pytest.mark.long
def test_layers_that_are_never_updated_lie_in_the_type_they_are_computed_in(folder: Path) -> None:
    """Alone they are float32, and cast where they are used."""
    alone, together = ranked.alone(folder, "rounded"), torchrun(2, folder, "rounded")
    assert (alone["types"], together["types"]) == (["torch.float32"], ["torch.bfloat16", "torch.float32"])
    for one, many in zip(alone["steps"], together["steps"], strict=True):
        for name in ("entropy", "gradient_norm"):
            assert many[name] == pytest.approx(one[name], rel=0.05), name


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.long
def test_a_checkpoint_of_any_number_of_ranks_is_resumed_by_any(
    curve: Callable[[int], dict[str, Any]], folder: Path, size: int
) -> None:
    written_by = {f"checkpoints-{n}": curve(n) for n in (1, 2, 4)}
    found = torchrun(size, folder, "resume")
    assert set(found) == set(written_by)
    for name, step in found.items():
        written = written_by[name]["steps"][-1]
        assert step["loss"] == pytest.approx(written["loss"], rel=CURVE), name
        assert step["gradient_norm"] == pytest.approx(written["gradient_norm"], rel=CURVE), name


@pytest.mark.long
def test_a_rollout_without_a_finite_gradient_is_named_by_all_of_them(folder: Path) -> None:
    found = torchrun(2, folder, "blame")
    assert (found["metrics"]["skipped"], found["metrics"]["blamed"]) == (1, ["0.3.2"])
    assert found["changed"]  # by the optimizer step that had nothing to do with it


@pytest.mark.long
def test_a_rank_that_cannot_write_its_part_spoils_one_checkpoint_only(folder: Path) -> None:
    found = torchrun(2, folder, "full_disk")
    assert "the checkpoint of step 1" in found["refused"]
    assert found["steps"] == [2]


@pytest.mark.long
def test_a_rank_that_hangs_ends_the_run_within_the_phase_it_hangs_in(folder: Path) -> None:
    told = torchrun(2, folder, "hang", code=DeadlineExceeded.exit_code)
    assert "training took longer than its 3 s" in told["log"]


def test_rows_are_dealt_evenly_in_number_and_cost() -> None:
    dealt = deal([5, 1, 1, 1, 5, 1, 1], 2)
    assert sorted(i for own in dealt for i in own) == list(range(7))
    assert {len(own) for own in dealt} == {3, 4}
    assert sorted(sum((5, 1, 1, 1, 5, 1, 1)[i] for i in own) for own in dealt) == [7, 8]
    assert deal([1.0], 4).count([]) == 3


def test_a_batch_reaches_the_others_as_it_was() -> None:
    groups = ranked.batch(3)
    groups[1] = tuple(
        type(sample)(sample.prompt, sample.completion, 0.25, np.full(len(sample.completion), -1.5, np.float32), "é")
        for sample in groups[1]
    )
    found, step = followers.decode(followers.encode(groups, 7))
    assert step == 7
    for before, after in zip([s for g in groups for s in g], [s for g in found for s in g], strict=True):
        assert np.array_equal(before.prompt, after.prompt)
        assert np.array_equal(before.completion, after.completion)
        assert (before.advantage, before.name) == (after.advantage, after.name)
        assert (before.logprobs is None) == (after.logprobs is None)
        assert before.logprobs is None or np.array_equal(before.logprobs, after.logprobs)  # type: ignore[arg-type]
    assert [len(group) for group in found] == [len(group) for group in groups]


def test_one_alone_talks_to_nobody() -> None:
    assert Ranks.alone().sum([1.5, 2.0]) == [1.5, 2.0]
