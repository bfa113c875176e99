"""Policies made on the spot, of one nat of entropy a token to a third of one, and work for them: three tiny ones, and one of 0.1 B that has learned nothing.

Their warm-up alone leaves two to three nats, for it trains on brief answers and these policies are asked to go on. So the last norm before the output
layer is scaled until a completion of a hundred tokens has the entropy that is wanted, as training does that makes a policy surer: logits grow, and their
rounding with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from swarm.tiny_run import run_tables
from torch import Tensor

from node.engine import EngineSettings, Prompt
from node.engine.torch_engine import TorchEngine
from protocol.environments import TaskSet
from protocol.model_files import WEIGHTS
from protocol.sandbox import EnvironmentSandbox
from protocol.settings import write_toml
from protocol.shell import runfile
from protocol.tokenizer import Tokenizer

TARGETS = (0.0, 0.15, 0.6)
"""What each policy's warm-up ends at, as scripts/calibrate-tiny has it."""
NATS = (1.0, 0.6, 0.3, 0.9)
"""Of entropy a token, of the same policies and of the large one."""
LARGE = len(TARGETS)
"""The number of the policy of 0.1 B: random weights."""
SHAPE = {
    "vocab_size": 16_384, "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": False,
}  # fmt: skip
_NEAR = 0.1  # share by which a policy's entropy may miss what is wanted
_POSITIONS = 2048
_NORM = "model.norm.weight"


@dataclass(frozen=True)
class Policy:
    folder: Path
    tokenizer: Tokenizer
    tasks: TaskSet

    def prompts(self, count: int, draws: Random) -> list[Prompt]:
        """So many random problems, each with one random sampling key."""
        picks = self.tasks.problems([draws.randrange(self.tasks.size) for _ in range(count)])
        return [Prompt(self.tokenizer.encode(problem.prompt), (draws.getrandbits(63),)) for problem in picks]


@contextmanager
def made(folder: Path, number: int) -> Iterator[Policy]:
    """The policy of this number, with room for a thousand tokens."""
    from trainer.models.tiny import make_policy

    folder.mkdir(parents=True)
    file, model = folder / "run.toml", folder / "policy"
    write_toml(file, run_tables(), "A run whose policy is recorded.")
    make_policy(file, model, target=TARGETS[number] if number < LARGE else 0.0, seed=number)
    if number == LARGE:
        _make_large(model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": _POSITIONS}))
    environments = runfile.environments(file)
    with EnvironmentSandbox(environments) as sandbox:
        policy = Policy(model, Tokenizer(model), TaskSet(environments, sandbox))
        _sharpen(policy, NATS[number], 8 if number == LARGE else 48)
        yield policy


def _make_large(model: Path) -> None:
    """In place of the weights that are there; tokens, and with them the tasks, are as they were."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    made = Qwen3ForCausalLM(Qwen3Config(**SHAPE, max_position_embeddings=_POSITIONS)).bfloat16()
    config = json.loads((model / "config.json").read_text())
    made.save_pretrained(model)
    ends = {name: config[name] for name in ("eos_token_id", "pad_token_id", "bos_token_id") if name in config}
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | ends))


def _sharpen(policy: Policy, nats: float, count: int) -> None:
    """Scales the last norm until so many completions of the policy have this entropy, or nearly."""
    engine = TorchEngine("bfloat16", EngineSettings(device="cpu", threads=1))
    weights, low, high = load_file(policy.folder / WEIGHTS), 0.5, 32.0
    for _ in range(10):
        factor = (low * high) ** 0.5
        save_file(scaled(weights, factor), policy.folder / WEIGHTS)
        engine.load(policy.folder)
        found = entropy(engine, policy.prompts(count, Random(0)))
        if abs(found / nats - 1) < _NEAR:
            return
        low, high = (factor, high) if found > nats else (low, factor)
    raise RuntimeError(f"the policy has {found} nats, and not {nats}")


def scaled(weights: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
    """With logits that are so many times as large."""
    return weights | {_NORM: (weights[_NORM].float() * factor).to(weights[_NORM].dtype)}


def entropy(engine: Any, prompts: list[Prompt]) -> float:
    """Nats a token over a hundred tokens: what is drawn has on average the entropy as its negative logprob."""
    groups = engine.generate(prompts, temperature=1.0, max_new_tokens=100, end_tokens=frozenset(), prove=False)
    return -float(np.mean([logprob for (one,) in groups for logprob in one.logprobs]))
