"""Our side of the trainer bench: node.engine generates, Learner learns. Speaks the protocol of trainer.py on stdin, stdout."""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benches.watermark import Watermark
from node.engine import Prompt
from node.engine.decoding import Request
from node.engine.torch_engine import TorchEngine
from node.engine.weights import save_weights
from protocol.model_files import WEIGHTS
from trainer.config import KlSettings, LossSettings, OptimizerSettings, TrainSettings
from trainer.learning import advantage
from trainer.learning.learner import Learner
from trainer.learning.packing import TrainingSample


class ForcedEnds(TorchEngine):
    """Ends every sample at the length that the work gives it."""

    def begin(self, prompts: list[Prompt], lengths: list[list[int]]) -> None:
        of = zip(prompts, lengths, strict=True)
        self._length = {key: length for prompt, row in of for key, length in zip(prompt.keys, row, strict=True)}

    def _is_over(self, request: Request, token: int, most: int, end_tokens: frozenset[int]) -> bool:
        return len(request.completion.tokens) == self._length[request.key]


def reward(tokens: list[int]) -> float:
    """Cheap, and different within a group."""
    return sum(tokens[:8]) % 17 / 17


def main(folder: Path, table: dict[str, Any]) -> None:
    """`table`: what a user would write into [trainer]."""
    work = json.loads((folder / "work.json").read_text())
    optimizer = {"lr": 1e-6, "warmup_steps": 0, **table.pop("optimizer", {})}
    settings = TrainSettings(
        steps=100, optimizer_steps=2, optimizer=OptimizerSettings(**optimizer), loss=LossSettings(entropy=0.0), kl=KlSettings(weight=0.0), **table,
    )  # fmt: skip
    learner, engine = Learner(folder, settings), ForcedEnds("float32")
    engine.load(folder)
    published = folder / "published"
    published.mkdir(exist_ok=True)  # also of a run with other settings
    memory = Watermark()
    for step, (asked, _) in enumerate(zip(work["rounds"], sys.stdin, strict=False)):
        started = time.process_time()
        prompts = [Prompt(p, tuple(secrets.randbits(64) for _ in range(work["group_size"]))) for p in asked["prompts"]]
        engine.begin(prompts, asked["lengths"])
        made = engine.generate(
            prompts, temperature=1.0, max_new_tokens=work["longest"], end_tokens=frozenset(), prove=False
        )
        generated = time.process_time()
        groups = []
        for prompt, completions in zip(asked["prompts"], made, strict=True):
            advantages = advantage.normalised(np.array([reward(c.tokens) for c in completions]))
            ids = np.array(prompt, np.int32)
            groups.append(
                [
                    TrainingSample(ids, np.array(c.tokens, np.int32), float(a), np.array(c.logprobs, np.float32))
                    for c, a in zip(completions, advantages, strict=True)
                ]
            )
        tokens = learner.learn(groups, step).tokens
        assert tokens == sum(length for group in asked["lengths"] for length in group)
        save_weights(learner.model, published / WEIGHTS, torch.bfloat16)
        engine.load(published)
        train = time.process_time() - generated
        row = {"samples": sum(map(len, groups)), "tokens": tokens, "generate": generated - started, "train": train}
        print(json.dumps({**row, "peak": memory.bytes()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
