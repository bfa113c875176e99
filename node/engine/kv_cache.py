"""Keys and values of the sequences that decode: memory that is taken once, a row of it for each sequence.

A step writes one token of every row in its place and attends to what is there: nothing is copied, whatever the rows' lengths are.
Rows 0 … B-1 are in use; where one leaves, others move up, such that rows of like length lie side by side: attention.py takes them
in runs, each no wider than its longest row. The model sees an object of transformers' `Cache` interface. What is cached is the
model's affair: keys and values of each head, or the latents of DeepSeek-V3, once per layer that asks.

Does not cover: states of linear attention; a ring for layers that see a window alone; memory in pages.

Shapes: B rows in use, H heads of keys, T tokens of the longest prompt of a prefill, W tokens of the longest row, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RUNS = 8
"""Runs of neighbouring rows, at most, that are computed each by itself."""
_RUN_ROWS = 8  # fewer are not worth a call of their own
_ALIKE = 0.9  # neighbours whose longest rows differ by less than this are one run


@dataclass(frozen=True)
class Run:
    """Rows `first` … `last` - 1, of which tokens `start` … `end` - 1 are read; `mask` [rows, 1, 1, end - start] is added to the
    scores: -inf where a row has no such token. None: all of them have all."""

    first: int
    last: int
    start: int
    end: int
    mask: Tensor | None


class Step:
    """What attention has to know of one step of decoding: the tokens of each row, the new one included."""

    def __init__(self, lengths: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self._lengths = list(lengths)
        self._dtype, self._device = dtype, device
        self._tensor = torch.tensor(self._lengths, device=device)
        self._runs: dict[int | None, list[Run]] = {}
        self.rows = torch.arange(len(self._lengths), device=device)
        self.places = self._tensor - 1
        """Of the new token in each row [B]."""
        self.width = max(self._lengths)
        self.is_even = min(self._lengths) == self.width

    def runs(self, window: int | None) -> list[Run]:
        """The runs of all rows, for layers that see so many tokens back; made once for all of these."""
        if window is not None and window >= self.width:
            window = None
        if window not in self._runs:
            self._runs[window] = [self._run(first, last, window) for first, last in self._parts()]
        return self._runs[window]

    def _parts(self) -> list[tuple[int, int]]:
        size = run_size(len(self._lengths))
        parts: list[tuple[int, int]] = []
        for first in range(0, len(self._lengths), size):
            last = min(first + size, len(self._lengths))
            if parts:
                before = max(self._lengths[parts[-1][0] : parts[-1][1]])
                here = max(self._lengths[first:last])
                if min(before, here) >= _ALIKE * max(before, here):
                    parts[-1] = (parts[-1][0], last)
                    continue
            parts.append((first, last))
        return parts

    def _run(self, first: int, last: int, window: int | None) -> Run:
        lengths = self._lengths[first:last]
        end = max(lengths)
        start = max(0, min(lengths) - window) if window else 0
        if min(lengths) == end and (window is None or end - start <= window):
            return Run(first, last, start, end, None)
        of = self._tensor[first:last, None]
        at = torch.arange(start, end, device=self._device)
        seen = at < of
        if window:
            seen &= at >= of - window
        mask = torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill_(~seen, -torch.inf)
        return Run(first, last, start, end, mask[:, None, None])


def run_size(rows: int) -> int:
    return max(_RUN_ROWS, -(-rows // RUNS))


def without(lengths: Sequence[int], leaving: Sequence[int]) -> list[int]:
    """The rows that stay, in their new order: what stands at n moves to n.

    A row that leaves is replaced by the longest of the next run, that one by the longest of the run after it, and so on: lengths go
    on falling from run to run, as they do where new rows come last, and few rows move.
    """
    of = list(lengths)
    size = run_size(len(of))
    order = list(range(len(of)))
    for row in leaving:
        of[row] = -1
    for row in sorted(leaving, reverse=True):
        hole = order.index(row)
        while (following := (hole // size + 1) * size) < len(order):
            places = range(following, min(following + size, len(order)))
            donor = max(places, key=lambda place: of[order[place]])
            order[hole], hole = order[donor], donor
        order[hole] = order[-1]
        order.pop()
    return order


@dataclass(frozen=True)
class Joining:
    """Where the prompts of a prefill go: prompt i has `lengths[i]` tokens, and `counts[i]` rows from the first free one on."""

    lengths: Sequence[int]
    counts: Sequence[int]
    keep: bool
    """Whether the last prompt is kept beside the rows, for samples that come later."""


class KeyValueCache:
    """`rows` rows of `width` tokens each, taken when the first layer writes."""

    def __init__(self, rows: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._doing: Joining | Step | None = None
        self.lengths: list[int] = []
        """Tokens of each row in use."""

    @property
    def nbytes(self) -> int:
        """Bytes taken, of all layers."""
        return sum(part.nbytes for of in (self._layers, self._kept) for parts in of.values() for part in parts)

    # ---- between forward passes ------------------------------------------------------------------------------------------

    def join(self, joining: Joining) -> None:
        """What the next forward pass computes are these prompts, right-padded."""
        self._doing = joining
        self._kept = {}

    def joined(self) -> None:
        """The pass is over: its rows are in use."""
        assert isinstance(self._doing, Joining)
        for length, count in zip(self._doing.lengths, self._doing.counts, strict=True):
            self.lengths += [length] * count
        self._doing = None

    def join_kept(self, length: int, count: int, *, keep: bool) -> None:
        """More rows of the prompt that was kept."""
        first = len(self.lengths)
        for layer, parts in self._kept.items():
            for store, part in zip(self._layers[layer], parts, strict=True):
                store[first : first + count, :, :length] = part
        self.lengths += [length] * count
        if not keep:
            self._kept = {}

    def step(self, dtype: torch.dtype, device: torch.device) -> Step:
        """What the next forward pass computes is one more token of every row."""
        self.lengths = [length + 1 for length in self.lengths]
        self._doing = Step(self.lengths, dtype, device)
        return self._doing

    def leave(self, rows: Sequence[int]) -> list[int]:
        """These rows end. The rows that stay, in their new order."""
        order = without(self.lengths, rows)
        moved = [(new, old) for new, old in enumerate(order) if new != old]
        if moved:
            width = max(self.lengths[old] for _, old in moved)
            stores = [store for parts in self._layers.values() for store in parts]
            to, source = torch.tensor(moved, device=stores[0].device).unbind(1)
            for store in stores:
                store[to, :, :width] = store[source, :, :width]
        self.lengths = [self.lengths[old] for old in order]
        return order

    # ---- what the model calls --------------------------------------------------------------------------------------------

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Writes what a layer has computed, [B, H, T, D] of a prefill or [B, H, 1, D] of a step, and gives back what it attends to:
        of a prefill the same, of a step [B, H, W, D], views of the rows in use."""
        if layer not in self._layers:
            self._layers[layer] = (self._take(keys), self._take(values))
        write = self._join if isinstance(self._doing, Joining) else self._append
        stores = self._layers[layer]
        if isinstance(self._doing, Joining) and self._doing.keep:
            length = self._doing.lengths[-1]
            self._kept[layer] = (keys[-1, :, :length].clone(), values[-1, :, :length].clone())
        return write(stores[0], keys), write(stores[1], values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Part of transformers' interface; a model asks where it is told no positions."""
        return 0 if isinstance(self._doing, Joining) else max(self.lengths, default=1) - 1

    def _take(self, like: Tensor) -> Tensor:
        # Zeros: what is masked is multiplied by nought, and memory as it comes may hold NaN.
        return like.new_zeros(self._rows, like.shape[1], self._width, like.shape[3])

    def _join(self, store: Tensor, new: Tensor) -> Tensor:
        assert isinstance(self._doing, Joining)
        first = len(self.lengths)
        for prompt, (length, count) in enumerate(zip(self._doing.lengths, self._doing.counts, strict=True)):
            store[first : first + count, :, :length] = new[prompt, :, :length]
            first += count
        return new

    def _append(self, store: Tensor, new: Tensor) -> Tensor:
        step = self._doing
        assert isinstance(step, Step)
        seen = store[: len(self.lengths), :, : step.width]
        if step.is_even:
            seen[:, :, -1:] = new
        else:
            store[step.rows, :, step.places] = new.squeeze(2)
        return seen
