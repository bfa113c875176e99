"""A model small enough to train in milliseconds, and samples for it; made anew wherever a test changes weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from node.engine.weights import save_weights
from trainer.config import KlSettings, LossSettings, OptimizerSettings, TrainSettings
from trainer.learning.learner import Learner
from trainer.learning.packing import TrainingSample

VOCABULARY = 29


def write_model(folder: Path, seed: int = 0) -> Path:
    """A model folder as the trainer expects one; head and embedding are one tensor, as in the real small models."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=48, max_position_embeddings=256, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1,
        bos_token_id=None,
    )  # fmt: skip
    config.architectures = ["Qwen3ForCausalLM"]
    model = Qwen3ForCausalLM(config)
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    save_weights(model, folder / "model.safetensors", torch.float32)
    return folder


def settings(
    *, lr: float = 1e-2, optimizer_steps: int = 1, gradient_clip: float = 1.0, **changes: Any
) -> TrainSettings:
    values = {
        "steps": 10, "optimizer_steps": optimizer_steps, "pack_tokens": 24, "rows_per_forward": 2,
        "optimizer": OptimizerSettings(lr=lr, warmup_steps=1, gradient_clip=gradient_clip, weight_decay=0.0),
        "loss": LossSettings(entropy=0.0), "kl": KlSettings(weight=0.0), **changes,
    }  # fmt: skip
    return TrainSettings(**values)


def sample(prompt: Iterable[int], completion: Iterable[int], advantage: float = 1.0) -> TrainingSample:
    return TrainingSample(np.array(list(prompt), np.int32), np.array(list(completion), np.int32), advantage)


def group(number: int, size: int = 4) -> tuple[TrainingSample, ...]:
    """Samples of unequal lengths; the first half is better than the second."""
    rng = np.random.default_rng(number)
    prompt = rng.integers(2, VOCABULARY, 3 + number % 3)
    return tuple(
        sample(prompt, rng.integers(2, VOCABULARY, 2 + (number + i) % 5), 1.0 if i < size // 2 else -1.0)
        for i in range(size)
    )


def groups(count: int) -> list[tuple[TrainingSample, ...]]:
    return [group(number) for number in range(count)]


@torch.no_grad()
def logprobs(learner: Learner, one: TrainingSample) -> torch.Tensor:
    """Logprob of each completion token, of the sample all by itself, by the model's own forward."""
    ids = torch.tensor([[*one.prompt.tolist(), *one.completion.tolist()]])
    logits = learner.model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    start = len(one.prompt) - 1
    rows = logits[start : start + len(one.completion)]
    return rows.gather(1, torch.tensor(one.completion.tolist())[:, None]).squeeze(1)


def likelihood(learner: Learner, samples: Sequence[TrainingSample]) -> float:
    return float(torch.cat([logprobs(learner, one) for one in samples]).mean())


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.model.state_dict().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@contextmanager
def gradients(learner: Learner) -> Iterator[list[torch.Tensor]]:
    """Of every parameter, as they were before the last optimizer step; a step ends without any."""
    seen: list[torch.Tensor] = []

    def look(*_: Any) -> None:
        seen[:] = [
            p.grad.to_dense() if p.grad.is_sparse else p.grad.clone()
            for p in learner.model.parameters()
            if p.grad is not None
        ]

    hook = learner.optimizer.register_step_pre_hook(look)
    try:
        yield seen
    finally:
        hook.remove()
