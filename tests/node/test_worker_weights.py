"""Weights that cannot be used, and machines that compute wrongly: the worker commits to nothing false."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from swarm.world import World

from node.engine.torch_engine import TorchEngine
from protocol.errors import IntegrityError
from protocol.identity import Key
from protocol.shardcast.source import Source
from tests.clock import eventually
from tests.node.stage import Stage, running
from tests.node.working import a_worker, submitted, told, waits_because


class FaultyEngine(TorchEngine):
    """Right in prefill, wrong in decoding: as a machine with a fault in one of two kernels."""

    def _sample(self, hidden, keys, position, *how):
        tokens, logprobs = super()._sample(hidden, keys, position, *how)
        return (tokens + (position == 0)) % self.vocabulary, logprobs


class OverflowingEngine(TorchEngine):
    """Computes no numbers with the first version it loads, though its weights are some."""

    loads = 0

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.loads += 1
        if self.loads == 1:
            with torch.no_grad():
                self._model.base_model.norm.weight.fill_(float("nan"))


def test_it_never_submits_what_its_own_check_rejects(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node, engine=FaultyEngine)
    with running(worker) as ended:
        assert ended.event.wait(20)
        assert isinstance(ended.error, IntegrityError)
        assert ended.error.exit_code == 8
        assert not submitted(stage)
        assert not worker.submissions.all()


def test_a_version_that_cannot_be_loaded_is_waited_out(stage: Stage) -> None:
    """The bytes are the chain's, so they are nobody's fault here; the next version may be right."""
    node = stage.seated()
    stage.publish(_without_a_tensor(stage))
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "cannot be used"), what="the status says so")
        stage.publish()
        eventually(lambda: [s.step for s in submitted(stage)], what="it works on the next version")
        assert {s.step for s in submitted(stage)} == {1}
        assert not ended.event.is_set()


def test_a_version_that_holds_a_nan_is_waited_out(stage: Stage) -> None:
    """Or one bad version would end every node at once, each with the advice to look for faulty memory."""

    from safetensors.torch import load_file, save_file

    folder = stage.folder / "nan"
    shutil.copytree(stage.tiny.model, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    node = stage.seated()
    stage.publish(folder)
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "cannot be used"), what="the status says so")
        stage.publish()
        eventually(lambda: [s.step for s in submitted(stage)], what="it works on the next version")
        assert {s.step for s in submitted(stage)} == {1}
        assert not ended.event.is_set()


def test_a_version_that_computes_no_numbers_is_waited_out(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    with running(a_worker(stage, node, engine=OverflowingEngine)) as ended:
        eventually(waits_because(stage, "computes no numbers"), what="the status says so")
        assert not submitted(stage)
        stage.publish()
        eventually(lambda: [s.step for s in submitted(stage)], what="it works on the next version")
        assert {s.step for s in submitted(stage)} == {1}
        assert not ended.event.is_set()


def test_a_version_of_another_model_is_never_loaded(stage: Stage) -> None:

    node = stage.seated()
    folder = stage.folder / "other"
    shutil.copytree(stage.tiny.model, folder)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    stage.publish(folder)
    worker = a_worker(stage, node)
    with running(worker):
        eventually(waits_because(stage, "config.json"), what="the status says so")
        seen = told(stage)["at"]
        eventually(
            lambda: told(stage)["at"] != seen and waits_because(stage, "config.json")(), what="not at the second try"
        )
        assert worker._workbench.engine._model is None
        assert not submitted(stage)


def _without_a_tensor(stage: Stage) -> Path:

    from safetensors.torch import load_file, save_file

    folder = stage.folder / "short"
    shutil.copytree(stage.tiny.model, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_weights_of_another_run_in_the_same_home_are_replaced(stage: Stage) -> None:
    """The folder holds a step 0 already, of other weights. What the chain says counts, not the number."""
    from node.versions import Versions

    other = stage.publish(stage.variant(0.5))
    versions = Versions(stage.connection(Key.generate()), stage.home("node").data / "weights")
    before = (versions.folder(other) / "model.safetensors").read_bytes()
    versions.close()
    world = World.another(stage.world.anvil, spec_digest=stage.tiny.spec.digest)
    second = Stage(world, stage.tiny, stage.folder / "second")
    try:
        published = second.publish()
        assert published.step == other.step
        versions = Versions(second.connection(Key.generate()), stage.home("node").data / "weights")
        assert (versions.folder(published) / "model.safetensors").read_bytes() != before
        versions.close()
    finally:
        second.close()


def test_a_node_makes_progress_with_every_chunk_of_weights(stage: Stage) -> None:
    from node.contributor.workbench import Workbench

    stage.publish()
    progress: list[int] = []
    connection, data = stage.connection(Key.generate()), stage.home("node").data
    bench = Workbench(
        connection, data, lambda _: TorchEngine("float32"), 0.0, lambda **_: None, lambda: progress.append(1)
    )
    try:
        bench._versions.newest()
        assert progress
    finally:
        bench.close()


def test_a_version_that_nobody_keeps_any_more_is_not_waited_for(stage: Stage) -> None:
    from node.versions import Versions
    from protocol.errors import Unavailable

    first = stage.publish()
    for _ in range(stage.tiny.spec.versions_kept):
        last = stage.publish()
    connection, asked = stage.connection(Key.generate()), []

    def look_up() -> list[Source]:
        asked.append(1)
        return connection.sources()

    versions = Versions(connection, stage.folder / "weights", sources=look_up)
    with pytest.raises(Unavailable, match="older than what anybody keeps"):
        versions.folder(first)
    assert asked == []
    assert versions.folder(last).exists()
    versions.close()


def test_a_version_in_many_files_travels_and_loads(stage: Stage) -> None:
    from node.versions import Versions

    whole = stage.publish()
    sharded = stage.publish(_in_shards(stage))
    versions = Versions(stage.connection(Key.generate()), stage.home("node").data / "weights")
    try:
        engine = TorchEngine("float32")
        hidden = []
        for publication in (whole, sharded):
            engine.load(versions.folder(publication))
            hidden.append(engine.prefill([([2, 3], [4])])[0])
        assert not (versions.folder(sharded) / "model.safetensors").exists()
        assert torch.equal(*hidden)
    finally:
        versions.close()


def _in_shards(stage: Stage) -> Path:
    from safetensors.torch import load_file, save_file

    folder = stage.folder / "shards"
    shutil.copytree(stage.tiny.model, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{i % 3:05}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def test_a_version_that_holds_more_than_its_weights_is_waited_out(stage: Stage) -> None:
    """One engine would read the file and another would not: honest nodes would look like cheats to each other."""
    from safetensors.torch import load_file, save_file

    folder = stage.folder / "more"
    shutil.copytree(stage.tiny.model, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, folder / "zzz.safetensors")
    node = stage.seated()
    stage.publish(folder)
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "'zzz.safetensors', which is no file of a version"), what="the status says so")
        assert not submitted(stage)
        stage.publish()
        eventually(lambda: [s.step for s in submitted(stage)], what="it works on the next version")
        assert {s.step for s in submitted(stage)} == {1}
        assert not ended.event.is_set()
