"""Sequence packing: samples of all lengths in rows of one width, none of them seeing another.

Attention is block-diagonal and causal, positions restart with each sample. First-fit decreasing; a sample longer than the
width makes its row wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class TrainingSample:
    """Token ids of prompt and completion, and the advantage of every completion token."""

    prompt: NDArray[np.int32]
    completion: NDArray[np.int32]
    advantage: float

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True)
class PackedRows:
    """R rows of W tokens. `targets` and `advantages` stand at the position that predicts them.

    ids, positions [R, W]; mask [R, 1, W, W], True where attention goes; predicts [R, W], True where the next token belongs
    to a completion; targets, advantages [R, W].
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    predicts: Tensor
    targets: Tensor
    advantages: Tensor

    @property
    def tokens(self) -> int:
        """Completion tokens."""
        return int(self.predicts.sum())


def pack(samples: Sequence[TrainingSample], width: int, rows_at_once: int) -> list[PackedRows]:
    """Packs all samples into batches of at most `rows_at_once` rows."""
    rows = _fit(samples, width)
    return [
        _tensors([[samples[i] for i in row] for row in rows[k : k + rows_at_once]])
        for k in range(0, len(rows), rows_at_once)
    ]


def _fit(samples: Sequence[TrainingSample], width: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(samples)), key=lambda i: -len(samples[i])):
        length = len(samples[i])
        row = next((r for r, free in enumerate(room) if free >= length), None)
        if row is None:
            rows.append([])
            room.append(max(width, length))
            row = len(rows) - 1
        rows[row].append(i)
        room[row] -= length
    return rows


def _tensors(rows: list[list[TrainingSample]]) -> PackedRows:
    width = max(sum(len(sample) for sample in row) for row in rows)
    shape = (len(rows), width)
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segment = np.full(shape, -1, np.int64)
    predicts, targets = np.zeros(shape, bool), np.zeros(shape, np.int64)
    advantages = np.zeros(shape, np.float32)
    for r, row in enumerate(rows):
        start = 0
        for number, sample in enumerate(row):
            end, first = start + len(sample), start + len(sample.prompt) - 1
            ids[r, start:end] = np.concatenate([sample.prompt, sample.completion])
            positions[r, start:end] = np.arange(len(sample))
            segment[r, start:end] = number
            predicts[r, first : end - 1] = True
            targets[r, first : end - 1] = sample.completion
            advantages[r, first : end - 1] = sample.advantage
            start = end
    segments = torch.from_numpy(segment)
    same = segments[:, :, None] == segments[:, None, :]
    mask = (same & torch.ones(width, width, dtype=torch.bool).tril())[:, None]
    return PackedRows(
        torch.from_numpy(ids), torch.from_numpy(positions), mask, torch.from_numpy(predicts), torch.from_numpy(targets),
        torch.from_numpy(advantages),
    )  # fmt: skip
