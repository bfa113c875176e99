"""The trainer's self-check at start: its packed rows against the plain model, as nodes compare their engines (node/engine/self_check.py).

All are held against one measure, so a trainer, a node and a validator that pass compute the same model but for rounding. Sequences of
the actual model, longer than any window, are packed as samples are: several in a row, two completions of one prompt; once by masks
and once in pieces, where the model takes both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from node.engine.plain import PlainModel
from node.engine.self_check import Logprobs, Measure, Sequences, prompts
from trainer.learning.packing import TrainingSample, pack
from trainer.learning.ranks import Ranks
from trainer.learning.scorer import Scorer

_NEW_TOKENS = 24
_WIDTH = 512  # of the rows, at least: the short sequences lie side by side


def require(policy: Scorer, folder: Path, ranks: Ranks, dtype: str, width: int) -> None:
    """Raises PreflightError, on rank 0, where packed rows are computed otherwise than the model in `folder` is alone.

    Every rank has to call it: the policy may be sharded. `dtype` is what its layers compute in, `width` that of the run's rows.
    """
    config = policy.model.config
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    asked = prompts(config, parameters, ranks.device.type)
    rng = np.random.default_rng(1)
    sequences = [
        (prompt, rng.integers(2, int(config.vocab_size), _NEW_TOKENS).tolist()) for prompt in (asked[0], *asked)
    ]
    ways = {"the trainer's packed rows": _packed(policy, sequences, ranks, max(width, _WIDTH))}
    if policy.takes_pieces:
        with policy.in_pieces():
            ways["the trainer's rows in pieces"] = _packed(policy, sequences, ranks, max(width, _WIDTH))
    if ranks.leads:
        Measure(PlainModel(folder, ranks.device), sequences, dtype).require(ways)


@torch.no_grad()
def _packed(policy: Scorer, sequences: Sequences, ranks: Ranks, width: int) -> Logprobs:
    samples = [
        TrainingSample(np.array(prompt, np.int32), np.array(completion, np.int32), 0.0, name=str(i))
        for i, (prompt, completion) in enumerate(sequences)
    ]
    found: dict[int, NDArray[np.floating]] = {}
    for rows in pack(samples, width, 1):
        logprobs = policy(rows.to(ranks.device))[0].float().cpu()
        parts = logprobs.split(rows.lengths.tolist())
        found |= {int(sample.name): part.numpy() for sample, part in zip(rows.samples, parts, strict=True)}
    return [found[i] for i in range(len(sequences))]
