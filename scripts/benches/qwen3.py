"""A model of Qwen3-0.6B's shape with random weights, and the peer of whoever measures what attestation costs.

28 layers, hidden size 1024, vocabulary 151,936, tied embeddings, in bfloat16. Random logits are nearly uniform, which no policy's are:
`scale` scales the final norm, and `lm_head`'s output with it, until their mean entropy over the model's own completions is about
one nat.

Shapes: B rows, V vocabulary, H hidden size.
"""

from __future__ import annotations

import secrets
from typing import Any

import torch
from torch import Tensor

from benches.engine_work import NATS, entropy, root
from node.engine import Prompt
from node.engine.torch_engine import TorchEngine

SHAPE: dict[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True, "max_position_embeddings": 4096,
}  # fmt: skip
_NEW = 32  # tokens of the completions whose entropy is looked at


class Plain(TorchEngine):
    """The peer: draws as everybody does."""

    def _sample(self, hidden: Tensor, keys: Tensor, positions: Tensor, *distribution: Any) -> tuple[Tensor, Tensor]:
        probabilities = self._model.lm_head(hidden).float().softmax(-1)
        tokens = torch.multinomial(probabilities, 1)
        return tokens.squeeze(1), probabilities.gather(1, tokens).squeeze(1).log()


def make(shape: dict[str, Any] = SHAPE, device: str = "cpu") -> Any:
    """The model in bfloat16, the same one each time on a device."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(**shape)
    config.architectures = ["Qwen3ForCausalLM"]
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return Qwen3ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


@torch.inference_mode()
def logits(engine: TorchEngine, prompt: list[int]) -> Tensor:
    """Logits [B, V] at the last positions of fresh completions, 32 rows."""
    asked = Prompt(prompt, tuple(secrets.randbits(64) for _ in range(8)))
    made = engine.generate([asked], temperature=1.0, max_new_tokens=_NEW, end_tokens=frozenset(), prove=False)[0]
    hidden = engine.prefill([(asked.tokens, completion.tokens) for completion in made])
    return engine._model.lm_head(torch.cat([states[-4:] for states in hidden]))


def scale(engine: TorchEngine, prompt: list[int]) -> float:
    """Scales the final norm until completions have the entropy wanted; the mean of what they have then, in nats."""
    weight = engine._model.base_model.norm.weight
    weight.data.mul_(12)  # not far off
    for _ in range(2):
        found = logits(engine, prompt).float()
        weight.data.mul_(root(lambda factor, found=found: entropy(found * factor) - NATS))  # type: ignore[misc]
    return entropy(logits(engine, prompt).float())
