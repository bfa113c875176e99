"""The first load makes the model that transformers itself reads, and takes it from the files to the device: the host never holds it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from benches.memory import peak_bytes
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from node.engine import weights
from node.engine.settings import EngineSettings
from node.engine.torch_engine import TorchEngine
from node.engine.weights import build_model, read_model, stored_tensors, unfilled, write_tensors
from protocol.errors import ConfigError, IntegrityError
from protocol.model_files import INDEX, WEIGHTS, weight_files
from tests.engine.models import RIGHT, make
from trainer.models.pretrained import make_policy

META = torch.device("meta")
DTYPES = (torch.float32, torch.bfloat16)
LARGER = RIGHT["llama"] | {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8}


@pytest.mark.parametrize("name", RIGHT)
def test_the_model_is_the_one_that_transformers_reads(name: str, tmp_path: Path) -> None:
    make_policy(make(RIGHT[name], tmp_path / "theirs"), tmp_path / "policy")
    for dtype in DTYPES:
        found, (expected, _) = build_model(tmp_path / "policy", dtype), read_model(tmp_path / "policy", dtype)
        ours, theirs = stored_tensors(found), stored_tensors(expected)  # of tied tensors one
        assert ours.keys() == theirs.keys()
        for model, stored in ((found, ours), (expected, theirs)):
            stored |= dict(model.named_buffers())
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            assert ours[key].dtype == tensor.dtype, key
            assert ours[key].device == tensor.device, key
            assert torch.equal(ours[key], tensor), key
        assert found.config.to_dict() | {"_name_or_path": ""} == expected.config.to_dict() | {"_name_or_path": ""}
        assert not found.training


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model of 16 MiB in files of 2 MiB at most."""
    folder = make(LARGER, tmp_path / "model")
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    write_tensors(folder, {name: tensor.nbytes for name, tensor in tensors.items()}, tensors.__getitem__, 2 << 20)
    return folder


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> TorchEngine:
    """An engine on a device whose memory is not the host's: torch's meta device stands in for it."""
    monkeypatch.setattr("node.engine.device.named", lambda _: META)
    return TorchEngine("bfloat16", EngineSettings(threads=1))


def test_the_host_never_holds_the_model(sharded: Path, elsewhere: TorchEngine) -> None:
    files = [(sharded / name).stat().st_size for name in weight_files(sharded)]
    assert len(files) > 6
    assert sum(files) > 5 * max(files)
    # A file that is open counts as a whole, though of what is mapped only what is read takes memory.
    assert peak_bytes(lambda: elsewhere.load(sharded)) < 2 * max(files)
    assert {tensor.device for tensor in stored_tensors(elsewhere._model).values()} == {META}


class Reader:
    """A file that keeps count of which tensors were taken from it."""

    def __init__(self, file: Any, path: Path, taken: Counter[tuple[str, str]]) -> None:
        self._file, self._path, self._taken = file, path, taken

    def get_tensor(self, name: str) -> torch.Tensor:
        self._taken[Path(self._path).name, name] += 1
        return self._file.get_tensor(name)

    def get_slice(self, name: str) -> Any:
        """Its shape and type stand in the header; what is taken of it is read."""
        taken, of = self._taken, self._file.get_slice(name)

        class Slice:
            get_shape, get_dtype = staticmethod(of.get_shape), staticmethod(of.get_dtype)

            def __getitem__(_, key: Any) -> torch.Tensor:
                taken[Path(self._path).name, name] += 1
                return of[key]

        return Slice()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """How often each tensor of each file was read, by whomever."""
    counts: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def opened(path: Path, *how: Any, **more: Any) -> Iterator[Reader]:
        with safe_open(path, *how, **more) as file:
            yield Reader(file, path, counts)

    monkeypatch.setattr(weights, "safe_open", opened)
    return counts


