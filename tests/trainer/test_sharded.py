"""Versions of many files: written with an index, loaded, exported and taken for the very same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from node.engine.weights import build_model, load_weights, stored_tensors
from protocol import model_files
from protocol.errors import IntegrityError
from trainer.hub.outbox import Outbox
from trainer.learning.checkpoint import Checkpoints
from trainer.learning.learner import Learner
from trainer.learning.snapshot import snapshot
from trainer.loop.followers import Lead
from trainer.models.export import export

SMALL = 8 << 10


def held(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor for file in model_files.weight_files(folder) for name, tensor in load_file(folder / file).items()
    }


def test_a_version_of_many_files_is_the_same_version(
    tmp_path: Path, model: Path, new_learner: Callable[..., Learner]
) -> None:
    weights = snapshot(new_learner().model)
    whole = Outbox(tmp_path / "whole", model).write(weights, 1)
    folder = Outbox(tmp_path / "many", model, shard_bytes=SMALL).write(weights, 1)
    shards = model_files.weight_files(folder)
    assert len(shards) > 2
    assert all((folder / file).stat().st_size < 2 * SMALL for file in shards)
    assert set(model_files.files(folder)) == {path.name for path in folder.iterdir()}
    assert held(folder).keys() == weights.keys()
    one, many = build_model(whole, torch.float32), build_model(whole, torch.float32)
    for parameter in stored_tensors(many).values():
        parameter.data.zero_()
    load_weights(many, folder)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), many.state_dict().values(), strict=True))
    again = Outbox(tmp_path / "again", model, shard_bytes=SMALL).write(weights, 1)
    assert all((again / name).read_bytes() == (folder / name).read_bytes() for name in model_files.files(folder))


def test_a_version_whose_last_file_is_wrong_is_refused(
    tmp_path: Path, model: Path, new_learner: Callable[..., Learner]
) -> None:
    folder = Outbox(tmp_path / "many", model, shard_bytes=SMALL).write(snapshot(new_learner().model), 1)
    last = folder / max(model_files.weight_files(folder))
    tensors = load_file(last)
    next(iter(tensors.values())).view(-1)[0] = float("nan")
    save_file(tensors, last, {"format": "pt"})
    loaded = build_model(model, torch.float32)
    with pytest.raises(IntegrityError, match="NaN"):
        load_weights(loaded, folder)


def test_a_checkpoint_is_exported_into_many_files_beside_no_index_of_before(
    tmp_path: Path, model: Path, new_learner: Callable[..., Learner]
) -> None:
    learner = new_learner()
    checkpoint = Checkpoints(tmp_path / "checkpoints", keep=1).save(1, {}, Lead(learner).save)
    policy = Outbox(tmp_path / "many", model, shard_bytes=SMALL).write(snapshot(learner.model), 0)
    many = export(checkpoint, policy, tmp_path / "exported", shard_bytes=SMALL)
    assert len(model_files.weight_files(many)) > 2
    one = export(checkpoint, policy, tmp_path / "one")
    assert model_files.weight_files(one) == {model_files.WEIGHTS: None}
    assert all(torch.equal(tensor, held(one)[name]) for name, tensor in held(many).items())
