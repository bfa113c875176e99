"""Weights are written from front to back, and are the very files that the safetensors library writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from node.engine import tensor_files as module
from node.engine.tensor_files import tensor_files
from protocol.errors import UsageError


def some() -> dict[str, torch.Tensor]:
    dice = torch.Generator().manual_seed(5)

    def one(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=dice)

    return {
        "model.b.weight": one(7, 5).to(torch.bfloat16), "model.a.weight": one(5, 3).to(torch.bfloat16).T, "model.bias": one(3),
        "model.scalar": one(), "model.none": one(0, 4).to(torch.bfloat16), "model.half": one(9).to(torch.float16),
        "model.double": one(2).to(torch.float64), 'model."quoted"é': one(1),
    }  # fmt: skip


def test_a_file_is_byte_for_byte_what_safetensors_writes(tmp_path: Path) -> None:
    tensors = some()
    (file,), index = tensor_files(tensors, 1 << 30)
    file.write(tmp_path, tensors)
    theirs = tmp_path / "theirs"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, theirs, metadata={"format": "pt"})
    ours = tmp_path / "model.safetensors"
    assert ours.read_bytes() == theirs.read_bytes()
    assert ours.stat().st_size == file.size
    assert index is None


def test_many_files_have_an_index_and_the_sizes_that_were_said_before(tmp_path: Path) -> None:
    tensors = {f"layer.{number}": torch.full((100,), number, dtype=torch.bfloat16) for number in range(6)}
    files, index = tensor_files(tensors, 450)
    for file in files:
        file.write(tmp_path, tensors)
    assert index is not None
    assert len(files) == 3
    assert {file.name: file.size for file in files} == {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(json.loads(index)["weight_map"]) == set(tensors)


def test_a_file_grows_from_front_to_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what is shown before it is whole would be other bytes than it comes to have."""
    tensors = some()
    (file,), _ = tensor_files(tensors, 1 << 30)
    monkeypatch.setattr(module, "_PIECE", 16)
    seen: list[bytes] = []
    write = module.os.write

    def watching(fd: int, content: memoryview) -> int:
        count = write(fd, content)
        seen.append((tmp_path / file.name).read_bytes())
        return count

    monkeypatch.setattr(module.os, "write", watching)
    file.write(tmp_path, tensors)
    whole = (tmp_path / file.name).read_bytes()
    assert len(seen) > 10
    assert all(whole.startswith(part) for part in seen)


def test_a_type_that_no_weights_have_is_refused() -> None:
    with pytest.raises(UsageError):
        tensor_files({"ids": torch.zeros(3, dtype=torch.int64)}, 1 << 30)
