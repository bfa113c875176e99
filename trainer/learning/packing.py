"""Sequence packing: samples of all lengths in rows of one width, none of them seeing another.

Samples with the same prompt share it: a *unit* is a prompt once and after it some of its completions, each of which sees
the prompt and itself. Positions go on from the prompt in every completion, so that nothing but the layout differs from each
sample alone. What a model was given between turns is part of a completion here: it is attended to, and nothing is learnt from it. Units fill rows best-fit decreasing; what is longer than the width makes its row wider.

Shapes: R rows of W tokens; N generated tokens of S samples, flat, sample after sample.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PROMPT, _NOTHING = 0, -1

Layout = tuple[tuple[tuple[int, ...], ...], ...]
"""Rows of units of lengths: a prompt's, then those of the completions that follow it. What is left of a row is padding."""


@dataclass(frozen=True)
class TrainingSample:
    """Token ids of the prompt and of all that follows it, and the advantage of every generated token.

    `generated` tells of each token after the prompt whether the model made it, None where it made all of them; the others get no
    loss. `logprobs` are those its node claims to have sampled the generated tokens with, where they are known; `name` is for
    messages.
    """

    prompt: NDArray[np.int32]
    completion: NDArray[np.int32]
    advantage: float
    logprobs: NDArray[np.float32] | None = None
    name: str = ""
    generated: NDArray[np.bool_] | None = None

    @property
    def learnt(self) -> NDArray[np.int32]:
        """The generated tokens: those that get a loss."""
        return self.completion if self.generated is None else self.completion[self.generated]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True)
class PackedRows:
    """ids, positions [R, W]. unit [R, W]: the unit a token belongs to, −1 for padding. branch [R, W]: 0 for prompts, else the
    number of the completion within its unit. source [N]: index into the flattened rows of the position that predicts a
    generated token; targets [N] its id; advantages [N]; behaviour [N], its claimed logprob, or None where some are not known;
    sample [N] its index into `samples`; lengths [S] generated tokens. layout: where all of it lies, given tokens included.
    """

    ids: Tensor
    positions: Tensor
    unit: Tensor
    branch: Tensor
    source: Tensor
    targets: Tensor
    advantages: Tensor
    behaviour: Tensor | None
    sample: Tensor
    lengths: Tensor
    samples: tuple[TrainingSample, ...]
    layout: Layout

    def to(self, device: torch.device) -> PackedRows:
        """The same on another device."""
        moved = {f.name: v.to(device) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return replace(self, **moved)

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return len(self.targets)

    @property
    def mask_entries(self) -> int:
        rows, width = self.ids.shape
        return int(rows * width**2)

    @property
    def mask(self) -> Tensor:
        """[R, 1, W, W], True where attention goes. Made when asked for: it may be far larger than all the rest."""
        same = self.unit[:, :, None] == self.unit[:, None, :]
        branch = self.branch[:, None, :]
        seen = (self.branch[:, :, None] == branch) | (branch == _PROMPT)
        return (same & seen).tril()[:, None]

    def within(self, window: int) -> Tensor:
        """The same mask for layers that see the last `window` tokens: of a prompt and its completion, wherever they lie in the row."""
        return self.mask & (self.positions[:, :, None] - self.positions[:, None, :] < window)[:, None]


@dataclass(frozen=True)
class _Unit:
    prompt: NDArray[np.int32]
    samples: list[TrainingSample]

    def __len__(self) -> int:
        return len(self.prompt) + sum(len(sample.completion) for sample in self.samples)


def pack(samples: Sequence[TrainingSample], width: int, rows_at_once: int) -> list[PackedRows]:
    """Packs all samples into batches of at most `rows_at_once` rows."""
    units = _units(samples, width)
    rows = [[units[i] for i in row] for row in fit([len(unit) for unit in units], width)]
    return [_tensors(rows[k : k + rows_at_once]) for k in range(0, len(rows), rows_at_once)]


def fit(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Indices of what goes into each row: best-fit decreasing, O(n log n)."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, row), ascending; full rows leave
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        found = bisect_left(room, (lengths[i], 0))
        if found < len(room):
            free, row = room.pop(found)
        else:
            free, row = max(width, lengths[i]), len(rows)
            rows.append([])
        rows[row].append(i)
        if free > lengths[i]:
            insort(room, (free - lengths[i], row))
    return rows


def _units(samples: Sequence[TrainingSample], width: int) -> list[_Unit]:
    by_prompt: dict[bytes, list[TrainingSample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt.tobytes(), []).append(sample)
    units = []
    for siblings in by_prompt.values():
        prompt = siblings[0].prompt
        for row in fit([len(sample.completion) for sample in siblings], max(1, width - len(prompt))):
            units.append(_Unit(prompt, [siblings[i] for i in row]))
    return units


def _tensors(rows: list[list[_Unit]]) -> PackedRows:
    width = max(sum(len(unit) for unit in row) for row in rows)
    shape = (len(rows), width)
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    unit_of, branch = np.full(shape, _NOTHING, np.int32), np.full(shape, _NOTHING, np.int32)
    source: list[NDArray[np.int64]] = []
    samples: list[TrainingSample] = []
    for r, row in enumerate(rows):
        at = 0
        for number, unit in enumerate(row):
            prompt, start = len(unit.prompt), at
            ids[r, at : at + prompt] = unit.prompt
            positions[r, at : at + prompt] = np.arange(prompt)
            branch[r, at : at + prompt] = _PROMPT
            at += prompt
            for k, sample in enumerate(unit.samples):
                end = at + len(sample.completion)
                ids[r, at:end] = sample.completion
                positions[r, at:end] = np.arange(prompt, prompt + len(sample.completion))
                branch[r, at:end] = k + 1
                predicting = np.arange(at - 1, end - 1)
                predicting[:1] = start + prompt - 1  # the prompt's last token predicts every completion's first
                source.append((predicting if sample.generated is None else predicting[sample.generated]) + r * width)
                samples.append(sample)
                at = end
            unit_of[r, start:at] = number
    learnt = [sample.learnt for sample in samples]
    lengths = np.array([len(tokens) for tokens in learnt])
    claimed = [sample.logprobs for sample in samples if sample.logprobs is not None]
    return PackedRows(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        unit=torch.from_numpy(unit_of),
        branch=torch.from_numpy(branch),
        source=torch.from_numpy(np.concatenate(source)),
        targets=torch.from_numpy(np.concatenate(learnt).astype(np.int64)),
        advantages=torch.from_numpy(np.repeat([np.float32(sample.advantage) for sample in samples], lengths)),
        behaviour=torch.from_numpy(np.concatenate(claimed)) if len(claimed) == len(samples) else None,
        sample=torch.from_numpy(np.repeat(np.arange(len(samples)), lengths)),
        lengths=torch.from_numpy(lengths),
        samples=tuple(samples),
        layout=tuple(tuple((len(u.prompt), *(len(s.completion) for s in u.samples)) for u in row) for row in rows),
    )
