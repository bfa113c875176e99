"""What rank 0 has the other ranks do: whatever of the learner is collective, in the same order on all of them.

Rank 0 alone has the hub, the chain and the files of the run. It calls a `Lead` as it would call a learner; the others sit in
`follow` until it lets them go. A command is one byte and its argument: a path, or a batch as safetensors. No pickle.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from protocol.errors import IntegrityError, Unavailable
from trainer.config import TrainSettings
from trainer.learning import randomness
from trainer.learning.checkpoint import TENSORS
from trainer.learning.packing import TrainingSample
from trainer.learning.snapshot import snapshot
from trainer.telemetry.phases import Phases

if TYPE_CHECKING:
    from trainer.learning.learner import Learner, StepMetrics

log = logging.getLogger("trainer")

_LEARN, _SAVE, _RESTORE, _SNAPSHOT, _END = b"L", b"S", b"R", b"W", b"E"
_SHARED = (OSError, IntegrityError)
"""What all ranks raise alike, so that they are in step afterwards."""
Groups = Sequence[Sequence[TrainingSample]]


class Lead:
    """Rank 0's learner, and through it that of every rank."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._in_step = True
        """Whether no command was broken off: then the others listen."""

    @property
    def model(self) -> Any:
        return self._learner.model

    def learn(self, groups: Groups, step: int) -> StepMetrics:
        """Learner.learn on all ranks."""
        with self._together(_LEARN, lambda: encode(groups, step)):
            return self._learner.learn(groups, step)

    def save(self, folder: Path) -> None:
        """Everything of a checkpoint that ranks have parts of. Raises OSError when one of them could not write its own."""
        (folder / TENSORS).mkdir()
        with self._together(_SAVE, lambda: str(folder).encode()):
            _save(self._learner, folder)

    def restore(self, folder: Path) -> None:
        """Raises IntegrityError."""
        with self._together(_RESTORE, lambda: str(folder).encode()):
            _restore(self._learner, folder)

    def snapshot(self) -> dict[str, Tensor]:
        """The weights as they are published (snapshot.py)."""
        with self._together(_SNAPSHOT, bytes):
            return snapshot(self._learner.model)

    def end(self) -> None:
        """Lets the other ranks go, unless they wait within something that was broken off: they end with this process then."""
        if self._in_step:
            with self._together(_END, bytes):
                pass

    @contextmanager
    def _together(self, command: bytes, argument: Callable[[], bytes]) -> Iterator[None]:
        if self._learner.ranks.size > 1:
            if not self._in_step:
                raise Unavailable("the ranks are out of step: something was broken off half-way")
            self._in_step = False
            self._learner.ranks.tell(command + argument())
        try:
            yield
        except _SHARED:
            self._in_step = True
            raise
        self._in_step = True


def follow(learner: Learner, settings: TrainSettings, phases: Phases) -> None:
    """What a rank other than 0 does until rank 0 lets it go.

    What goes wrong on all ranks alike is rank 0's to tell, and to end the run for. Raises Unavailable when rank 0 is gone.
    """
    ranks, deadlines = learner.ranks, settings.deadlines
    randomness.begin(settings.seed, ranks.rank)
    idle = settings.rollout_wait_seconds + sum(deadlines.model_dump().values())
    while True:
        with phases("waiting for rank 0", idle):
            try:
                said = ranks.tell()
            except RuntimeError as error:
                raise Unavailable("rank 0 has ended", hint="its own messages say why") from error
        command, argument = said[:1], said[1:]
        if command == _END:
            return
        try:
            if command == _LEARN:
                with phases("training", deadlines.training):
                    learner.learn(*decode(argument))
            elif command == _SNAPSHOT:
                with phases("snapshot", deadlines.publishing):
                    snapshot(learner.model, keep=False)
            elif command == _SAVE:
                with phases("saving", deadlines.saving):
                    _save(learner, Path(argument.decode()))
            elif command == _RESTORE:
                with phases("starting", deadlines.starting):
                    _restore(learner, Path(argument.decode()))
        except _SHARED as error:
            log.warning("rank %d: %s", ranks.rank, error)


def _save(learner: Learner, folder: Path) -> None:
    """Returns, or raises OSError, when all ranks have written, or one could not."""
    learner.save(folder / TENSORS)
    failed: Exception | None = None
    try:
        randomness.save(folder, learner.ranks.rank)
    except (OSError, SafetensorError) as error:
        failed = error
    if any(learner.ranks.sum([float(failed is not None)])):
        raise OSError(str(failed or "another rank could not write its random state"))


def _restore(learner: Learner, folder: Path) -> None:
    learner.restore(folder / TENSORS)
    randomness.restore(folder, learner.ranks.rank)


def encode(groups: Groups, step: int) -> bytes:
    """A batch as safetensors: all tokens one after the other, and how many belong to what."""
    samples = [sample for group in groups for sample in group]
    claimed = [sample.logprobs for sample in samples if sample.logprobs is not None]
    arrays = {
        "groups": np.array([len(group) for group in groups], np.int64),
        "prompts": np.array([len(sample.prompt) for sample in samples], np.int64),
        "completions": np.array([len(sample.completion) for sample in samples], np.int64),
        "advantages": np.array([sample.advantage for sample in samples], np.float64),
        "claimed": np.array([sample.logprobs is not None for sample in samples], np.bool_),
        "generated": np.concatenate([_generated(sample) for sample in samples]),
        "tokens": np.concatenate([np.concatenate([sample.prompt, sample.completion]) for sample in samples]).astype(np.int32),
        "logprobs": np.concatenate([np.zeros(0, np.float32), *claimed]).astype(np.float32),
    }  # fmt: skip
    return save(arrays, metadata={"step": str(step), "names": json.dumps([sample.name for sample in samples])})


def decode(data: bytes) -> tuple[list[list[TrainingSample]], int]:
    """What `encode` made of a batch, and its step."""
    arrays = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    samples, at = [], 0
    masks = np.split(arrays["generated"], np.cumsum(arrays["completions"])[:-1])
    claims = [int(mask.sum()) if claimed else 0 for mask, claimed in zip(masks, arrays["claimed"], strict=True)]
    parts = zip(
        arrays["prompts"], arrays["completions"], arrays["advantages"], arrays["claimed"], json.loads(header["names"]), masks,
        np.split(arrays["logprobs"], np.cumsum(claims)[:-1]), strict=True,
    )  # fmt: skip
    for prompt, completion, advantage, claimed, name, mask, logprobs in parts:
        tokens = arrays["tokens"][at : at + prompt + completion]
        at += prompt + completion
        generated = None if mask.all() else mask
        of = logprobs if claimed else None
        samples.append(TrainingSample(tokens[:prompt], tokens[prompt:], float(advantage), of, name, generated))
    taken = iter(samples)
    return [[next(taken) for _ in range(count)] for count in arrays["groups"]], int(header["step"])


def _generated(sample: TrainingSample) -> NDArray[np.bool_]:
    return np.ones(len(sample.completion), np.bool_) if sample.generated is None else sample.generated
