"""Two ranks that share one model, and what each of them takes for it; started.py plays a scene in both.

A scene is a dtype, or `read`: float32, and nothing is learned. Every rank writes what it saw to FOLDER/SCENE-RANK.json.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from benches.memory import peak_bytes

from node.engine.weights import build_model, stored_tensors
from protocol.model_files import WEIGHTS
from tests.trainer import small
from tests.trainer.test_planning import full_rows, settings
from trainer.config import KlSettings
from trainer.learning.learner import Learner
from trainer.learning.ranks import gathered, torchrun

SIZES = {"hidden_size": 256, "intermediate_size": 768, "vocab_size": 8192, "num_hidden_layers": 6, "head_dim": 64}
ROWS = 8
"""Of a step: two of each rank in each of two optimizer steps, so that gradients of the first are there while the second is computed."""


def how(dtype: str) -> Any:
    return settings(
        compute_dtype=dtype,
        activation_checkpointing=dtype == "bfloat16",
        lr=1e-4,
        optimizer_steps=2,
        kl=KlSettings(weight=0.1),
    )


def main(folder: Path, scene: str) -> None:
    dtype = "float32" if scene == "read" else scene
    with torchrun() as ranks:
        made: list[Learner] = []
        loading = peak_bytes(lambda: made.append(Learner(folder / "model", how(dtype), ranks)))
        loading -= (
            (folder / "model" / WEIGHTS).stat().st_size
        )  # safetensors maps a file as one tensor: that is no memory
        (learner,) = made
        head, embedding = learner.model.get_output_embeddings().weight, learner.model.get_input_embeddings().weight
        model = build_model(folder / "model", torch.float32)  # whole, now that the peak is known
        expected = {name: tensor.detach() for name, tensor in stored_tensors(model).items()}
        found = {name: gathered(tensor.detach()) for name, tensor in stored_tensors(learner.model).items()}
        seen = {
            "loading": loading, "tied": head is embedding,
            "whole": sum(tensor.nbytes for tensor in expected.values()), "equal": small.equal(expected, found),
            "buffers": small.equal(dict(model.named_buffers()), dict(learner.model.named_buffers())),
        }  # fmt: skip
        if scene != "read":
            vocabulary = learner.model.config.vocab_size
            steps = [
                asdict(learner.learn(full_rows(ROWS, vocabulary), 0))
            ]  # afterwards moments and reference are there
            learning = peak_bytes(lambda: steps.append(asdict(learner.learn(full_rows(ROWS, vocabulary), 1))))
            seen |= {"learning": learning, "steps": steps}
        (folder / f"{scene}-{ranks.rank}.json").write_text(json.dumps(seen))
