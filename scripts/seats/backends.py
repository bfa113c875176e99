"""Honest ways to compute one policy in bfloat16 on a CPU: what decodes, and what computes the same again.

Each is vLLM, or torch's engine with one thing computed otherwise. Covers: attention (torch's fused kernel, its plain one, products and a softmax as
transformers has them, blocks with a running softmax as memory-efficient kernels have it); products with weights in another order; decoding with a
cache against prefill, in one piece and in chunks; batches and single sequences; one thread and two. `noisy` is no class's own: logits with noise put in.

Does not cover other devices. TF32 keeps more bits of a factor than bfloat16 has: products of bfloat16 are the same with it.

Shapes: B rows, H heads of queries, K of keys, T tokens, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from node.engine import Engine, EngineSettings
from node.engine.torch_engine import TorchEngine
from node.engine.vllm_engine import VllmEngine

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Of prompt and completion."""

_VLLM_MEMORY = "2GiB"
_BLOCK = 32  # keys that a block of attention holds
_CHUNK = 48  # tokens of a chunk of a prefill


def _prefill(engine: Engine, sequences: Sequences) -> list[Tensor]:
    found = {index: states for batch in engine.prefill_in_batches(sequences) for index, states in batch.items()}
    return [found[index] for index in range(len(sequences))]


@dataclass(frozen=True)
class Backend:
    name: str
    attention: Literal["sdpa", "eager"] = "sdpa"
    change: Callable[[Any], None] | None = None
    """Made to the loaded model."""
    compute: Callable[[Any, Sequences], list[Tensor]] = _prefill
    """Hidden states [T, H] that produced each completion's tokens, by an engine of this backend."""
    threads: int = 1
    is_vllm: bool = False

    def engine(self, model: Path) -> Engine:
        """With the model loaded."""
        if self.is_vllm:
            process = VllmEngine("bfloat16", EngineSettings(name="vllm", device="cpu", threads=1, memory=_VLLM_MEMORY))
            process.load(model)
            return process
        engine = TorchEngine("bfloat16", EngineSettings(device="cpu", attention=self.attention, threads=1))
        engine.load(model)
        if self.change is not None:
            engine.degrade(self.change)
        return engine

    def prefill(self, engine: Engine, sequences: Sequences) -> list[Tensor]:
        """Hidden states [T, H] that produced each completion's tokens. Of one backend at a time: torch has one number of threads."""
        torch.set_num_threads(self.threads)
        try:
            return self.compute(engine, sequences)
        finally:
            torch.set_num_threads(1)


# ---- prefill in other ways ---------------------------------------------------------------------------------------------


def _by_plain_kernel(engine: TorchEngine, sequences: Sequences) -> list[Tensor]:
    with sdpa_kernel(SDPBackend.MATH):
        return engine.prefill(sequences)


def _one_by_one(engine: TorchEngine, sequences: Sequences) -> list[Tensor]:
    return [engine.prefill([sequence])[0] for sequence in sequences]


@torch.inference_mode()
def _in_chunks(engine: TorchEngine, sequences: Sequences) -> list[Tensor]:
    """Some tokens of a batch at a time, with transformers' own cache and attention."""
    from transformers import DynamicCache

    model, found = engine._held, []
    for start in range(0, len(sequences), 32):
        part = sequences[start : start + 32]
        rows = [torch.tensor([*prompt, *completion]) for prompt, completion in part]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)  # on the right, which no token sees
        cache = DynamicCache(config=model.config)
        pieces = [model.base_model(input_ids=piece, past_key_values=cache, use_cache=True) for piece in ids.split(_CHUNK, 1)]  # fmt: skip
        hidden = torch.cat([piece.last_hidden_state for piece in pieces], 1)
        found += [
            hidden[row, len(prompt) - 1 : len(prompt) - 1 + len(completion)]
            for row, (prompt, completion) in enumerate(part)
        ]
    return found


