"""What the switches of the paper's presets do to an optimizer step, by one process or by ranks over gloo, in which
started.py plays it. Rank 0 writes what it saw to FOLDER/PRESET-SIZE.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainer import small
from trainer.config import TrainSettings
from trainer.learning import loss
from trainer.learning.learner import Learner
from trainer.learning.ranks import torchrun
from trainer.learning.snapshot import snapshot
from trainer.presets import preset

OPTIMIZER_STEPS = 2


def settings(name: str) -> TrainSettings:
    """The preset's, on a batch for this model."""
    return TrainSettings(
        **{**preset(name)["trainer"], "groups_per_step": 4, "optimizer_steps": OPTIMIZER_STEPS, "pack_tokens": 64}
    )


class Types(TorchDispatchMode):
    """The types of what is multiplied in the layers and by the head, and of what ranks gather and sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: set[torch.dtype] = set()
        self.head: set[torch.dtype] = set()
        self.gathered: set[torch.dtype] = set()
        self.summed: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name, given = func._schema.name, [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        if name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::addmm_"):
            of_head = any(small.VOCABULARY in tensor.shape for tensor in given)
            (self.head if of_head else self.layers).update(tensor.dtype for tensor in given)
        elif "allgather" in name:
            self.gathered |= {tensor.dtype for tensor in given}
        elif "reduce_scatter" in name:
            self.summed |= {tensor.dtype for tensor in given}
        return made


def look(learner: Learner) -> dict[str, Any]:
    """What one step of the trainer was computed in, and how often."""
    groups = small.groups(4)
    parts = [[sample for group in groups[i::OPTIMIZER_STEPS] for sample in group] for i in range(OPTIMIZER_STEPS)]
    later = learner._prepare(parts)[1].shares
    rates: list[float] = []
    updated = learner.optimizer.register_step_pre_hook(lambda of, *_: rates.append(of.param_groups[0]["lr"]))
    with Types() as types:
        learner.learn(groups, 0)
    updated.remove()
    calls: list[None] = []
    attention = learner.model.base_model.layers[0].self_attn
    computed = attention.register_forward_hook(lambda *_: calls.append(None))
    learner._backward(later, loss.Totals(1, 1))
    computed.remove()
    parameters = list(learner.model.parameters())
    return {
        "layers": named(types.layers), "head": named(types.head), "gathered": named(types.gathered), "summed": named(types.summed),
        "masters": kinds(parameters), "gradients": kinds(p.grad for p in parameters),
        "moments": kinds(value for of in learner.optimizer.state.values() for value in of.values()),
        "published": kinds(snapshot(learner.model).values()),
        "logprobs": kinds(tensor for share in later for tensor in (share.old, share.reference)),
        "reference is the policy": all(torch.equal(share.old, share.reference) for share in later),
        "ranks": learner.ranks.size, "passes": len(calls) / len(later), "rates": rates,
    }  # fmt: skip


def kinds(tensors: Iterable[Any]) -> list[str]:
    return named({tensor.dtype for tensor in tensors})


def named(types: set[torch.dtype]) -> list[str]:
    return sorted(str(kind).removeprefix("torch.") for kind in types)


def main(folder: Path, name: str) -> None:
    with torchrun() as ranks:
        found = look(Learner(folder / "model", settings(name), ranks))
        if ranks.leads:
            (folder / f"{name}-{ranks.size}.json").write_text(json.dumps(found))
