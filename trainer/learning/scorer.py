"""A model with nothing of it called but here, so that what is sharded over ranks is gathered just when it is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from node.engine.features import window_of
from node.engine.output import bend_of
from trainer.learning.attention import MASK_ENTRIES_MAX, PACKED
from trainer.learning.logprobs import token_logprobs
from trainer.learning.packing import PackedRows
from trainer.learning.routers import without_autocast


class Scorer(nn.Module):
    def __init__(self, model: Any, compute_dtype: str, *, casts: bool = True, accumulates: bool = False) -> None:
        """`compute_dtype` is what the model's layers compute in; the head and all that follows are in the weights' own.

        `casts`: weights are cast here, where they are used; else whoever shards the model gathers them in that type (ranks.py).
        `accumulates`: the head's gradient is added to where it lies (logprobs.py); for parameters that no ranks share.
        """
        super().__init__()
        model.set_attn_implementation(PACKED)
        self.model = model
        self._dtype: torch.dtype = getattr(torch, compute_dtype)
        self._casts = casts and self._dtype != torch.float32
        self._accumulates = accumulates
        if self._casts:
            without_autocast(model, self._dtype)
        self._bend = bend_of(model.config)
        self._window = window_of(model.config)
        # A model with attention of its own says no in a warning; it would ignore a layout, so it gets masks of any size.
        self._mask_entries_max = MASK_ENTRIES_MAX if model.config._attn_implementation == PACKED else sys.maxsize

    @property
    def takes_pieces(self) -> bool:
        """Whether rows too wide for a mask are attended piece by piece."""
        return self._mask_entries_max != sys.maxsize

    @contextmanager
    def in_pieces(self) -> Iterator[None]:
        """All rows, however narrow."""
        most, self._mask_entries_max = self._mask_entries_max, 0
        try:
            yield
        finally:
            self._mask_entries_max = most

    def forward(self, rows: PackedRows) -> tuple[Tensor, Tensor]:
        """Logprob of each completion token and entropy of its distribution, both [N]."""
        with self._autocast(rows.ids.device.type):
            # What runs through the layers has their type: in float32 it would take twice the memory.
            embedded = self.model.get_input_embeddings()(rows.ids).to(self._dtype)
            hidden = self.model.base_model(
                inputs_embeds=embedded, position_ids=rows.positions, use_cache=False, **self._seen(rows)
            ).last_hidden_state
        head = self.model.get_output_embeddings()
        chosen = hidden.flatten(0, 1)[rows.source].to(head.weight.dtype)
        return token_logprobs(chosen, head, rows.targets, bend=self._bend, accumulates=self._accumulates)

    def _seen(self, rows: PackedRows) -> dict[str, Any]:
        """What tells the model's attention which tokens see which (attention.py)."""
        if rows.mask_entries > self._mask_entries_max:
            return {"layout": rows.layout}
        masks = {"attention_mask": rows.mask}
        return masks if self._window is None else masks | {"windowed": {self._window: rows.within(self._window)}}

    def _autocast(self, device: str) -> AbstractContextManager[Any]:
        return torch.autocast(device, self._dtype) if self._casts else nullcontext()