def _with_transformers_attention(model: Any) -> None:
    model.set_attn_implementation("sdpa")


# ---- attention in blocks -----------------------------------------------------------------------------------------------


def _with_blocks(model: Any) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("seats_blocks", _attend_in_blocks)
    model.set_attn_implementation("seats_blocks")


def _attend_in_blocks(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scaling: float, **rest: Any
) -> tuple[Tensor, None]:
    """Causally, [B, T, H, D]: weights are rounded to the values' type, sums are float32."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    tokens = query.shape[2]
    at = torch.arange(tokens)[:, None]
    highest = torch.full((*query.shape[:3], 1), -torch.inf)
    total, made = torch.zeros_like(highest), torch.zeros(query.shape)
    for start in range(0, tokens, _BLOCK):
        keys, values = key[:, :, start : start + _BLOCK], value[:, :, start : start + _BLOCK]
        scores = query.float() @ keys.float().transpose(2, 3) * scaling
        scores = scores.masked_fill(torch.arange(start, start + keys.shape[2]) > at, -torch.inf)
        now = highest.maximum(scores.amax(-1, keepdim=True))
        weights, kept = (scores - now).exp(), (highest - now).exp()
        total = total * kept + weights.sum(-1, keepdim=True)
        made = made * kept + weights.to(values.dtype).float() @ values.float()
        highest = now
    return (made / total).to(query.dtype).transpose(1, 2), None


# ---- products in another order -----------------------------------------------------------------------------------------


def _in_halves(model: Any) -> None:
    """Linear layers as kernels compute them that split the inner dimension and add up in the model's type."""
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.forward = MethodType(_sum_of_halves, layer)


def _sum_of_halves(layer: nn.Linear, rows: Tensor) -> Tensor:
    half = layer.in_features // 2
    first = nn.functional.linear(rows[..., :half], layer.weight[:, :half], layer.bias)
    return first + nn.functional.linear(rows[..., half:], layer.weight[:, half:])


def _noisy(spread: float) -> Callable[[Any], None]:
    """Logits with noise, of which the difference of two tokens' has this standard deviation, in shares of the range of logits."""

    def change(model: Any) -> None:
        draws = torch.Generator().manual_seed(0)

        def add(layer: nn.Linear, rows: tuple[Tensor, ...], logits: Tensor) -> Tensor:
            logits = logits.float()
            ranges = logits.amax(-1, keepdim=True) - logits.amin(-1, keepdim=True)
            return logits + torch.randn(logits.shape, generator=draws) * ranges * spread / 2**0.5

        model.get_output_embeddings().register_forward_hook(add)

    return change


FUSED, EAGER = Backend("torch sdpa"), Backend("torch eager", "eager")
HALVES = Backend("torch sdpa, products in halves", change=_in_halves)
MATH = Backend("torch math", compute=_by_plain_kernel)
BLOCKS = Backend("attention in blocks", change=_with_blocks)
CHUNKS = Backend("prefill in chunks", change=_with_transformers_attention, compute=_in_chunks)
SINGLE = Backend("single sequences", compute=_one_by_one)
THREADS = Backend("two threads", threads=2)
VLLM = Backend("vLLM", is_vllm=True)
PAIRS: dict[Backend, tuple[Backend, ...]] = {
    FUSED: (EAGER, HALVES, MATH, BLOCKS, CHUNKS, SINGLE, THREADS),
    EAGER: (FUSED, HALVES),
    HALVES: (FUSED, EAGER),
}
"""What decodes, batch by batch with a cache, and what checks it."""
WITH_VLLM = PAIRS | {FUSED: (*PAIRS[FUSED], VLLM), VLLM: (FUSED, EAGER)}
"""The same, where vLLM is installed."""


def noisy(spread: float) -> Backend:
    """Fused attention and this much noise, in shares of the range of logits."""
    return Backend("torch sdpa, noisy", change=_noisy(spread))
