"""Keys and values of the sequences that decode: each prompt once, and beside it, for every sample, the tokens of its own.

Prompts lie in slots, as many as there are prompts in use. A row for each sample holds what it has generated, in blocks of some
tokens that are taken when the first row reaches them: a step reads blocks from one end to the other, for memory that is read with gaps takes
three times as long, and memory follows the longest row. A step writes one token of every row in its place and copies nothing.
Rows 0 … B-1 are in use; where one leaves, others move up, such that rows of like length lie side by side (decoding_step.py).
The model sees an object of transformers' `Cache` interface, of which its layers get back what is new; attention finds the rest in
`stored`. Where what is cached are latents (DeepSeek-V3), the layer makes keys and values of all of them, which come packed.

Does not cover: states of linear attention; a ring for layers that see a window alone.

Shapes: B rows in use, P prompts, H heads of keys, T tokens of the longest prompt of a prefill, N tokens of a block, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engine.decoding_step import Sharing, Step, without

_BLOCK = 32
"""Tokens of the first blocks; later ones are a quarter of what lies before them, so that few are read and little is read in vain."""

_VIEWS = 64  # of a layer's memory that are kept
_INTEGERS = {2: torch.int16, 4: torch.int32}  # by the bytes of a number

Pair = tuple[Tensor, Tensor]
"""Keys and values."""


@dataclass(frozen=True)
class Joining:
    """Where the prompts of a prefill go: prompt i has `lengths[i]` tokens, and `counts[i]` rows from the first free one on."""

    lengths: Sequence[int]
    counts: Sequence[int]
    keep: bool
    """Whether the last prompt stays although it may have no rows, for samples that come later."""


@dataclass
class Held:
    """Of one layer: `prompts` [P, H, T, D], and `blocks` [B, H, N, D] of the rows' own tokens; more of each than are in use."""

    prompts: Pair
    blocks: list[Pair]
    _views: dict[tuple[object, ...], list[Pair]] = field(default_factory=dict)
    _bits: list[tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=list)
    """Of `blocks`, on a CPU."""

    def of_prompts(self, first: int, last: int, start: int, end: int) -> Pair:
        """These tokens [P, H, T, D] of these prompts."""
        case = (first, last, start, end)
        return self._view(case, [self.prompts], lambda part: part[first:last, :, start:end])[0]

    def of_rows(self, first: int, last: int, blocks: range) -> list[Pair]:
        """These blocks [rows · H, N, D] of these rows."""
        chosen = self.blocks[blocks.start : blocks.stop]
        return self._view((first, last, blocks), chosen, lambda part: part[first:last].flatten(0, 1))

    def _view(self, case: tuple[object, ...], pairs: list[Pair], of: Callable[[Tensor], Tensor]) -> list[Pair]:
        """Views are kept: small steps have as many microseconds of them as of arithmetic."""
        if case not in self._views:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            self._views[case] = [(of(keys), of(values)) for keys, values in pairs]
        return self._views[case]

    def write(self, block: int, rows: Tensor, places: Tensor, new: Pair) -> None:
        """The newest token [B, H, 1, D] of these rows goes to these places of a block."""
        if rows.device.type != "cpu":
            for store, part in zip(self.blocks[block], new, strict=True):
                store[rows, :, places] = part[rows].squeeze(2)
            return
        from node.engine import compiled_copies

        self._bits += [(_bits(keys), _bits(values)) for keys, values in self.blocks[len(self._bits) :]]
        keys, values = new
        compiled_copies.write(
            *self._bits[block], rows.numpy(), places.numpy(), _bits(keys.contiguous()), _bits(values.contiguous())
        )

    @property
    def pairs(self) -> list[Pair]:
        return [self.prompts, *self.blocks]