def test_a_load_reads_every_tensor_once(sharded: Path, taken: Counter[tuple[str, str]]) -> None:
    engine = TorchEngine("bfloat16", EngineSettings(device="cpu", threads=1))
    engine.load(sharded)
    assert len(taken) == len(stored_tensors(engine._model))
    assert set(taken.values()) == {1}
    engine.load(sharded)
    assert set(taken.values()) == {2}


@pytest.mark.parametrize("fault", ["missing", "unknown", "of another shape", "of integers"])
def test_nothing_is_read_of_a_version_whose_headers_are_wrong(
    sharded: Path, taken: Counter[tuple[str, str]], fault: str
) -> None:
    engine = TorchEngine("bfloat16", EngineSettings(device="cpu", threads=1))
    engine.load(sharded)
    taken.clear()
    last = sharded / max(weight_files(sharded))
    found = load_file(last)
    name = sorted(found)[-1]
    right = found.pop(name)
    match fault:
        case "unknown":
            found["stranger"] = right
        case "of another shape":
            found[name] = right.reshape(-1)[:1].clone()
        case "of integers":
            found[name] = right.to(torch.int32)
    save_file(found, last, {"format": "pt"})
    with pytest.raises(IntegrityError):
        engine.load(sharded)
    assert not taken


def test_weights_that_are_not_the_model_s_leave_an_engine_without_one(sharded: Path) -> None:
    last = sharded / max(weight_files(sharded))
    right = load_file(last)
    wrong = {name: tensor.clone() for name, tensor in right.items()}
    next(iter(wrong.values())).view(-1)[-1] = torch.nan
    save_file(wrong, last, {"format": "pt"})
    engine = TorchEngine("bfloat16", EngineSettings(device="cpu", threads=1))
    with pytest.raises(IntegrityError, match="holds NaN or infinity"):
        engine.load(sharded)
    assert engine._model is None
    save_file(right, last, {"format": "pt"})
    engine.load(sharded)
    assert {tensor.dtype for tensor in stored_tensors(engine._model).values()} == {torch.bfloat16}


@pytest.mark.parametrize("fault", ["missing", "unknown", "of another shape"])
def test_no_memory_is_taken_for_weights_that_are_not_there(
    sharded: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A version of some bytes may say in its config.json that it is as large as it likes."""
    last = sharded / max(weight_files(sharded))
    found = load_file(last)
    name = sorted(found)[0]
    taken = found.pop(name)
    if fault != "missing":
        found[name if fault == "of another shape" else "stranger"] = taken.reshape(-1)[:1].clone()
    save_file(found, last, {"format": "pt"})
    (sharded / INDEX).unlink(missing_ok=True)
    for taker in ("materialise", "_computed"):
        monkeypatch.setattr(weights, taker, lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(IntegrityError):
        TorchEngine("bfloat16", EngineSettings(device="cpu", threads=1)).load(sharded)


def test_a_buffer_that_the_model_says_nothing_of_is_an_error(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaPreTrainedModel

    monkeypatch.setattr(LlamaPreTrainedModel, "_init_weights", lambda *_: None)
    with pytest.raises(IntegrityError, match=r"does not say what the buffer model\.rotary_emb\.inv_freq holds"):
        unfilled(sharded, torch.float32)


def test_an_import_refuses_a_model_that_its_config_alone_does_not_make(tmp_path: Path) -> None:
    theirs = make(RIGHT["llama"], tmp_path / "theirs")  # its head is another tensor than its embeddings
    config = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(ConfigError, match=r"differs from the one that transformers reads, in lm_head\.weight"):
        make_policy(theirs, tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_an_import_compares_what_no_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = make(RIGHT["llama"], tmp_path / "theirs")

    def otherwise(model: Any, module: Any, names: list[str], over: int) -> list[torch.Tensor]:
        for name in names:
            module._buffers[name] = torch.ones_like(module.get_buffer(name), device="cpu")
        return [module.get_buffer(name) for name in names]

    monkeypatch.setattr(weights, "_computed", otherwise)
    with pytest.raises(ConfigError, match=r"in model\.rotary_emb\.inv_freq"):
        make_policy(theirs, tmp_path / "policy")
