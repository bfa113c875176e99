"""What attention has to know of one step of decoding: which tokens each row sees, and which rows are computed together.

A row sees its prompt, which it shares with the other samples of it, and tokens of its own, the new one included. Rows of one prompt
attend to that in one product (`Shared`); to their own tokens rows attend in runs of like length (`Run`). What is made here serves all
layers of a step, and what depends on nothing but who decodes serves until a row joins or leaves (`Sharing`).

Does not cover: where keys and values lie (kv_cache.py), the arithmetic (row_attention.py).

Shapes: B rows in use, P prompts, G rows of a prompt at most, W columns of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

RUNS = 8
"""Runs of neighbours, at most, that are computed each by itself."""
_RUN_SIZE = 8  # fewer are not worth a call of their own
_IN_VAIN = 512
"""Tokens of rows that may be computed in vain where that spares a call: neighbours of unlike length or number are padded to the largest."""


@dataclass(frozen=True)
class Run:
    """Rows `first` … `last` - 1 and the blocks of their own tokens that they see, `width` tokens in all.

    Their scores have 1 + `width` columns, of which the first stands for the prompt. `mask` [rows, 1, 1, 1 + width] is added to them, -inf
    where a row sees nothing; None: all rows see the first `seen` columns.
    """

    first: int
    last: int
    blocks: range
    width: int
    seen: int
    mask: Tensor | None


@dataclass(frozen=True)
class Shared:
    """Prompts `first` … `last` - 1, of which tokens `start` … `end` - 1 are read by `group` rows each.

    `mask` [prompts, 1 or group, end - start] is added to the scores, -inf where a row sees nothing; None: all see all. A row that sees
    nothing of its prompt is not masked, for a softmax over nothing is no number: its Run gives that no weight.
    """

    first: int
    last: int
    group: int
    start: int
    end: int
    mask: Tensor | None


class Sharing:
    """Which rows share which prompts."""

    def __init__(
        self, prompt_of: Sequence[int], lengths: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        """`prompt_of` [B] names each row's prompt, `lengths` [P] are the tokens of each."""
        self.dtype = dtype
        self.lengths = torch.tensor(lengths, device=device)
        self.of_rows = self.lengths[torch.tensor(prompt_of, device=device)]
        """Tokens of each row's prompt [B]."""
        members: list[list[int]] = [[] for _ in lengths]
        for row, prompt in enumerate(prompt_of):
            members[prompt].append(row)
        counts = [max(1, len(rows)) for rows in members]
        self._parts = list(_asked_together(list(zip(counts, lengths, strict=True))))
        asked: list[int] = []
        found = [0] * len(prompt_of)
        for first, last, group, _ in self._parts:
            for rows in members[first:last]:
                for place, row in enumerate(rows, len(asked)):
                    found[row] = place
                asked += rows + [0] * (group - len(rows))
        in_order = asked == list(range(len(prompt_of)))
        self.asked = None if in_order else torch.tensor(asked, device=device)
        """The row at each place, where every prompt has as many places as the largest group beside it; None: the rows as they are."""
        self.found = None if in_order else torch.tensor(found, device=device)
        """The place of each row [B]."""

    @cached_property
    def whole(self) -> list[Shared]:
        """For rows that see all of their prompts."""
        return [
            Shared(first, last, group, 0, end, self._added(self._within(first, last, 0, end)))
            for first, last, group, end in self._parts
        ]

    def through(self, own: Tensor, window: int) -> list[Shared]:
        """For rows with so many tokens of their own [B] that see `window` tokens back, the new one included."""
        asked = own if self.asked is None else own[self.asked]
        made, at = [], 0
        for first, last, group, end in self._parts:
            places = (last - first) * group
            tokens = asked[at : at + places].view(last - first, group)
            at += places
            lowest = self.lengths[first:last, None] + tokens - window
            start = min(max(0, int(lowest.min())), end - 1)
            reached = torch.arange(start, end, device=own.device) >= lowest[..., None]
            seen = self._within(first, last, start, end) & reached | (tokens >= window)[..., None]
            made.append(Shared(first, last, group, start, end, self._added(seen)))
        return made

    def _within(self, first: int, last: int, start: int, end: int) -> Tensor:
        """Which tokens belong to the prompts [prompts, 1, end - start]."""
        return torch.arange(start, end, device=self.lengths.device) < self.lengths[first:last, None, None]

    def _added(self, seen: Tensor) -> Tensor | None:
        return None if seen.all() else _mask(seen, self.dtype)


