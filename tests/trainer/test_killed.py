"""Killed in any phase of a step and resumed, a run ends with the very same weights, and no version ever changes."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import PreflightError
from tests.trainer import killed
from trainer.learning import tensors
from trainer.learning.checkpoint import TENSORS, verify


def versions(folder: Path) -> dict[str, str]:
    """SHA-256 of the weights of every version in the outbox."""
    outgoing = folder / "output/outgoing"
    return {
        path.name: hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
        for path in outgoing.iterdir()
        if path.name.isdecimal()
    }


def final(folder: Path) -> dict[str, bytes]:
    """Everything the last checkpoint holds but its evaluations' moment."""
    step = folder / f"output/checkpoints/step_{killed.STEPS}"
    verify(step)
    held = tensors.read(step / TENSORS, "")
    assert {name.partition("/")[0] for name in held} == {"model", "optimizer"}
    random = {path.name: path.read_bytes() for path in step.glob("*.safetensors")}
    return random | {name: tensor.numpy().tobytes() for name, tensor in held.items()}


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert killed.train(folder, model, resume=False) == 0
    yield folder


OFTEN = {
    "between optimizer steps",
    "before the checkpoint's name",
    "between checkpoint and outbox",
    "writing the version",
}
"""Points that the short suite has too: before, in and after the checkpoint, and while its version is made."""


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in OFTEN else pytest.mark.long) for point in killed.POINTS]
)
def test_a_run_killed_in_any_phase_ends_with_the_same_weights(
    undisturbed: Path, model: Path, tmp_path: Path, point: str
) -> None:
    assert killed.train(tmp_path, model, resume=False, fault=point) == -signal.SIGKILL
    before = versions(tmp_path)
    assert len(before) < killed.STEPS  # it did die on the way
    assert killed.train(tmp_path, model, resume=True) == 0
    after = versions(tmp_path)
    assert {name: after[name] for name in before} == before
    assert after == versions(undisturbed)
    assert final(tmp_path) == final(undisturbed)


def test_a_disk_that_fills_up_in_a_checkpoint_ends_the_run_and_loses_nothing(
    undisturbed: Path, model: Path, tmp_path: Path
) -> None:
    assert killed.train(tmp_path, model, resume=False, fault="full disk") == PreflightError.exit_code
    said = (tmp_path / "log.txt").read_text()
    assert said.count("cannot write the checkpoint of step 2") == 1
    assert "Traceback" not in said
    assert killed.AT not in map(int, versions(tmp_path))  # checkpoint before outbox
    assert killed.train(tmp_path, model, resume=True) == 0
    assert versions(tmp_path) == versions(undisturbed)
    assert final(tmp_path) == final(undisturbed)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_killed_again_and_again_ends_with_the_same_weights(
    undisturbed: Path, model: Path, tmp_path: Path
) -> None:
    seen: dict[str, str] = {}
    for attempt in range(60):
        ended = killed.kill_after(tmp_path, model, 0.3 + 0.037 * (attempt % 20), resume=attempt > 0)
        if ended in (0, 2):  # done; or killed before its first checkpoint, so there is nothing to resume
            break
        now = versions(tmp_path) if (tmp_path / "output/outgoing").exists() else {}
        assert {name: now[name] for name in seen} == seen
        seen = now
    assert killed.train(tmp_path, model, resume=True) == 0
    assert final(tmp_path) == final(undisturbed)
    assert versions(tmp_path) == versions(undisturbed)