class KeyValueCache:
    def __init__(self, rows: int, prompts: int, prompt: int, own: int, *, latent: bool = False) -> None:
        """At most so many rows and prompts at a time, of so many tokens each; `latent`: layers cache what keys are made of."""
        self._rows, self._prompts, self._prompt, self._latent = rows, prompts, prompt, latent
        self._blocks = _sizes(own)
        self._layers: dict[int, Held] = {}
        self.rounding: Callable[[Tensor], Tensor] | None = None
        """How keys and values are rounded before they are stored."""
        self._latest = -1
        self._is_unread = False  # whether what a layer wrote in this step is not attended to yet
        self._doing: Joining | Step | None = None
        self._lengths: list[int] = []  # of each prompt
        self._kept: int | None = None  # a prompt
        self._prompt_of: list[int] = []
        self._own: list[int] = []
        self._sharing: Sharing | None = None

    @property
    def nbytes(self) -> int:
        """Bytes taken, of all layers."""
        return sum(part.nbytes for layer in self._layers.values() for pair in layer.pairs for part in pair)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row in use, its prompt counted."""
        return [self._lengths[prompt] + own for prompt, own in zip(self._prompt_of, self._own, strict=True)]

    # ---- between forward passes ------------------------------------------------------------------------------------------

    def join(self, joining: Joining) -> None:
        """What the next forward pass computes are these prompts, right-padded."""
        self._doing = joining
        self._kept = None
        self._drop_prompts()

    def joined(self) -> None:
        """The pass is over: its rows are in use."""
        assert isinstance(self._doing, Joining)
        for length, count in zip(self._doing.lengths, self._doing.counts, strict=True):
            self._lengths.append(length)
            self._sit(len(self._lengths) - 1, count)
        self._kept = len(self._lengths) - 1 if self._doing.keep else None
        self._doing = None

    def join_kept(self, count: int, *, keep: bool) -> None:
        """More rows of the prompt that was kept."""
        assert self._kept is not None
        self._sit(self._kept, count)
        if not keep:
            self._kept = None

    def step(self, dtype: torch.dtype, device: torch.device) -> Step:
        """What the next forward pass computes is one more token of every row."""
        if self._sharing is None:
            self._drop_prompts()
            self._sharing = Sharing(self._prompt_of, self._lengths, dtype, device)
        self._own = [own + 1 for own in self._own]
        self._doing = Step(self._own, self._blocks, self._sharing)
        return self._doing

    def leave(self, rows: Sequence[int]) -> list[int]:
        """These rows end. The rows that stay, in their new order."""
        order = without(self._own, rows)
        moved = [(new, old) for new, old in enumerate(order) if new != old]
        for block, start in enumerate(_starts(self._blocks)):
            tokens = [self._own[old] - start for _, old in moved]
            if max(tokens, default=0) > 0:
                _move([part for layer in self._layers.values() for part in layer.blocks[block]], moved, tokens)
        self._own = [self._own[old] for old in order]
        self._prompt_of = [self._prompt_of[old] for old in order]
        self._sharing = None
        return order

    def _sit(self, prompt: int, count: int) -> None:
        self._prompt_of += [prompt] * count
        self._own += [0] * count
        self._sharing = None

    def _drop_prompts(self) -> None:
        """Prompts without rows go, and others take their places."""
        used = {*self._prompt_of, self._kept}
        if gone := [prompt for prompt in range(len(self._lengths)) if prompt not in used]:
            order = without(self._lengths, gone)
            moved = [(new, old) for new, old in enumerate(order) if new != old]
            tokens = [self._lengths[old] for _, old in moved]
            _move([part for layer in self._layers.values() for part in layer.prompts], moved, tokens)
            place = {old: new for new, old in enumerate(order)}
            self._lengths = [self._lengths[old] for old in order]
            self._prompt_of = [place[prompt] for prompt in self._prompt_of]
            self._kept = None if self._kept is None else place[self._kept]

    # ---- what the model calls --------------------------------------------------------------------------------------------

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> Pair:
        """Writes what a layer has computed, [B, H, T, D] of a prefill or [B, H, 1, D] of a step, and gives it back; in place of the latents
        of a step, those of all tokens that are stored [1, H, tokens, D]."""
        self._latest = layer
        if self.rounding is not None:
            keys, values = self.rounding(keys), self.rounding(values)
        if isinstance(self._doing, Joining):
            self._write_prompts(layer, (keys, values))
            return keys, values
        if self._is_unread:
            raise RuntimeError("a layer has attended past the cache: it would see its newest token alone")
        self._is_unread = True
        self._write_tokens(layer, (keys, values))
        return self._packed(layer) if self._latent else (keys, values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Part of transformers' interface; a model asks where it is told no positions."""
        return 0 if isinstance(self._doing, Joining) else max(self.lengths, default=1) - 1

    # ---- what attention calls --------------------------------------------------------------------------------------------

    @property
    def current(self) -> Step:
        """The step whose forward pass runs."""
        assert isinstance(self._doing, Step)
        return self._doing

    def stored(self, keys: Tensor, values: Tensor) -> Held:
        """What the layer that wrote last attends to; of latents it has made `keys` and `values` [1, H, tokens, D]."""
        self._is_unread = False
        of = self._layers[self._latest]
        return self._unpacked(of, (keys, values)) if self._latent else of

    def _write_prompts(self, layer: int, new: Pair) -> None:
        first = len(self._lengths)
        last = first + len(new[0])
        room = len(self._layers[layer].prompts[0]) if layer in self._layers else 0
        if last > room:
            room = min(self._prompts, max(last, 2 * room))
            grown = tuple(part.new_zeros(room, part.shape[1], self._prompt, part.shape[3]) for part in new)
            of = self._layers.get(layer)
            for part, before in zip(grown, of.prompts if of else (), strict=of is not None):
                part[:first] = before[:first]
            self._layers[layer] = Held((grown[0], grown[1]), of.blocks if of else [])
        for store, part in zip(self._layers[layer].prompts, new, strict=True):
            store[first:last, :, : part.shape[2]] = part

    def _write_tokens(self, layer: int, new: Pair) -> None:
        assert isinstance(self._doing, Step)
        blocks = self._layers[layer].blocks
        for block, rows, places in self._doing.writes:
            while block >= len(blocks):
                size = self._blocks[len(blocks)]
                # Zeros: what is masked is multiplied by nought, and memory as it comes may hold NaN.
                taken = [part.new_zeros(self._rows, part.shape[1], size, part.shape[3]) for part in new]
                blocks.append((taken[0], taken[1]))
            if rows is None:
                for store, part in zip(blocks[block], new, strict=True):
                    store[: len(part), :, places] = part.squeeze(2)
            else:
                assert isinstance(places, Tensor)
                self._layers[layer].write(block, rows, places, new)

    def _packed(self, layer: int) -> Pair:
        """Of all prompts and of the rows' blocks, one token after the other."""
        of = self._layers[layer]
        parts = [tuple(part[: len(self._lengths)] for part in of.prompts)]
        parts += [tuple(part[: len(self._own)] for part in pair) for pair in of.blocks]
        keys, values = (
            torch.cat([part.transpose(0, 1).flatten(1, 2) for part in of], 1) for of in zip(*parts, strict=True)
        )
        return keys[None], values[None]

    def _unpacked(self, of: Held, made: Pair) -> Held:
        pairs: list[Pair] = []
        at = 0
        for count, (like, _) in zip([len(self._lengths)] + [len(self._own)] * len(of.blocks), of.pairs, strict=True):
            size = count * like.shape[2]
            cut = [part[0, :, at : at + size].unflatten(1, (count, -1)).transpose(0, 1) for part in made]
            pairs.append((cut[0], cut[1]))
            at += size
        return Held(pairs[0], pairs[1:])


def _sizes(tokens: int) -> list[int]:
    """Of the blocks that so many tokens lie in."""
    sizes: list[int] = []
    while (left := tokens - sum(sizes)) > 0:
        sizes.append(min(left, max(_BLOCK, sum(sizes) // 4 // _BLOCK * _BLOCK)))
    return sizes


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _move(stores: Sequence[Tensor], moved: Sequence[tuple[int, int]], tokens: Sequence[int]) -> None:
    """Rows go where others have left, each to a place before its own (`without`), with as many of their tokens as there are."""
    if not moved or not stores:
        return
    to, source = torch.tensor(moved, device=stores[0].device).t().contiguous()
    if stores[0].device.type != "cpu":
        for store in stores:
            store[to] = store[source]
        return
    from node.engine import compiled_copies

    most = stores[0].shape[2]
    of = np.array([min(max(0, count), most) for count in tokens])
    for store in stores:
        compiled_copies.move(_bits(store), to.numpy(), source.numpy(), of)


def _bits(numbers: Tensor) -> NDArray[Any]:
    return numbers.view(_INTEGERS[numbers.element_size()]).numpy()
