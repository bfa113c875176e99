"""Settings under which a training fits, tried from the cheapest change to the dearest.

Tried is what leaves alone what is trained: where things lie, how much is computed at once, and in which types. Adapters in place of all
weights are another training, so they are looked at where nothing else fits, and named, never chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from node.engine.settings import EngineSettings
from protocol.errors import ConfigError
from trainer.config import TrainSettings
from trainer.planning.budget import Budget, Budgets

ADAPTERS = 32
"""Rank of the adapters that are looked at where nothing else fits."""
_SHARE = "20%"  # of the memory that what generates or evaluates lies in: the device's, or the host's
_MOVED = (
    ("evaluation.engine.device", "cpu"),
    ("trainer.optimizer.offload", True),
)
"""What takes of a machine's memory what it spares on its devices."""

Changes = Mapping[str, Any]
"""Settings by dotted path, as `--set` takes them."""
_Step = tuple[str, Any]
"""A setting and its value; of two steps of one setting the later one counts."""


@dataclass(frozen=True)
class Found:
    """`changes` make the training fit, as `budget` says; None: none of those that are tried do."""

    changes: Changes | None
    budget: Budget
    """Where nothing fits: the one with every change."""


def fitting(plan: Budgets, settings: TrainSettings) -> Found:
    """The first combination that fits; without a change where none is needed."""
    asked = plan.budget(settings)
    if asked.fits:
        return Found({}, asked)
    steps = _steps(plan, settings)
    for tried in _combinations(steps):
        if _fits(under(plan, settings, dict(tried))):
            changes = _needed(plan, settings, tried)
            return Found(changes, under(plan, settings, changes))
    return Found(None, under(plan, settings, dict(steps)))


def adapted(plan: Budgets, settings: TrainSettings) -> Found | None:
    """The same with adapters in place of all weights. None where there are some, or where this model can have none."""
    if settings.lora_rank:
        return None
    try:
        found = fitting(plan, settings.model_copy(update={"lora_rank": ADAPTERS}))
    except ConfigError:
        return None
    return found if found.changes is None else replace(found, changes={"trainer.lora_rank": ADAPTERS, **found.changes})


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


def _steps(plan: Budgets, s: TrainSettings) -> list[_Step]:
    """Whatever spares memory: first what costs least in speed, last what is computed less exactly and was not tried on a large model."""
    gpu, generates = not plan.machines.on_cpu, plan.engines.generates
    least = f"{-(-plan.least >> 20)}MiB"
    has_reference = bool(s.kl.weight) and not s.lora_rank
    steps: list[tuple[str, Any, bool]] = [
        ("evaluation.engine.memory", _SHARE, _holds_less(plan, plan.engines.evaluates)),
        ("engine.memory", _SHARE, generates is not None and _holds_less(plan, generates)),
        ("trainer.activation_checkpointing", True, not s.activation_checkpointing),
        ("trainer.rows_per_forward", 1, s.rows_per_forward > 1),
        ("evaluation.engine.memory", least, plan.least > 0),
        ("engine.memory", least, plan.least > 0 and generates is not None),
        ("evaluation.engine.device", "cpu", gpu),
        ("trainer.kl.reference", "host", gpu and has_reference and s.kl.reference == "device"),
        ("trainer.kl.reference", "disk", has_reference and s.kl.reference != "disk"),
        ("trainer.compute_dtype", "bfloat16", s.compute_dtype == "float32"),
        ("trainer.optimizer.offload", True, gpu and not s.optimizer.offload),
        *(("trainer.pack_tokens", width, True) for width in _widths(s.pack_tokens, plan.longest)),
        ("trainer.optimizer.moments", "bfloat16", s.optimizer.moments == "float32"),
    ]
    return [(path, value) for path, value, applies in steps if applies]


def _holds_less(plan: Budgets, engine: EngineSettings) -> bool:
    """Whether the share is less than what this engine takes, and enough for the weights in float32, and as much again to work with."""
    share = plan.engine(engine, memory_of=_SHARE).total
    return max(plan.least, 8 * plan.sizes.all) <= share < plan.engine(engine).total


def _widths(asked: int, least: int) -> Iterator[int]:
    """Of rows: no sample is longer than the narrowest."""
    width = asked
    while width // 2 >= least:
        width //= 2
        yield width
    if width > least:
        yield least


def _combinations(steps: Sequence[_Step]) -> Iterator[list[_Step]]:
    """Each with one step more than the one before; then all but those that move something to a machine's memory, where that is short."""
    for count in range(1, len(steps) + 1):
        yield list(steps[:count])
    for kept in (_MOVED[:1], _MOVED[1:], ()):
        yield [step for step in steps if step not in _MOVED or step in kept]


def _needed(plan: Budgets, settings: TrainSettings, steps: Sequence[_Step]) -> Changes:
    """Those without which it does not fit, the dearest kept only where they must be."""
    kept = list(steps)
    for step in reversed(steps):
        without = [other for other in kept if other != step]
        if _fits(under(plan, settings, dict(without))):
            kept = without
    return dict(kept)


def _fits(budget: Budget) -> bool:
    """And leaves engines what they need: nothing else is proposed."""
    return budget.fits and budget.engines_work


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
