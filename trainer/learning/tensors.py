"""Named tensors on disk by torch.distributed.checkpoint: every rank writes its own shards, any number of ranks reads them.

The files are safetensors (shard-R-….safetensors); no pickle is written or read. Which file holds which part of a tensor
stands in the files themselves, so that a folder written by four ranks can be read by one, or by eight.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageReader, HuggingFaceStorageWriter

from protocol.errors import IntegrityError

FILE_BYTES = 2 << 30
"""Of each rank in each file: a file is put together in memory before it is written."""
_LOGGER = "c10d-NullHandler-dcp_logger"


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes this rank's part; all ranks call it with the same names. Raises OSError, on every rank, when one could not."""
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=_files(tensors), save_distributed=True)
    try:
        with _quiet():
            dcp.save(dict(tensors), storage_writer=writer, no_dist=not dist.is_initialized())
    except CheckpointException as error:
        raise _first(error) from None  # its text is made of its causes: as a cause of one of them it would have no end


def _files(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of the file that holds each tensor, the same on all ranks."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    numbers, size, number = {}, 0, 1
    for name, tensor in tensors.items():
        own = -(-tensor.numel() * tensor.element_size() // ranks)
        if size and size + own > FILE_BYTES:
            size, number = 0, number + 1
        size += own
        numbers[name] = number
    return numbers


def read_into(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fills tensors, or this rank's shards of them, with what was written under their names. Raises IntegrityError."""
    try:
        reader = HuggingFaceStorageReader(str(folder))
        with _quiet():
            dcp.load(dict(tensors), storage_reader=reader, no_dist=not dist.is_initialized())
    except (CheckpointException, SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise IntegrityError(f"cannot read {folder}: {str(error)[:300]}") from error


def shapes(folder: Path) -> dict[str, torch.Size]:
    """What a folder holds. Raises IntegrityError."""
    try:
        found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        return {name: torch.Size(tensor.size) for name, tensor in found.items()}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise IntegrityError(f"cannot read {folder}: {str(error)[:300]}") from error


def read(folder: Path, prefix: str) -> dict[str, Tensor]:
    """All float32 tensors whose names begin with `prefix`, which is left out. For one process alone."""
    made = {name: torch.empty(shape) for name, shape in shapes(folder).items() if name.startswith(prefix)}
    if not made:
        raise IntegrityError(f"{folder} holds nothing named {prefix}…")
    read_into(folder, made)
    return {name.removeprefix(prefix): tensor for name, tensor in made.items()}


def read_one(folder: Path, name: str, shape: Sequence[int]) -> Tensor:
    """One float32 tensor, whole. For one process alone. Raises IntegrityError."""
    tensor = torch.empty(tuple(shape))
    read_into(folder, {name: tensor})
    return tensor


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that one process is one process, and a debug line per tensor."""
    logging.getLogger(_LOGGER).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _first(error: CheckpointException) -> OSError:
    """What one of the ranks met."""
    for met in error.failures.values():
        cause = met[0]
        if isinstance(cause, OSError):
            return OSError(cause.errno, cause.strerror)
        return OSError(str(cause)[:300])
    return OSError(str(error)[:300])
