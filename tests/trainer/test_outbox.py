"""The outbox: versions appear whole, never change, and go when they are told to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from node.engine.tensor_files import TensorFile
from node.engine.torch_engine import TorchEngine
from protocol.model_files import CONFIG, TOKENIZER, WEIGHTS
from tests.engine.models import RIGHT, make
from tests.trainer import small
from trainer.evaluation.probe import version_0
from trainer.hub import outbox as module
from trainer.hub.outbox import Coming, Outbox
from trainer.learning.checkpoint import Checkpoints
from trainer.learning.learner import Learner
from trainer.learning.snapshot import snapshot
from trainer.loop.followers import Lead
from trainer.models.export import export
from trainer.models.pretrained import make_policy


@pytest.fixture
def outbox(tmp_path: Path, model: Path) -> Outbox:
    return Outbox(tmp_path / "outgoing", model)


def test_a_version_is_what_nodes_load(outbox: Outbox, new_learner: Callable[..., Learner], model: Path) -> None:
    learner = new_learner()
    folder = outbox.write(snapshot(learner.model), 3)
    assert {path.name for path in folder.iterdir()} == {CONFIG, TOKENIZER, WEIGHTS}
    assert (folder / "config.json").read_bytes() == (model / "config.json").read_bytes()
    TorchEngine("float32").load(folder)
    for name, tensor in small.stored(folder).items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, learner.model.state_dict()[name].to(torch.bfloat16))


def test_what_chooses_a_mixtures_experts_is_published_as_the_trainer_has_it(tmp_path: Path) -> None:
    """DeepSeek's checkpoints hold their routers' bias in float32, and so do trainer and engines: rounded, it would choose others."""
    theirs, policy = make(RIGHT["deepseek_v3"], tmp_path / "theirs"), tmp_path / "policy"
    tensors = load_file(theirs / WEIGHTS)
    exact = {
        name: tensor.float() + 1e-4 for name, tensor in tensors.items() if name.endswith("e_score_correction_bias")
    }
    assert exact
    save_file({**tensors, **exact}, theirs / WEIGHTS, metadata={"format": "pt"})
    make_policy(theirs, policy)
    learner = Learner(policy, small.settings())
    published = Outbox(tmp_path / "outgoing", policy).write(snapshot(learner.model), 0)
    engine = TorchEngine("bfloat16")
    engine.load(published)
    checkpoint = Checkpoints(tmp_path / "checkpoints", keep=1).save(1, {}, Lead(learner).save)
    exported = export(checkpoint, policy, tmp_path / "exported")
    with version_0(policy) as probed:
        held = [small.stored(folder) for folder in (policy, published, probed, exported)]
    for name, bias in exact.items():
        for of in (*held, learner.model.state_dict(), engine._model.state_dict()):
            assert torch.equal(of[name], bias)
    for of in held:
        assert {tensor.dtype for name, tensor in of.items() if name not in exact} == {torch.bfloat16}


def test_a_version_never_changes_once_it_is_there(outbox: Outbox, new_learner: Callable[..., Learner]) -> None:
    learner = new_learner()
    first = (outbox.write(snapshot(learner.model), 0) / "model.safetensors").read_bytes()
    learner.learn(small.groups(2), 0)
    assert (outbox.write(snapshot(learner.model), 0) / "model.safetensors").read_bytes() == first
    assert (outbox.write(snapshot(learner.model), 1) / "model.safetensors").read_bytes() != first


def test_only_whole_versions_wait_and_in_order(outbox: Outbox, new_learner: Callable[..., Learner]) -> None:
    learner = new_learner()
    for step in (9, 10, 8):
        outbox.write(snapshot(learner.model), step)
    (outbox.folder / ".writing-11").mkdir()
    (outbox.folder / "notes").mkdir()
    assert outbox.waiting() == [8, 9, 10]


def test_what_is_written_of_a_version_can_be_read_before_it_has_its_name(
    outbox: Outbox, new_learner: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine only: elsewhere a file's size may be true before its bytes are."""
    seen: list[tuple[Coming, dict[str, int]]] = []
    write = TensorFile.write

    def writing(file: TensorFile, folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        write(file, folder, tensors)
        coming = outbox.coming()
        assert coming is not None
        assert not outbox.waiting()
        seen.append((coming, {name: (coming.folder / name).stat().st_size for name, _ in coming.files}))
        monkeypatch.setattr(module, "_boot", lambda: "another machine")
        assert outbox.coming() is None

    monkeypatch.setattr(TensorFile, "write", writing)
    outbox.write(snapshot(new_learner().model), 3)
    ((coming, sizes),) = seen
    assert coming.step == 3
    assert dict(coming.files) == sizes
    assert list(sizes)[-1] == WEIGHTS
    assert outbox.coming() is None


def test_old_versions_are_forgotten(outbox: Outbox, new_learner: Callable[..., Learner]) -> None:
    learner = new_learner()
    for step in range(4):
        outbox.write(snapshot(learner.model), step)
    outbox.remove_before(2)
    assert outbox.waiting() == [2, 3]


def test_what_a_killed_trainer_half_wrote_is_swept_by_the_next_version(
    outbox: Outbox, new_learner: Callable[..., Learner]
) -> None:
    """Of another step, too: after a crash the step numbers may go on elsewhere."""
    left = outbox.folder / ".writing-11"
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    outbox.write(snapshot(new_learner().model), 19)
    assert [path.name for path in outbox.folder.iterdir()] == ["19"]
