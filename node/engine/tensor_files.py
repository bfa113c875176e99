"""Writes weights as safetensors from front to back, so that what is written of a file can be read while the rest is to come.

The files are the very ones that the safetensors library writes (a test compares), which shows a file only when it is whole. Their
sizes are known before the first byte of weights is written.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from node.engine.weights import shards
from protocol.errors import UsageError

_KINDS = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""Names of types, in the order in which a file holds them."""

_PIECE = 4 << 20  # bytes written at once


@dataclass(frozen=True)
class TensorFile:
    """A file that will hold the tensors `names` in this order, behind `head`; `size` is all of it, in bytes."""

    name: str
    head: bytes
    names: tuple[str, ...]
    size: int

    def write(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raises OSError."""
        with (folder / self.name).open("xb", buffering=0) as file:
            _write(file.fileno(), memoryview(self.head))
            for name in self.names:
                _write(file.fileno(), tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)


def tensor_files(tensors: Mapping[str, torch.Tensor], most: int) -> tuple[list[TensorFile], bytes | None]:
    """The files that hold these tensors, which lie on the CPU, and their index where one of `most` bytes does not hold them all; as
    Hugging Face names them. Raises UsageError for a type that is none of weights."""
    files, index = shards({name: tensor.nbytes for name, tensor in tensors.items()}, most)
    return [_file(name, {key: tensors[key] for key in keys}) for name, keys in files.items()], index


def _file(name: str, tensors: Mapping[str, torch.Tensor]) -> TensorFile:
    if odd := {tensor.dtype for tensor in tensors.values()} - _KINDS.keys():
        raise UsageError(f"weights of type {odd.pop()} are not published")
    order = list(_KINDS)
    names = sorted(tensors, key=lambda key: (order.index(tensors[key].dtype), key))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key in names:
        tensor = tensors[key]
        begin, end = end, end + tensor.nbytes
        header[key] = {"dtype": _KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    return TensorFile(name, head, tuple(names), len(head) + end)


def _write(fd: int, content: memoryview) -> None:
    while content:
        content = content[os.write(fd, content[:_PIECE]) :]
