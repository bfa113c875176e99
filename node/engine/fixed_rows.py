"""Computing so that bits do not depend on the batch: the model sees ROWS tokens at a time, whatever is asked of it.

A token of a prompt, a token that is checked and a token that is decoded are the same to the model: one of ROWS sequences that are one
token long, whose keys and values lie in slots (fixed_cache.py). So every product, norm and activation has the same shapes in
generation, at any batch size, and in a prefill; blocks that are not full are filled up. It computes on one thread, whatever the settings say: how
work is cut for threads is a shape too.

What is left to show is that a token's result does not depend on its place in the block and on its neighbours. `settle` tries that on the
model at hand, and where it does not hold (experts are computed with whoever else was sent to them) the block is one token. The number
is part of the build (build.py), so that machines which come to another one do not compare bits.

Does not cover: devices but the CPU, on which nobody has measured it.

Shapes: N tokens, R = ROWS or 1, H hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from node.engine import fixed_attention, output
from node.engine.fixed_cache import FixedCache
from protocol import architectures

log = logging.getLogger(__name__)

FORM: Final = 1
"""Version of how rows are computed here and in fixed_attention.py. To be raised with every change of it: builds of other versions do not
compare bits."""
ROWS: Final = 32
"""Tokens of a block: 20 % slower than 512 in float32 products of 1024 × 3072, and a multiple of whatever a vector unit takes at once."""

_TRIED = 4  # orders of a block's tokens that are tried


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class FixedRows:
    """Of one model, which attends by fixed_attention.py from then on."""

    def __init__(self, model: Any) -> None:
        fixed_attention.install(model)
        self._model = model
        self.rows = ROWS
        """Tokens of a block."""

    @torch.inference_mode()
    def settle(self) -> None:
        """Tries whether a token's bits depend on its place and its neighbours; then a block is one token."""
        if architectures.routes(self._model.config.to_dict()) or not self._is_indifferent():
            log.info("bits depend on what else is in a block of %d tokens: blocks are one token", self.rows)
            self.rows = 1

    def hidden(self, tokens: Tensor, slots: Sequence[int], places: Sequence[int], cache: FixedCache) -> Tensor:
        """Final hidden states [N, H] of tokens [N], each at its place in the sequence of its slot. Those of one sequence come in order."""
        found = []
        short = -len(tokens) % self.rows
        ids = torch.cat([tokens, tokens.new_zeros(short)])
        at = torch.tensor([*slots, *[cache.spare] * short], dtype=torch.long, device=ids.device)
        of = torch.tensor([*places, *[0] * short], dtype=torch.long, device=ids.device)
        with one_thread():
            for start in range(0, len(ids), self.rows):
                part = slice(start, start + self.rows)
                cache.look(at[part].clone(), of[part].clone())
                out = self._model.base_model(
                    input_ids=ids[part].clone()[:, None], position_ids=cache.places[:, None], past_key_values=cache, use_cache=True,
                    **{fixed_attention.CACHE: cache},
                )  # fmt: skip
                found.append(out.last_hidden_state[:, -1])
        return torch.cat(found)[: len(tokens)]

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Logits [N, V] of hidden states."""
        found = []
        with one_thread():
            for part in hidden_NH.split(self.rows):
                block = part.new_zeros(self.rows, part.shape[1])
                block[: len(part)] = part
                found.append(output.logits(self._model, block)[: len(part)])
        return torch.cat(found) if found else output.logits(self._model, hidden_NH)

    def _is_indifferent(self) -> bool:
        """By random sequences of two tokens, in several orders, with others in place of half of them."""
        made = torch.Generator().manual_seed(0)
        vocabulary = int(self._model.config.vocab_size)
        device = self._model.get_input_embeddings().weight.device
        ids = torch.randint(vocabulary, (2, self.rows), generator=made)
        hidden, logits = self._of_pairs(ids.to(device))
        for _ in range(_TRIED):
            order = torch.randperm(self.rows, generator=made)
            others = torch.randint(vocabulary, ids.shape, generator=made)
            stays = torch.arange(self.rows) % 2 == 0
            again = self._of_pairs(torch.where(stays, ids[:, order], others).to(device))
            of = order[stays].to(device)
            for first, second in zip((hidden, logits), again, strict=True):
                if not torch.equal(first[of], second[stays.to(device)]):
                    return False
        return True

    def _of_pairs(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of sequences [2, R]: the states after their second tokens, and their logits."""
        cache, slots = FixedCache(self.rows, 2), list(range(self.rows))
        self.hidden(ids[0], slots, [0] * self.rows, cache)
        hidden = self.hidden(ids[1], slots, [1] * self.rows, cache)
        return hidden, self.logits(hidden)
