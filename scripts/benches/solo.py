"""A swarm's learning without the swarm, in one process: for benches that ask what is learned and not who waits for whom.

The parts are those of every run: submissions as nodes make them (node/contributor/generation.py: the engine, the assignment, proofs, the
verifiers in their sandbox, penalties for length), read back as the trainer reads them, batches as `murmur trainer solo` collects them,
`Learner`, and weights handed over as the bf16 files that are published. Chain, network and validators are missing, and nobody waits: rollouts are exactly `staleness`
versions old, and times are CPU times of this process.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.contributor.generation import Place, make
from node.engine.torch_engine import TorchEngine
from node.judging.candidate import RunContext
from protocol.environments import TaskSet
from protocol.rollout import Sample
from protocol.sandbox import Sandbox
from protocol.settings import read_toml, write_toml
from protocol.shell import runfile
from protocol.signing import Domain
from protocol.tokenizer import Tokenizer
from trainer.config import TrainSettings
from trainer.hub.outbox import Outbox
from trainer.learning.learner import Learner, StepMetrics
from trainer.learning.snapshot import snapshot
from trainer.models.tiny import make_policy
from trainer.rollouts.local import Batches, NothingToLearn, version_for

__all__ = ["NOBODY", "NothingToLearn", "Solo", "Step", "create"]

NOBODY = "0x" + "11" * 20
_DOMAIN = Domain(31337, NOBODY)  # type: ignore[arg-type]


def create(folder: Path, tables: dict[str, Any], *, target: float, seed: int, phrases: Sequence[str] = ()) -> Path:
    """Writes run.toml and a policy of its own into `folder`; returns run.toml. See trainer/models/tiny.py for the rest."""
    folder.mkdir(parents=True)
    file = folder / "run.toml"
    write_toml(file, tables, "A run of one process.")
    make_policy(file, runfile.model_folder(file), target=target, seed=seed, phrases=phrases)
    return file


@dataclass(frozen=True)
class Step:
    """What one step made and took. `version` is that of the weights which made the rollouts; times in CPU seconds."""

    version: int
    rollouts: tuple[Sample, ...]
    metrics: StepMetrics
    generating: float
    training: float


class Solo:
    """Use as a context manager: the sandbox is a child process."""

    def __init__(self, file: Path, folder: Path, *, staleness: int = 0, seed: int = 0) -> None:
        """Starts from the policy beside `file`; versions and rollouts go to `folder`. The same `seed` gives the same problems
        and sampling keys at every step, whatever the staleness."""
        model = runfile.model_folder(file)
        self.spec = runfile.complete(file, model)
        self.sandbox = Sandbox(self.spec)
        self.tasks = TaskSet(self.spec.environments, self.sandbox)
        self.tokenizer = Tokenizer(model)
        self.engine = TorchEngine(self.spec.model.compute_dtype)
        self._settings = TrainSettings.model_validate(read_toml(file)["trainer"] | {"seed": seed})
        self._context = RunContext(self.spec, _DOMAIN, 1, self.tasks, self.sandbox)
        self._learner = Learner(model, self._settings)
        self._batches = Batches(
            self._submission, self.spec.sampling.group_size, self.tokenizer.end_tokens,
            online_filter=self._settings.online_filter,
        )  # fmt: skip
        self._folder = folder
        self._staleness = staleness
        self._step = 0
        self._outbox = Outbox(folder / "versions", model)
        self.newest = self._outbox.write(snapshot(self._learner.model), 0)
        """Folder of the weights after the last step."""

    def __enter__(self) -> Solo:
        return self

    def __exit__(self, *_: object) -> None:
        self.sandbox.close()

    def step(self) -> Step:
        """Generates with the weights of `staleness` steps ago, learns, hands the new weights over. Raises NothingToLearn."""
        version, started = version_for(self._step, self._staleness, self._outbox.folder), time.process_time()
        self.engine.load(self._outbox.folder / str(version))
        made = self._batches.collect(self._step, self._settings.groups_per_step, version=version)
        assert made is not None  # nobody stops it
        groups, rollouts = made
        generated = time.process_time()
        metrics = self._learner.learn([group.samples for group in groups], self._step)
        self._step += 1
        self.newest = self._outbox.write(snapshot(self._learner.model), self._step)
        trained = time.process_time()
        self._outbox.remove_before(self._step - self._staleness)
        return Step(version, tuple(rollouts), metrics, generated - started, trained - generated)

    def _submission(self, step: int, sequence: int) -> tuple[Sample, ...]:
        # Named by the step that learns from it, not by the version that makes it: every staleness is asked the same.
        beacon = hashlib.sha256(f"{self._settings.seed}/{step}".encode()).digest()
        place = Place(NOBODY, step, sequence, beacon, hardware=0)
        made = make(self._context, self.engine, self.tokenizer, place, self._folder / "rollouts")
        try:
            return self.sandbox.read(made.path).file.samples
        finally:
            made.path.unlink()
