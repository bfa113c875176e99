"""Keys and values where every token is computed in the same shapes (fixed_rows.py): a slot for each sequence, in pieces of KEYS tokens.

A sample has its prompt in its own slot, copied where others of that prompt have it: the same bits, for more memory than kv_cache.py takes.
Nothing moves when a row leaves. The model sees an object of transformers' `Cache` interface, which gives its layers back what they made;
attention (fixed_attention.py) writes it to the slots of the tokens at hand, and reads from there.

Shapes: R tokens at hand, S slots, H heads of keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from node.engine.kv_cache import Joining

KEYS = 64
"""Tokens of a piece, over which attention sums at once. Part of the form (fixed_rows.py): changing it breaks the equality of bits."""

Pair = tuple[Tensor, Tensor]


class FixedCache:
    def __init__(self, sequences: int, tokens: int) -> None:
        """For so many sequences at once of so many tokens each, a prompt that is kept for later samples among them."""
        self._pieces = -(-tokens // KEYS)
        self._sequences = sequences
        self.spare = sequences
        """The slot of tokens that only fill up the shape."""
        self._free = list(range(sequences))
        self._layers: dict[int, Pair] = {}
        self._latest = -1
        self._joining: tuple[Joining, list[int]] | None = None
        self._kept: tuple[int, int] | None = None  # a slot, and the tokens in it
        self.slots: list[int] = []
        """Of the rows in use."""
        self.lengths: list[int] = []
        """Tokens of each row in use."""
        self._at = torch.empty(0, dtype=torch.long)  # slots of the tokens at hand
        self._places = torch.empty(0, dtype=torch.long)
        self.reach = 0
        """Pieces that the tokens at hand see, at most."""

    # ---- rows that come and go ---------------------------------------------------------------------------------------------

    def join(self, joining: Joining) -> list[int]:
        """Slots for these prompts, which are to be computed next."""
        self._drop_kept()
        taken = [self._take() for _ in joining.lengths]
        self._joining = (joining, taken)
        return taken

    def joined(self) -> None:
        """They are computed: their rows are in use."""
        assert self._joining is not None
        joining, taken = self._joining
        self._joining = None
        last = len(taken) - 1
        for i, (slot, length, count) in enumerate(zip(taken, joining.lengths, joining.counts, strict=True)):
            if i == last and joining.keep:
                self._kept = (slot, length)
                self._copy(slot, length, count)
            else:
                self._sit(slot, length)
                self._copy(slot, length, count - 1)

    def join_kept(self, count: int, *, keep: bool) -> None:
        """More rows of the prompt that was kept."""
        assert self._kept is not None
        self._copy(*self._kept, count)
        if not keep:
            self._drop_kept()

    def leave(self, rows: Sequence[int]) -> list[int]:
        """These rows end. The rows that stay, in their new order."""
        gone = set(rows)
        self._free += [self.slots[row] for row in rows]
        order = [row for row in range(len(self.slots)) if row not in gone]
        self.slots = [self.slots[row] for row in order]
        self.lengths = [self.lengths[row] for row in order]
        return order

    def step(self) -> tuple[list[int], list[int]]:
        """The slot and the place of one more token for every row."""
        places = list(self.lengths)
        self.lengths = [length + 1 for length in self.lengths]
        return self.slots, places

    def _sit(self, slot: int, length: int) -> None:
        self.slots.append(slot)
        self.lengths.append(length)

    def _copy(self, source: int, length: int, count: int) -> None:
        for _ in range(count):
            slot = self._take()
            for pair in self._layers.values():
                for store in pair:
                    store[slot, :, :length] = store[source, :, :length]
            self._sit(slot, length)

    def _take(self) -> int:
        slot = self._free.pop()
        for _, values in self._layers.values():
            values[slot].zero_()  # what is not seen is multiplied by nought, and a sequence before may have left NaN
        return slot

    def _drop_kept(self) -> None:
        if self._kept is not None:
            self._free.append(self._kept[0])
        self._kept = None

    # ---- what the model calls --------------------------------------------------------------------------------------------

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> Pair:
        """Notes which layer computes: what it has made, it is given back."""
        self._latest = layer
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Part of transformers' interface; a model asks where it is told no positions."""
        return int(self._places.max()) if len(self._places) else 0

    # ---- what attention calls --------------------------------------------------------------------------------------------

    def look(self, slots: Tensor, places: Tensor) -> None:
        """The tokens at hand in the next forward pass, by the slot and the place of each [R]."""
        self._at, self._places = slots, places
        self.reach = int(places.max()) // KEYS + 1

    @property
    def places(self) -> Tensor:
        """Of the tokens at hand within their sequences [R]."""
        return self._places

    def write(self, keys: Tensor, values: Tensor) -> None:
        """What the latest layer has made of the tokens at hand, [R, H, 1, D] each."""
        if self._latest not in self._layers:
            made = [
                part.new_zeros(self._sequences + 1, part.shape[1], self._pieces * KEYS, part.shape[3])
                for part in (keys, values)
            ]
            self._layers[self._latest] = (made[0], made[1])
        for store, part in zip(self._layers[self._latest], (keys, values), strict=True):
            store[self._at, :, self._places] = part.squeeze(2)

    def piece(self, number: int) -> Pair:
        """These KEYS tokens of the sequence of each token at hand, [R, H, KEYS, D] each, in memory of their own."""
        part = slice(number * KEYS, (number + 1) * KEYS)
        keys, values = self._layers[self._latest]
        return keys[:, :, part].index_select(0, self._at), values[:, :, part].index_select(0, self._at)
