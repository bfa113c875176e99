"""A checkpoint is there whole or not at all, whatever kills the process, fills the disk or damages a file."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from protocol.errors import IntegrityError, PreflightError
from tests.trainer import small
from trainer.hub.outbox import Outbox
from trainer.learning import randomness
from trainer.learning.checkpoint import Checkpoints, verify
from trainer.learning.learner import Learner
from trainer.learning.snapshot import snapshot
from trainer.loop.followers import Lead


def writer(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(text)

    return write


def save(checkpoints: Checkpoints, step: int) -> Path:
    return checkpoints.save(step, {"consumed": [step]}, writer(f"weights of {step}"))


def test_the_newest_checkpoint_comes_back_with_its_state(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (9, 10):
        save(checkpoints, step)
    folder, state = Checkpoints(tmp_path, keep=3).newest()  # type: ignore[misc]
    assert state == {"step": 10, "consumed": [10]}
    assert (folder / "model.safetensors").read_text() == "weights of 10"


def test_there_is_none_at_first(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "new", keep=1).newest() is None


KILLED = """
import os, signal, sys
from pathlib import Path
from trainer.hub.outbox import Outbox
from trainer.learning.checkpoint import Checkpoints

point = sys.argv[2]

def write(folder):
    (folder / "model.safetensors").write_bytes(b"half")
    if point == "writing":
        os.kill(os.getpid(), signal.SIGKILL)

if point == "renaming":
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Checkpoints(Path(sys.argv[1]), keep=1).save(2, {}, write)
"""


@pytest.mark.parametrize("point", ["writing", "renaming"])
def test_a_process_killed_in_the_middle_of_saving_leaves_the_older_one_usable(tmp_path: Path, point: str) -> None:
    save(Checkpoints(tmp_path, keep=1), 1)
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path, point], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2  # what was half-written is there …
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]  # … and swept away at the next start
    assert checkpoints.newest()[1]["step"] == 1  # type: ignore[index]
    save(checkpoints, 2)
    assert checkpoints.newest()[1]["step"] == 2  # type: ignore[index]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped bit": lambda folder: flip(folder / "model.safetensors"),
    "truncated": lambda folder: os.truncate(folder / "model.safetensors", 3),
    "missing weights": lambda folder: (folder / "model.safetensors").unlink(),
    "missing state": lambda folder: (folder / "state.json").unlink(),
    "missing digests": lambda folder: (folder / "digests.json").unlink(),
    "digests are no JSON": lambda folder: (folder / "digests.json").write_bytes(b"\xff{"),
    "digests are no object": lambda folder: (folder / "digests.json").write_text("3"),
    "an extra file": lambda folder: (folder / "extra").write_text("?"),
    "a file is a folder": lambda folder: (folder / "extra").mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    newer = save(checkpoints, 2)
    damage(newer)
    with pytest.raises(IntegrityError):
        verify(newer)
    assert checkpoints.newest()[1]["step"] == 1  # type: ignore[index]


def test_only_as_many_are_kept_as_wanted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (8, 9, 10, 11):
        save(checkpoints, step)
    assert checkpoints.steps() == [10, 11]


def test_every_so_many_steps_one_is_kept_for_good(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, keep_every=4)
    for step in range(1, 12):
        save(checkpoints, step)
    assert checkpoints.steps() == [4, 8, 10, 11]


def test_torchs_random_numbers_go_on_where_they_stopped(tmp_path: Path) -> None:
    randomness.begin(3)
    torch.rand(5)
    randomness.save(tmp_path)
    expected = torch.rand(5)
    torch.rand(5)
    randomness.restore(tmp_path)
    assert torch.equal(torch.rand(5), expected)
    (tmp_path / "randomness-0.safetensors").write_bytes(b"?")
    with pytest.raises(IntegrityError):
        randomness.restore(tmp_path)


def test_damaged_newer_ones_never_crowd_out_what_is_saved_after_resuming(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, 10)
    for step in (20, 30):
        folder = tmp_path / f"step_{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_text("damaged")
    assert checkpoints.newest()[1]["step"] == 10  # type: ignore[index]
    save(checkpoints, 15)
    assert checkpoints.newest()[1]["step"] == 15  # type: ignore[index]
    assert checkpoints.steps() == [10, 15]


@contextmanager
def files_end_after(size: int) -> Iterator[None]:
    """The fault of a full disk: the kernel refuses to make any file of this process longer than `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 20_000])
def test_a_full_disk_is_said_and_leaves_nothing_half_written(
    tmp_path: Path, model: Path, new_learner: Callable[..., Learner], size: int
) -> None:
    """Whether Python writes or safetensors does; for checkpoints and outgoing weights alike."""
    learner = new_learner()
    checkpoints, outbox = Checkpoints(tmp_path / "checkpoints", keep=1), Outbox(tmp_path / "outgoing", model)
    checkpoints.save(0, {}, learner.save)
    for act in (lambda: checkpoints.save(1, {}, learner.save), lambda: outbox.write(snapshot(learner.model), 1)):
        with files_end_after(size), pytest.raises(PreflightError) as caught:
            act()
        assert caught.value.hint == "free some space"
    assert os.listdir(tmp_path / "checkpoints") == ["step_0"]
    assert os.listdir(tmp_path / "outgoing") == []
    assert checkpoints.newest()[1]["step"] == 0  # type: ignore[index]


def test_an_error_that_is_no_disks_passes_unchanged_and_leaves_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkpoints.save(1, {}, write)
    assert list(tmp_path.iterdir()) == []


def test_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 4)
    checkpoints.save(4, {}, writer("again"))
    folder, _ = checkpoints.newest()  # type: ignore[misc]
    assert (folder / "model.safetensors").read_text() == "again"


def test_a_checkpoint_holds_a_learner_and_no_pickle(tmp_path: Path, new_learner: Callable[..., Learner]) -> None:
    learner = new_learner()
    learner.learn(small.groups(1), 0)
    folder = Checkpoints(tmp_path, keep=1).save(1, {"consumed": []}, Lead(learner).save)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    shards = {name for name in names if name.startswith("tensors/")}
    assert names - shards == {"tensors", "randomness-0.safetensors", "state.json", "digests.json"}
    assert shards
    assert all(name.endswith(".safetensors") for name in shards)
    assert set(json.loads((folder / "digests.json").read_text())) == names - {"digests.json"}
    assert PreflightError.exit_code == 5
