"""Several ranks that train together, for test_ranks.py: started.py plays WHAT of it, or WHAT,WHAT,... one after the other.

Rank 0 leads as the trainer does, and writes what it saw to FOLDER/WHAT-SIZE.json; what the others saw is in the weights.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.trainer import small
from trainer.config import DeadlineSettings, KlSettings, LossSettings, OptimizerSettings, TrainSettings
from trainer.hub.outbox import Outbox
from trainer.learning.checkpoint import Checkpoints
from trainer.learning.learner import Learner, StepMetrics
from trainer.learning.ranks import Ranks, torchrun
from trainer.loop.followers import Lead, follow
from trainer.telemetry.phases import Phases
from trainer.telemetry.watchdog import Watchdog

STEPS = 4


def settings(**changes: Any) -> TrainSettings:
    """With every part of a step that is computed before the first optimizer step."""
    return small.settings(
        lr=1e-3, optimizer_steps=2, kl=KlSettings(weight=0.01), loss=LossSettings(entropy=1e-3),
        deadlines=DeadlineSettings(training=changes.pop("training", 100)), **changes,
    )  # fmt: skip


def batch(step: int) -> list[Any]:
    """Five groups: no number of ranks divides their rows."""
    return [
        tuple(replace(sample, name=f"{step}.{n}.{i}") for i, sample in enumerate(small.group(10 * step + n)))
        for n in range(5)
    ]


def train(lead: Lead, folder: Path, ranks: Ranks) -> dict[str, Any]:
    found = [asdict(lead.learn(batch(step), step)) for step in range(STEPS)]
    checkpoints = Checkpoints(folder / f"checkpoints-{ranks.size}", keep=1)
    checkpoints.save(STEPS, {}, lead.save)
    version = Outbox(folder / f"outgoing-{ranks.size}", folder / "model").write(lead.snapshot(), STEPS)
    found += [asdict(lead.learn(batch(STEPS), STEPS))]
    return {"steps": found, "version": str(version)}


def resume(lead: Lead, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """From the checkpoint of every number of ranks there is."""
    found = {}
    for path in sorted(folder.glob("checkpoints-*")):
        lead.restore(path / f"step_{STEPS}")
        found[path.name] = asdict(lead.learn(batch(STEPS), STEPS))
    return found


def blame(lead: Lead, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """One rollout has an advantage that is no number."""
    poisoned = [tuple(_poisoned(sample) for sample in group) for group in batch(0)]
    before = lead.snapshot()
    metrics = lead.learn(poisoned, 0)
    return {"metrics": asdict(metrics), "changed": not small.equal(before, lead.snapshot())}


def adapters(lead: Lead, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """As `train`, with adapters; and its last step once more, from the checkpoint."""
    return _again(lead, folder / "adapters", ranks)


def moments(lead: Lead, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """The same with moments in bfloat16; before it one row, which leaves ranks without any, and rollouts that teach nothing."""
    nothing = [tuple(replace(sample, advantage=0.0) for sample in group) for group in batch(1)]
    thin = [asdict(lead.learn(groups, step)) for step, groups in enumerate((batch(0)[:1], nothing))]
    return {"thin": thin, **_again(lead, folder / "moments", ranks)}


def resume_moments(lead: Lead, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """From what `moments` saved, with every number of ranks there is."""
    return resume(lead, folder / "moments", ranks)


def _again(lead: Lead, own: Path, ranks: Ranks) -> dict[str, Any]:
    folder = own.parent
    own.mkdir(exist_ok=True)
    if not (own / "model").exists():
        (own / "model").symlink_to(folder / "model")
    found = train(lead, own, ranks)
    lead.restore(own / f"checkpoints-{ranks.size}" / f"step_{STEPS}")
    return found | {"again": asdict(lead.learn(batch(STEPS), STEPS))}


def rounded(lead: Lead, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Adapters beside layers in bfloat16."""
    types = sorted({str(parameter.dtype) for parameter in lead.model.parameters()})
    return {"types": types, "steps": [asdict(lead.learn(batch(step), step)) for step in range(2)]}


def _poisoned(sample: Any) -> Any:
    return replace(sample, advantage=float("nan")) if sample.name == "0.3.2" else sample


def full_disk(lead: Lead, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """The last rank cannot write its part of a checkpoint; the next one is whole."""
    from protocol.errors import PreflightError

    checkpoints = Checkpoints(folder / "full", keep=1)
    try:
        checkpoints.save(1, {}, lead.save)
    except PreflightError as error:
        refused = str(error)
    (folder / "free").touch()
    checkpoints.save(2, {}, lead.save)
    return {"refused": refused, "steps": checkpoints.steps()}


def hang(lead: Lead, folder: Path, ranks: Ranks) -> dict[str, Any]:
    lead.learn(batch(0), 0)
    with _phases("training", 3.0):
        lead.learn(batch(1), 1)
    return {}


SCENES: dict[str, Callable[[Lead, Path, Ranks], dict[str, Any]]] = {
    scene.__name__: scene
    for scene in (train, resume, blame, full_disk, hang, adapters, rounded, moments, resume_moments)
}
_ROUNDED = OptimizerSettings(lr=1e-3, warmup_steps=1, gradient_clip=1.0, moments="bfloat16")
SETTINGS: dict[str, dict[str, Any]] = {
    "moments": {"optimizer": _ROUNDED},
    "resume_moments": {"optimizer": _ROUNDED},
    "adapters": {"lora_rank": 5, "activation_checkpointing": True},
    "rounded": {"lora_rank": 5, "activation_checkpointing": True, "compute_dtype": "bfloat16"},
}
"""What a scene changes of them. Of five rows the second of two ranks has two."""
_phases = Phases()


class Hanging(Learner):
    """Stops computing in its second step, as a rank whose GPU is gone would."""

    def learn(self, groups: Any, step: int) -> StepMetrics:
        if step == 1:
            time.sleep(1000)
        return super().learn(groups, step)


class WithoutDisk(Learner):
    def save(self, folder: Path) -> None:
        import resource

        free = (folder.parents[2] / "free").exists()
        soft = resource.RLIM_INFINITY if free else 2_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
        super().save(folder)


def alone(folder: Path, what: str) -> dict[str, Any]:
    """What one rank finds, in this process."""
    learner = Learner(folder / "model", settings(**SETTINGS.get(what, {})))
    return SCENES[what](Lead(learner), folder, Ranks.alone())


def main(folder: Path, what: str) -> None:
    with torchrun() as ranks:
        for one in what.split(","):
            play(folder, one, ranks)


def play(folder: Path, what: str, ranks: Ranks) -> None:
    last = ranks.rank == ranks.size - 1
    kind = {"hang": Hanging, "full_disk": WithoutDisk}.get(what, Learner) if last else Learner
    how = settings(**SETTINGS.get(what, {}))
    learner = kind(folder / "model", how, ranks)
    if what in SETTINGS:
        learner.require_right()
    with Watchdog(_phases, folder / f"stacks-{ranks.rank}.txt", lambda phase: None):
        if not ranks.leads:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            follow(learner, how, _phases)
            return
        lead = Lead(learner)
        found = SCENES[what](lead, folder, ranks)
        lead.end()
        (folder / f"{what}-{ranks.size}.json").write_text(json.dumps(found))
