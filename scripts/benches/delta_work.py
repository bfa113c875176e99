"""Consecutive versions of a run, for the bench of deltas: node.engine generates, Learner learns, and what is published is written.

A Llama of 8 layers × 256, 10.6 million parameters, made on the spot: fp32 master weights, AdamW, `OPTIMIZER_STEPS` steps between two
versions at a constant learning rate, on samples that the newest version made. The reward is cheap and differs within a group, so every
group teaches.
"""

from __future__ import annotations

import random
import secrets
import sys
from pathlib import Path

import numpy as np

from benches.engine_work import write_model
from node.engine import Prompt
from node.engine.torch_engine import TorchEngine
from node.engine.weights import write_tensors
from trainer.config import KlSettings, LossSettings, OptimizerSettings, TrainSettings
from trainer.learning import advantage
from trainer.learning.learner import Learner
from trainer.learning.packing import TrainingSample
from trainer.learning.snapshot import snapshot

OPTIMIZER_STEPS = 8
_VOCABULARY = 8192
_GROUPS, _SIZE, _LENGTH = 8, 8, 32


def main(folder: Path, versions: int, lr: float) -> None:
    """Writes folder/0 to folder/<versions>."""
    made = folder / "model"
    made.mkdir(parents=True)
    write_model(made, _VOCABULARY)
    settings = TrainSettings(
        steps=versions, optimizer_steps=OPTIMIZER_STEPS, optimizer=OptimizerSettings(lr=lr, warmup_steps=0),
        loss=LossSettings(), kl=KlSettings(weight=0.0), pack_tokens=128, rows_per_forward=8,
    )  # fmt: skip
    learner, engine, draw = Learner(made, settings), TorchEngine("float32"), random.Random(0)
    engine.load(made)
    for step in range(versions + 1):
        if step:
            learner.learn(_rollouts(engine, draw), step - 1)
        final = folder / str(step)
        final.mkdir()
        weights = snapshot(learner.model)
        write_tensors(final, {name: tensor.nbytes for name, tensor in weights.items()}, weights.__getitem__)
        (final / "config.json").write_bytes((made / "config.json").read_bytes())
        engine.load(final)
        print(step, flush=True)


def _rollouts(engine: TorchEngine, draw: random.Random) -> list[list[TrainingSample]]:
    prompts = [
        Prompt([draw.randrange(3, _VOCABULARY) for _ in range(12)], tuple(secrets.randbits(64) for _ in range(_SIZE)))
        for _ in range(_GROUPS)
    ]
    made = engine.generate(prompts, temperature=1.0, max_new_tokens=_LENGTH, end_tokens=frozenset(), prove=False)
    groups = []
    for prompt, completions in zip(prompts, made, strict=True):
        rewards = np.array([sum(one.tokens[:8]) % 17 / 17 for one in completions])
        ids = np.array(prompt.tokens, np.int32)
        groups.append(
            [
                TrainingSample(ids, np.array(c.tokens, np.int32), float(a), np.array(c.logprobs, np.float32))
                for c, a in zip(completions, advantage.normalised(rewards), strict=True)
            ]
        )
    return groups


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
