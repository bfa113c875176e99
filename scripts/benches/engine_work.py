"""The work of the engine bench: a model of 8 layers × 256 whose logits are as sure of themselves as a policy's, prompts, and lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from node.engine.weights import save_weights
from protocol.model_files import WEIGHTS

NATS = 1.0
LONGEST = 256
_MEDIAN = 32
_GROUP = 16  # samples of a prompt, as in the recipe
_SPECIAL = 3  # ids below are never in a prompt


@dataclass(frozen=True)
class Work:
    """Prompts by their token ids, how many samples each has, and the length of every sample in the order of the prompts."""

    prompts: list[list[int]]
    samples: int
    lengths: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def bound(self) -> float:
        """How many times as fast as a batch that waits for its longest row one can be whose rows are always busy."""
        return max(self.lengths) * len(self.lengths) / self.tokens

    def batches(self, rows: int) -> list[Work]:
        """The same, so many samples at a time."""
        step = rows // self.samples
        return [
            Work(self.prompts[at : at + step], self.samples, self.lengths[at * self.samples :][:rows])
            for at in range(0, len(self.prompts), step)
        ]


def work(
    rows: int, vocabulary: int, *, new: int | None, width: int = 64, spread: int = 8, samples: int = _GROUP
) -> Work:
    """`rows` samples of prompts of `width` ± `spread` tokens, each of `new` tokens; None: log-normal, σ 1, at most LONGEST."""
    draw = random.Random(0)
    asked = [
        [draw.randrange(_SPECIAL, vocabulary) for _ in range(draw.randint(width - spread, width + spread))]
        for _ in range(rows // samples)
    ]
    median = math.log(_MEDIAN)
    lengths = [new or max(1, min(LONGEST, round(draw.lognormvariate(median, 1.0)))) for _ in range(rows)]
    return Work(asked, samples, lengths)


def write_model(folder: Path, vocabulary: int, *, key_value_heads: int = 8) -> Any:
    """A Llama of 8 layers × 256 as a version in float32, and itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=704, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=key_value_heads, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, pad_token_id=0,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    _sharpen(model, vocabulary)
    model.config.save_pretrained(folder)
    save_weights(model, folder / WEIGHTS, torch.float32)
    return model


@torch.inference_mode()
def _sharpen(model: Any, vocabulary: int) -> None:
    """Scales `lm_head` until the mean entropy of the logits is NATS."""
    ids = torch.randint(_SPECIAL, vocabulary, (4, 32))
    hidden = model.base_model(ids, use_cache=False).last_hidden_state.flatten(0, 1)
    logits = model.lm_head(hidden)
    model.lm_head.weight.mul_(root(lambda factor: entropy(logits * factor) - NATS, 1e-2, 1e4))


def root(falling: Callable[[float], float], low: float = 0.1, high: float = 10.0) -> float:
    """Where a falling function is zero, between two positive numbers."""
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return low


def entropy(logits: Tensor) -> float:
    """Mean entropy of rows, in nats."""
    logprobs = logits.float().log_softmax(-1)
    return float(-(logprobs.exp() * logprobs).sum(-1).mean())
