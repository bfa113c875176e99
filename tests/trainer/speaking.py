"""A model of random weights that speaks letters, and tasks for it: a folder as a researcher has it, made in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from node.engine.weights import save_weights

LETTERS = "abcdefgh 0123456789"


def write_model(folder: Path, seed: int = 0) -> Path:
    """config.json, tokenizer.json and weights in float32; <eos> is token 1."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import Qwen3Config, Qwen3ForCausalLM

    names = ["<pad>", "<eos>", "<unk>", *LETTERS]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<pad>", special=True), AddedToken("<eos>", special=True)])
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=48, max_position_embeddings=128, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1,
        bos_token_id=None,
    )  # fmt: skip
    config.architectures = ["Qwen3ForCausalLM"]
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    save_weights(Qwen3ForCausalLM(config), folder / "model.safetensors", torch.float32)
    return folder


def write_rows(path: Path, count: int = 40, **columns: str) -> Path:
    """JSONL with `question` and `answer` of row i, and with more columns, each the same text in all rows."""
    rows = ({"question": f"say {i}", "answer": str(i % 10), **columns} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


REWARD = '''"""More of one letter is better."""


def reward(completions, letter, **columns):
    return [text.count(wanted) / 8 for text, wanted in zip(completions, letter)]


def one(completion, prompt, letter="a"):
    return completion.count(letter) - len(prompt) * 0


def broken(completions, question):
    return [1 / (text != "say 3") if "3" not in asked else 1 / 0 for text, asked in zip(completions, question)]


def nan(completions):
    return [float("nan") if i % 8 == 3 else float(len(text)) for i, text in enumerate(completions)]


def nothing(completions):
    return [None for _ in completions]


def short(completions):
    return [1.0]


def words(completions):
    return ["good" for _ in completions]


def wants(completions, solution):
    return [0.0 for _ in completions]


def takes_nothing(texts):
    return []


def equal(completions):
    return [0.25 for _ in completions]


async def later(completions):
    return []
'''


def write_rewards(path: Path) -> Path:
    path.write_text(REWARD)
    return path