class Step:
    """One more token of every row."""

    def __init__(self, own: Sequence[int], blocks: Sequence[int], sharing: Sharing) -> None:
        """`own` [B] counts the tokens of each row after its prompt, the new one included, which lie in blocks of these sizes."""
        self.own = list(own)
        self.sharing = sharing
        self._starts = [0, *accumulate(blocks)]
        self._tensor = torch.tensor(self.own, device=sharing.lengths.device)
        self._runs: dict[int | None, list[Run]] = {}
        self._shared: dict[int | None, list[Shared]] = {}
        self.places = sharing.of_rows + self._tensor - 1
        """Of the new token in each row [B], its prompt counted."""

    @cached_property
    def writes(self) -> list[tuple[int, Tensor | None, Tensor | int]]:
        """Where the new tokens go: a block, rows, and the place of each within the block. None: all rows, at one place."""
        if min(self.own) == max(self.own):
            block = self._block(self.own[0] - 1)
            return [(block, None, self.own[0] - 1 - self._starts[block])]
        rows: dict[int, list[int]] = {}
        for row, tokens in enumerate(self.own):
            rows.setdefault(self._block(tokens - 1), []).append(row)
        device = self._tensor.device
        chosen = {block: torch.tensor(of, device=device) for block, of in rows.items()}
        return [(block, of, self._tensor[of] - 1 - self._starts[block]) for block, of in chosen.items()]

    def runs(self, window: int | None) -> list[Run]:
        """The runs of all rows, for layers that see so many tokens back."""
        window = self._cutting(window)
        if window not in self._runs:
            self._runs[window] = [self._run(first, last, window) for first, last in _parts(self.own)]
        return self._runs[window]

    def shared(self, window: int | None) -> list[Shared]:
        """The prompts, for layers that see so many tokens back; none where no row sees any of its own."""
        window = self._cutting(window)
        if window is None:
            return self.sharing.whole
        if window not in self._shared:
            sees = min(self.own) < window
            self._shared[window] = self.sharing.through(self._tensor, window) if sees else []
        return self._shared[window]

    def _cutting(self, window: int | None) -> int | None:
        return None if window is None or window >= self._longest else window

    @cached_property
    def _longest(self) -> int:
        return int(self.places.max()) + 1

    def _block(self, place: int) -> int:
        return next(block for block, start in enumerate(self._starts[1:]) if place < start)

    def _run(self, first: int, last: int, window: int | None) -> Run:
        own = self.own[first:last]
        unseen = max(0, min(own) - window) if window else 0
        blocks = range(self._block(unseen), self._block(max(own) - 1) + 1)
        start, end = self._starts[blocks.start], self._starts[blocks.stop]
        if min(own) == max(own) and (window is None or max(own) < window):
            return Run(first, last, blocks, end - start, 1 + own[0], None)
        of = self._tensor[first:last, None]
        at = torch.arange(start - 1, end, device=of.device)  # the first column stands for the prompt
        seen = at < of
        if window is not None:
            seen &= at >= of - window
            seen[:, :1] = of < window
        else:
            seen[:, 0] = True
        return Run(first, last, blocks, end - start, 0, _mask(seen, torch.float32)[:, None, None])


def _parts(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbours of like length: first and last + 1 of each part."""
    size = run_size(len(lengths))
    found: list[tuple[int, int]] = []
    width = 0
    for first in range(0, len(lengths), size):
        last = min(first + size, len(lengths))
        here = max(lengths[first:last])
        if found:
            before, until = found[-1]
            if (until - before) * max(0, here - width) + (last - first) * max(0, width - here) <= _IN_VAIN:
                found[-1], width = (before, last), max(width, here)
                continue
        found.append((first, last))
        width = here
    return found


def _asked_together(prompts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """Neighbours among prompts, of so many rows and tokens each, that are asked in one product, whose places are those of the largest:
    first, last + 1, rows and tokens of each part."""
    first, group, end = 0, 0, 0
    for at, (rows, tokens) in enumerate(prompts):
        wide, long = max(group, rows), max(end, tokens)
        together = (at + 1 - first) * wide * long
        if at > first and together > (at - first) * group * end + rows * tokens + _IN_VAIN:
            yield first, at, group, end
            first, wide, long = at, rows, tokens
        group, end = wide, long
    yield first, len(prompts), group, end


def run_size(count: int) -> int:
    return max(_RUN_SIZE, -(-count // RUNS))


def without(lengths: Sequence[int], leaving: Sequence[int]) -> list[int]:
    """Those that stay, in their new order: what stands at n moves to n.

    One that leaves is replaced by the longest of the next run, that one by the longest of the run after it, and so on: lengths go on
    falling from run to run, as they do where new ones come last, and few move.
    """
    of = list(lengths)
    size = run_size(len(of))
    order = list(range(len(of)))
    for one in leaving:
        of[one] = -1
    for one in sorted(leaving, reverse=True):
        hole = order.index(one)
        while (following := (hole // size + 1) * size) < len(order):
            places = range(following, min(following + size, len(order)))
            donor = max(places, key=lambda place: of[order[place]])
            order[hole], hole = order[donor], donor
        order[hole] = order[-1]
        order.pop()
    return order


def _mask(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
