"""What one forward and backward pass keeps alive, found by running the trainer's own code on tensors without memory.

The model is on torch's meta device: every operation says what it would allocate, and nothing is computed. Each allocation is noted, and
when it is let go; so activations, checkpointing, packing and chunks of logits are counted as they are, for any architecture. Attention
alone is stood in for: on the meta device torch takes a form that holds all scores, where CPUs and GPUs have kernels that do not.

Weights and their gradients are no part of it (budget.py). Does not cover: memory that a kernel takes for itself, and gives back.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.config import TrainSettings
from trainer.learning import attention, logprobs
from trainer.learning.logprobs import token_logprobs
from trainer.learning.lora import Adapters
from trainer.learning.packing import PackedRows, TrainingSample, pack
from trainer.learning.ranks import round_layers
from trainer.learning.scorer import Scorer

META = torch.device("meta")


@dataclass(frozen=True)
class Work:
    """Tokens of the samples that rows are filled with."""

    prompt: int
    completion: int
    group: int
    """Samples of each prompt."""

    def update(self, settings: TrainSettings) -> int:
        """Tokens of an optimizer step, all of them that long."""
        groups = -(-settings.groups_per_step // settings.optimizer_steps)
        return groups * (self.prompt + self.group * self.completion)

    def rows(self, settings: TrainSettings) -> PackedRows:
        """The largest batch of rows that goes through the model at once: as wide as they get, and full."""
        width = max(settings.pack_tokens, self.prompt + self.completion)
        fit = max(1, (width - self.prompt) // self.completion)
        samples = []
        for row in range(settings.rows_per_forward):
            prompt = np.full(self.prompt, row, np.int32)  # one of its own: rows never share one
            samples += [TrainingSample(prompt, np.zeros(self.completion, np.int32), 0.0)] * fit
        (rows,) = pack(samples, width, settings.rows_per_forward)
        return rows


@dataclass(frozen=True)
class Pass:
    """Bytes. `most` is what is alive at once at most; it is made of `kept` and whatever works when most is alive."""

    tokens: int
    kept: int
    """Alive between forward and backward pass: activations."""
    logits: int
    """What the output layer takes beside them while it works, its gradient included."""
    most: int
    frozen: int
    """The same of a pass without gradients, as the reference's are."""


def measure(model: Any, settings: TrainSettings, work: Work, *, on_cpu: bool = False, alone: bool = False) -> Pass:
    """One forward and backward pass of a model on the meta device, in float32, which is changed. `on_cpu`: with the CPU's kernels;
    `alone`: parameters are whole, and their gradients as gradients.py has them.

    Raises NotImplementedError for a model whose operations depend on values, which is then not to be planned.
    """
    compute: torch.dtype = getattr(torch, settings.compute_dtype)
    model.train()
    if adapters := Adapters.of(settings):
        adapters.attach(model)
    if settings.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    scorer = Scorer(model, settings.compute_dtype, casts=False, accumulates=alone)
    if alone and on_cpu:
        _forget_rows(model.get_input_embeddings())
    round_layers(scorer, compute)
    for parameter in scorer.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None  # of the rows before
    rows = work.rows(settings).to(META)
    with _kernels(on_cpu), torch.no_grad(), _Live() as without:
        scorer(rows)
    with _kernels(on_cpu), _Live() as live:
        chosen, entropy = scorer(rows)
        gc.collect()
        kept = live.now
        (chosen.sum() + entropy.sum()).backward()
        most = live.most
        logits = _logits(model, rows, accumulates=alone)
    return Pass(rows.ids.numel(), kept, logits, most, without.most)


def _forget_rows(embedding: Any) -> None:
    """Its gradient holds the rows that were looked up, which budget.py counts: tensors without memory cannot be sparse."""
    looked_up = embedding.forward

    def forward(ids: Tensor) -> Tensor:
        made: Tensor = looked_up(ids)
        return made.detach().requires_grad_()

    embedding.forward = forward


def _logits(model: Any, rows: PackedRows, *, accumulates: bool) -> int:
    head = model.get_output_embeddings()
    hidden = torch.empty(rows.tokens, head.weight.shape[1], device=META, dtype=head.weight.dtype, requires_grad=True)
    with _Live() as live:
        chosen, entropy = token_logprobs(hidden, head, rows.targets, accumulates=accumulates)
        (chosen.sum() + entropy.sum()).backward()
    return live.most


class _Live(TorchDispatchMode):
    """Bytes of all storages that operations made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._held: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(made):
            if storage._cdata not in given:  # else a view, perhaps of a weight, which was never made here
                self._note(storage)
        return made

    def _note(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._held:
            self._held[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._held.pop(key)


def _storages(tree: Any) -> list[Any]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def _kernels(on_cpu: bool) -> Iterator[None]:
    """scaled_dot_product_attention as the kernels without scores hold it, wherever it is called from; and of chunks of logits, which
    are all alike, two.

    Not a mode of torch's: those are off while checkpoints are computed anew.
    """
    parts = logprobs._parts

    def attended(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **how: Any) -> Tensor:
        if isinstance(attn_mask, _Causal) and not on_cpu:  # a GPU's kernels need no mask for it
            attn_mask = None
        made: Tensor = _Kernel.apply(query, key, value, None if attn_mask is None else attn_mask.to(query.dtype))
        return made

    with ExitStack() as stack:
        for module in (torch.nn.functional, attention):
            stack.enter_context(patch.object(module, "scaled_dot_product_attention", attended))
        stack.enter_context(patch.object(logprobs, "_parts", lambda count, chunk: parts(count, chunk)[:2]))
        if on_cpu:
            few = lambda logits: max(1, logprobs._CACHED // logits.shape[1])  # noqa: E731
            stack.enter_context(patch.object(logprobs, "_at_once", few))
        # torch's own is made by a constructor that no mode can look into
        stack.enter_context(patch.object(attention, "causal_lower_right", _causal))
        yield


class _Causal(Tensor):
    """A mask under which queries are the last of the keys."""


def _causal(queries: int, keys: int) -> Any:
    return torch.empty(queries, keys, dtype=torch.bool, device=META).as_subclass(_Causal)


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        attended = query.new_empty((*query.shape[:-1], value.shape[-1]))
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, bias, attended, sums)
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None
