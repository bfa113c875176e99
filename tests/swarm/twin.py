"""Scaled twins of the paper's presets: their run.toml with lengths ÷ 64, batch ÷ 16 and two steps, for a model of ten million parameters.

Every switch stands as the preset has it; what is not of the recipe, as addresses and the times of the policy, is a swarm's on one machine.
The model is a Qwen3 of random weights whose output layer alone was fitted, to demonstrations that think for a while and then guess one
of four letters: warming up all of it would take minutes. It ends its answers, is right a quarter of the time, and its logits depend on
every layer.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from swarm.settings import SwarmSettings
from swarm.swarm import Swarm

from node.engine.weights import save_weights
from protocol.length_rewards import announce
from protocol.runspec import RewardSpec
from protocol.settings import write_toml
from trainer.presets import run_file

LENGTHS, BATCH, STEPS = 64, 16, 2
LETTERS = "abcd"
_THOUGHT, _QUESTION = " so", "Which letter goes with {}?"
_PAD, _END = 0, 1
_ROWS, _HELD_OUT = 512, 16


def tables(name: str) -> dict[str, Any]:
    """The preset's run.toml, scaled, with tasks and calibration of this folder."""
    made = tomllib.loads(run_file(name))
    sampling, reward, trainer = made["spec"]["sampling"], made["spec"]["reward"], made["trainer"]
    sampling["max_new_tokens"] //= LENGTHS
    reward["budgets"] = {"0": [round(budget / LENGTHS) for budget in reward["budgets"]["0"]]}
    trainer["pack_tokens"] //= LENGTHS
    trainer["groups_per_step"] //= BATCH
    trainer["steps"] = STEPS
    made["policy"]["max_units"] //= LENGTHS
    made["spec"]["environments"] = [{
        "package": "parquet", "dataset": "letters", "files": ["tasks.parquet"], "size": _ROWS - _HELD_OUT, "held_out_size": _HELD_OUT,
    }]  # fmt: skip
    return made


class TwinSwarm(Swarm):
    """One validator: nothing can be appealed, as in the preset `demo`."""

    def __init__(self, folder: Path, name: str, made: Path) -> None:
        """`made`: folder of policy, tasks and calibration."""
        environment = SwarmSettings().environment | {"MURMUR_TASKS": str(folder / "machine")}
        super().__init__(folder, SwarmSettings(steps=STEPS, honest=2, cheats=(), validators=1, environment=environment))
        self._name = name
        self._made = made

    def _write_run_file(self, *, trainer: str, contract: str, bootnode: str) -> None:
        made = tables(self._name)
        for name in ("tasks.parquet", "calibration.json", "policy"):
            place = self.folder / name
            if not place.exists():
                place.symlink_to(self._made / name)
        made["chain"] |= {"rpc": self.anvil.rpc, "contract": contract, "poll_seconds": 0.2}
        if self.deployment:
            made["chain"]["first_block"] = self.deployment.block
        if self.run:
            made["chain"]["run"] = self.run
        made["peers"] = {"listen": "/ip4/127.0.0.1/tcp/0", "bootnodes": [bootnode] if bootnode else []}
        made["hub"] |= {"host": "127.0.0.1", "port": 0, "origin_port": 0}
        made["policy"] |= {"trainer": trainer, "appeal": 0, "vote": 0, "co_signers": 0}
        write_toml(self.run_toml, made, f"The twin of {self._name}.")

    def _make_policy(self) -> None:
        """It is there."""


# ---- model and tasks -------------------------------------------------------------------------------------------------------


def write_rows(path: Path) -> Path:
    rows = ({"question": _QUESTION.format(i), "answer": LETTERS[i * 7 % 4]} for i in range(_ROWS))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_model(folder: Path, budgets: Sequence[int]) -> Path:
    """config.json, tokenizer.json and weights, as published; `budgets` are the lengths that are demonstrated."""
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    names = _write_tokenizer(folder / "tokenizer.json")
    model = _model(-(-len(names) // 32) * 32)
    model.config.save_pretrained(folder)
    _fit_head(model, _demonstrations(folder, budgets))
    save_weights(model, folder / "model.safetensors", torch.bfloat16)
    return folder


def _write_tokenizer(path: Path) -> Mapping[str, int]:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    pieces = [*_QUESTION.split("{}"), *announce("", RewardSpec(), 7).split("7"), _THOUGHT]
    names = ["<pad>", "<eos>", "<unk>", *sorted(set("\n0123456789" + LETTERS))]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<pad>", special=True), AddedToken("<eos>", special=True)])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    tokenizer.save(str(path))
    return dict(tokenizer.get_vocab())


def _model(vocabulary: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2, head_dim=64,
        intermediate_size=1152, max_position_embeddings=1024, tie_word_embeddings=False, pad_token_id=_PAD, eos_token_id=_END,
        bos_token_id=None,
    )  # fmt: skip
    config.architectures = ["Qwen3ForCausalLM"]
    model = Qwen3ForCausalLM(config)
    assert 9.5e6 < sum(p.numel() for p in model.parameters()) < 10.5e6
    return model


def _demonstrations(folder: Path, budgets: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Prompts and what follows them, in tokens."""
    from protocol.tokenizer import Tokenizer

    tokenizer, rng, made = Tokenizer(folder), random.Random(0), []
    for i in range(96):
        budget = rng.choice(budgets)
        prompt = tokenizer.encode(announce(_QUESTION.format(rng.randrange(_ROWS)), RewardSpec(), budget))
        answer = _THOUGHT * round(budget * rng.uniform(0.5, 1.5)) + "\n" + LETTERS[i % 4]
        made.append((prompt, [*tokenizer.encode(answer), _END]))
    return made


def _fit_head(model: Any, examples: Sequence[tuple[list[int], list[int]]]) -> None:
    """Logistic regression of what follows on the hidden states."""
    states, targets = [], []
    with torch.no_grad():
        for prompt, answer in examples:
            hidden = model.base_model(input_ids=torch.tensor([[*prompt, *answer[:-1]]])).last_hidden_state[0]
            states.append(hidden[len(prompt) - 1 :])
            targets += answer
    hidden, wanted, head = torch.cat(states), torch.tensor(targets), model.lm_head.weight
    head.requires_grad_(True)
    optimizer = torch.optim.AdamW([head], lr=1e-2, weight_decay=0.0)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(hidden @ head.T, wanted).backward()
        optimizer.step()
