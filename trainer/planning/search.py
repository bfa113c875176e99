"""Settings under which a training fits, tried from the cheapest change to the dearest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from node.engine.memory import parse
from trainer.config import TrainSettings
from trainer.planning.budget import Budget, Budgets

_SHARE = "20%"  # of the device's memory, for what generates or evaluates

Changes = Mapping[str, Any]
"""Settings by dotted path, as `--set` takes them."""


@dataclass(frozen=True)
class Found:
    """`changes` make the training fit, as `budget` says; None: no settings do."""

    changes: Changes | None
    budget: Budget
    """Where nothing fits: the one with every change."""


def fitting(plan: Budgets, settings: TrainSettings) -> Found:
    """The first combination that fits; without a change where none is needed."""
    budget = plan.budget(settings)
    if budget.fits:
        return Found({}, budget)
    for changes in _combinations(plan, settings):
        budget = under(plan, settings, changes)
        if budget.fits:
            return Found(_needed(plan, settings, changes), budget)
    return Found(None, budget)


def enough_ranks(plan: Budgets, settings: TrainSettings, most: int = 1024) -> int | None:
    """Fewest ranks, of as many GPUs as these, with which the training fits under every change; None: not with `most`."""
    m, ranks = plan.machines, plan.machines.ranks
    while not m.on_cpu and 2 * ranks <= most:
        ranks *= 2
        if (
            fitting(plan.on(replace(m, ranks=ranks, per_machine=min(ranks, max(m.per_machine, 8)))), settings).changes
            is not None
        ):
            return ranks
    return None


def _combinations(plan: Budgets, s: TrainSettings) -> Iterator[dict[str, Any]]:
    """Each with one change more than the one before."""
    gpu = not plan.machines.on_cpu
    asked, share = plan.budget(s).device, parse(_SHARE, plan.machines.memory)
    holds = 8 * plan.sizes.all <= share  # the weights in float32, and as much again to work with
    steps: list[tuple[str, Any, bool]] = [
        ("evaluation.engine.memory", _SHARE, holds and asked.evaluation > share),
        ("engine.memory", _SHARE, holds and asked.generation > share),
        ("trainer.activation_checkpointing", True, not s.activation_checkpointing),
        ("trainer.rows_per_forward", 1, s.rows_per_forward > 1),
        ("evaluation.engine.device", "cpu", gpu),
        (
            "trainer.kl.reference",
            "host" if gpu else "disk",
            bool(s.kl.weight) and not s.lora_rank and s.kl.reference == "device",
        ),
        ("trainer.compute_dtype", "bfloat16", s.compute_dtype == "float32"),
        ("trainer.optimizer.offload", True, gpu and not s.optimizer.offload),
    ]
    made: dict[str, Any] = {}
    for path, value, applies in steps:
        if applies:
            made[path] = value
            yield dict(made)
    width, least = s.pack_tokens // 2, plan.longest
    while width >= least:
        yield {**made, "trainer.pack_tokens": width}
        width //= 2
    if s.pack_tokens > least:
        yield {**made, "trainer.pack_tokens": least}


def _needed(plan: Budgets, settings: TrainSettings, changes: Changes) -> Changes:
    """Those without which it does not fit, the dearest kept only where they must be."""
    kept = dict(changes)
    for path in reversed(list(changes)):
        without = {key: value for key, value in kept.items() if key != path}
        if under(plan, settings, without).fits:
            kept = without
    return kept


def under(plan: Budgets, settings: TrainSettings, changes: Changes) -> Budget:
    tree = settings.model_dump()
    for path, value in changes.items():
        *parents, leaf = path.split(".")
        if parents[0] == "trainer":
            place = tree
            for parent in parents[1:]:
                place = place[parent]
            place[leaf] = value
    return plan.budget(
        TrainSettings.model_validate(tree), evaluates_on=changes.get("evaluation.engine.device"),
        evaluates_in=changes.get("evaluation.engine.memory"), generates_in=changes.get("engine.memory"),
    )  # fmt: skip
