"""The model that the other sections measure: random weights in Qwen3-0.6B's shape, its logits about a nat, as a version in a folder."""

from __future__ import annotations

import random
from typing import Any

import tokenizers
import torch
from benches import Row, qwen3
from tokenizers import models, pre_tokenizers

from gpu import Place, Record
from node.engine import EngineSettings, row_attention
from node.engine.torch_engine import TorchEngine
from node.engine.weights import save_weights
from protocol.model_files import WEIGHTS

_TINY: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True, "max_position_embeddings": 512,
}  # fmt: skip
"""Heads that vLLM's attention on the CPU knows."""
_ENDS = {"eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 0}
_SPECIAL = 3  # ids below are in no prompt


class _Held(TorchEngine):
    """Computes with a model that is there already."""

    def hold(self, model: Any) -> None:
        row_attention.install(model, "sdpa")
        self._model = model


def run(at: Place, report: Record) -> None:
    shape = {**shape_of(dry=at.dry), **_ENDS}
    model = qwen3.make(shape, at.device)
    engine = _Held("bfloat16", EngineSettings(device=at.device))
    engine.hold(model)
    nats = qwen3.scale(engine, prompts(1, shape["vocab_size"], 16)[0])
    report.row(Row("entropy of the logits, mean", "nats", nats, None, None, None))
    folder = at.work / "model"
    folder.mkdir()
    model.config.save_pretrained(folder)
    words = {str(i): i for i in range(shape["vocab_size"])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_weights(model, folder / WEIGHTS, torch.bfloat16)
    report.fact(parameters=sum(p.numel() for p in model.parameters()), shape=shape)
    (folder / "made").touch()


def shape_of(*, dry: bool) -> dict[str, Any]:
    return _TINY if dry else qwen3.SHAPE


def prompts(count: int, vocabulary: int, width: int) -> list[list[int]]:
    """Random token ids, the same each time."""
    draw = random.Random(0)
    return [[draw.randrange(_SPECIAL, vocabulary) for _ in range(width)] for _ in range(count)]
