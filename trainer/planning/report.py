"""A plan as a person reads it, and as a program does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from protocol.errors import PreflightError
from trainer.planning.budget import SPARE, Budget, NodeBytes, Sizes
from trainer.planning.search import ADAPTERS, Found

NODES = {"24": 24, "48": 48, "80": 80, "4 × 24": 96}
"""GiB of GPUs that contributors may have, as they say it; over several vLLM splits a model."""
_WORDS = {
    "weights": "weights, float32",
    "gradients": "gradients, float32",
    "reference": "reference",
    "gathered": "layers gathered whole, and their gradients",
    "activations": "activations",
    "logits": "logits",
    "generation": "generation, first rank ([engine] memory)",
    "evaluation": "evaluation, first rank ([evaluation.engine] memory)",
    "libraries": "CUDA and NCCL, estimated",
    "version": "version to publish, bfloat16",
    "saving": "files of a checkpoint, while it is written",
    "engines": "engines on the CPU, first machine",
}


@dataclass(frozen=True)
class PlanReport:
    model: str
    sizes: Sizes
    asked: Budget
    """As the settings are."""
    found: Found
    ranks: int | None
    """With which every change together would fit, where it does not with those there are."""
    adapters: Found | None
    """With adapters in place of all weights, where nothing else fits."""
    node: NodeBytes
    node_dtype: str
    answer: int
    """Tokens of the longest answer with its prompt."""

    def as_dict(self) -> dict[str, Any]:
        found = self.found
        return {
            "model": self.model, "parameters": self.sizes.all, "adapters": self.asked.adapters, "machines": asdict(self.asked.machines),
            "tokens": self.asked.tokens, "device": _bytes(self.asked.device), "host": _bytes(self.asked.host),
            "fits": self.asked.fits, "changes": None if found.changes is None else dict(found.changes), "ranks": self.ranks,
            "changed": None if not found.changes else {"device": _bytes(found.budget.device), "host": _bytes(found.budget.host)},
            "with_adapters": self.adapters.changes if self.adapters else None,
            "node": {**asdict(self.node), "dtype": self.node_dtype, "tokens": self.answer,
                     "at_once": {f"{size}GiB": self.node.at_once(_share(gib)) for size, gib in NODES.items()}},
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        m = self.asked.machines
        kind = (
            "one process on a CPU"
            if not m.sharded
            else f"{m.ranks} rank{'s' if m.ranks > 1 else ''}, {m.per_machine} on each machine"
        )
        adapters = f" and {self.asked.adapters:,} of adapters, which alone are trained" if self.asked.adapters else ""
        yield f"{self.model}: {self.sizes.all:,} parameters{adapters}. {kind}; {self.asked.tokens:,} tokens go through the model at once."
        yield from _budget(self.asked)
        yield ""
        yield f"a node, in {self.node_dtype}"
        yield _line("weights", self.node.weights)
        yield _line(f"an answer of {self.answer:,} tokens, prompt included: its cache", self.node.answer)
        for size, gib in NODES.items():
            fit = self.node.at_once(_share(gib))
            yield f"  of {self.node.answers} such answers of a submission, {min(fit, self.node.answers)} at once in {size} GiB (80 %)"
        if not self.asked.engines_work:
            yield f"Weights and one such answer take {_gib(self.node.least)}, and an engine beside the training may take less: set"
            yield "evaluation.engine.memory, or engine.memory, unless answers stay shorter."
        yield ""
        yield from self._verdict()

    def _verdict(self) -> Iterator[str]:
        if self.asked.fits:
            yield "It fits."
        elif self.found.changes is not None:
            yield "It does not fit as it is. It does with"
            yield from (f"  --set {text}" for text in assignments(self.found))
            yield from _budget(self.found.budget)
        else:
            yield "It does not fit with any setting that is tried. With all of them:"
            yield from _budget(self.found.budget)
            yield from self._with_adapters()

    def _with_adapters(self) -> Iterator[str]:
        if self.adapters is None:
            return
        yield ""
        if self.adapters.changes is None:
            yield f"Nor does it with adapters of rank {ADAPTERS} in place of all weights."
            return
        yield "It does with adapters in place of all weights, which is another training:"
        yield from (f"  --set {text}" for text in assignments(self.adapters))
        yield from _budget(self.adapters.budget)

    def require_fit(self) -> None:
        """Raises PreflightError that names what to change, unless it fits as it is."""
        if self.asked.fits:
            return
        if self.found.changes is not None:
            raise PreflightError("this training does not fit", hint="set " + ", ".join(assignments(self.found)))
        more = f"{self.ranks} ranks" if self.ranks else "a smaller model"
        if self.asked.machines.on_cpu:
            more = "a machine with GPUs, or a smaller model"
        hint = f"it takes {more}"
        if self.adapters and self.adapters.changes:
            hint += ", or adapters in place of all weights, which is another training: set " + ", ".join(
                assignments(self.adapters)
            )
        raise PreflightError("this training does not fit with any setting that is tried", hint=hint)


def assignments(found: Found) -> list[str]:
    """As `--set` takes them."""
    return [f"{path}={str(value).lower()}" for path, value in (found.changes or {}).items()]


def _share(gib: int) -> int:
    return int(0.8 * (gib << 30))


def _bytes(of: Any) -> dict[str, int]:
    return {**{field.name: getattr(of, field.name) for field in fields(of)}, "total": of.total}


def _budget(b: Budget) -> Iterator[str]:
    m = b.machines
    yield ""
    when = "" if b.device.gradients else ", while it compares with the reference"
    where = "part of its machine's memory" if m.on_cpu else "GPU"
    yield f"each rank's {where}{when}"
    words = _WORDS | {"optimizer": f"optimizer, two moments in {b.moments}"}
    if b.adapters:
        words["weights"] = "weights as they are computed, and adapters"
    yield from _parts(b.device, words)
    if not m.on_cpu:
        yield _sum(b.device.total, b.device_room, m.memory)
    yield ""
    yield "each machine's memory"
    if m.on_cpu:
        yield _line(f"its {m.per_machine} rank{'s' if m.per_machine > 1 else ''}", b.device.total * m.per_machine)
    yield from _parts(b.host, words)
    yield _sum(b.host_needed, b.host_room, m.host)


def _parts(of: Any, words: Mapping[str, str]) -> Iterator[str]:
    for field in fields(of):
        if size := getattr(of, field.name):
            yield _line(words[field.name], size)


def _line(what: str, size: int) -> str:
    return f"  {what:<52} {_gib(size):>14}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _sum(needed: int, room: int, there: int) -> str:
    said = "fits in" if needed <= room else "is more than"
    return f"{_line('together', needed)}, which {said} {room / 2**30:.2f} ({1 - SPARE:.0%} of {there / 2**30:.2f})"
