"""Accepted rollout files: fetched from the hub, read in the sandbox, and held to what the learner can digest.

A file that the hub does not give is no fault of its node's: it is asked for again, ever less often, until nobody wants it any
more. Bytes other than the committed ones, and a file that cannot be trained on, are final.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import numpy as np

from protocol.chain.view import Submission
from protocol.clock import Clock
from protocol.errors import Malformed, Unavailable
from protocol.hub.client import HubClient
from protocol.hub.wire import Refused
from protocol.retry import Backoff
from protocol.rollout import Sample
from protocol.runspec import RunSpec, starts
from protocol.sandbox import Reading, Sandbox

log = logging.getLogger("trainer")

_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 1.0, 60.0
_LOGPROB_MIN, _LOGPROB_MAX = -1e3, 1e-2  # what a sampled token's logprob can be, with room for rounding


@dataclass(frozen=True)
class Bounds:
    """What the model can be trained on."""

    vocabulary: int
    context: int
    """Tokens of prompt and completion together."""


class RolloutFiles:
    """Not thread-safe."""

    def __init__(self, spec: RunSpec, sandbox: Sandbox, folder: Path, bounds: Bounds, clock: Clock) -> None:
        """`folder` is for files under way, and emptied."""
        self._cap = spec.file_bytes_max
        self._problems = starts(spec.environments)[-1]
        self._sandbox = sandbox
        self._folder = folder
        self._bounds = bounds
        self._missing: dict[bytes, Submission] = {}
        self._left_alone = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX, clock=clock)
        shutil.rmtree(folder, ignore_errors=True)  # downloads of a process that died
        folder.mkdir(parents=True)

    def read(self, hub: HubClient, s: Submission) -> tuple[Sample, ...] | None:
        """The samples of a submission; None while it is left alone because the hub did not give its file.

        Raises Unavailable where the hub does not answer or this machine fails, ProtocolViolation for a file of no use.
        """
        if s.id in self._left_alone:
            return None
        path = self._folder / f"{s.root.hex()}.parquet"
        self._missing.pop(s.id, None)
        try:
            if not hub.download(s.root, path, cap=self._cap):
                raise Refused("the hub has no such file", HTTPStatus.NOT_FOUND)
            reading = self._sandbox.read(path)
        except (Refused, Unavailable) as error:
            self._missing[s.id] = s
            seconds = self._left_alone.failed(s.id)
            log.warning(
                "%s, which validators accepted, is asked for again after %g s: %s", s.root.hex(), seconds, error
            )
            if isinstance(error, Unavailable):
                raise
            return None
        finally:
            path.unlink(missing_ok=True)
        self._left_alone.succeeded(s.id)
        self._require_trainable(reading)
        return reading.file.samples

    def due(self) -> list[bytes]:
        """Submissions whose file was missing and may be asked for again."""
        return [submission for submission in self._missing if submission not in self._left_alone]

    def forget(self, submission: bytes) -> None:
        """Nobody wants its file any more."""
        self._missing.pop(submission, None)

    def forget_before(self, step: int) -> int:
        """Nobody wants files of older versions any more; returns how many of them the hub never gave."""
        given_up = [s for s in self._missing.values() if s.step < step]
        for s in given_up:
            log.error("validators accepted %s, which the hub never gave while a batch could use it", s.root.hex())
            self.forget(s.id)
        return len(given_up)

    def _require_trainable(self, reading: Reading) -> None:
        """Raises Malformed for what the learner could not digest. Whether the work is honest is the validators' to say."""
        if reading.problem is not None:
            raise Malformed(reading.problem)
        for row, sample in enumerate(reading.file.samples):
            ids = np.concatenate([sample.prompt, sample.context])
            if not len(sample.prompt) or not len(sample.completion) or len(ids) > self._bounds.context:
                raise Malformed(f"sample {row} has {len(sample.prompt)} + {len(sample.context)} tokens")
            if ids.min() < 0 or ids.max() >= self._bounds.vocabulary:
                raise Malformed(f"sample {row} has tokens outside the vocabulary")
            claimed = sample.logprobs
            if claimed is not None and len(claimed) != len(sample.completion):
                raise Malformed(f"sample {row} has {len(claimed)} logprobs for {len(sample.completion)} tokens")
            if claimed is not None and not (claimed.min() >= _LOGPROB_MIN and claimed.max() <= _LOGPROB_MAX):  # NaN too
                raise Malformed(f"sample {row} claims logprobs from {claimed.min():g} to {claimed.max():g}")
            if not 0 <= sample.problem < self._problems:
                raise Malformed(f"sample {row} is of problem {sample.problem}, which the run does not have")
