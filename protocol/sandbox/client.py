"""Reading strangers' rollout files, in the sandbox's child.

A file is Malformed where the child says so, or where it ends or stalls two children that could read a specimen of our own.
Everything else that goes wrong is this machine's trouble, and Unavailable: nobody may be scored down for it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protocol import rollout
from protocol.errors import Malformed, Oversized, Unavailable
from protocol.rollout import Header, RolloutFile, Sample, from_columns
from protocol.runspec import RunSpec
from protocol.sandbox import wire
from protocol.sandbox.environments import EnvironmentSandbox

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """What a rollout file holds. `problem` names the first breach of the exact schema, None when there is none."""

    file: RolloutFile
    problem: str | None


class Sandbox(EnvironmentSandbox):
    """Reads rollout files beside what its environments do, for one run; may be shared by threads. Use as a context manager."""

    _reads = True

    def __init__(self, spec: RunSpec, *, deadline: float = 30.0, memory: int = 4 << 30, prompt_tokens: int = 1 << 16):
        """`deadline` in seconds per request, `memory` in bytes of the child's address space; environments may need more."""
        super().__init__(spec.environments, deadline=deadline, memory=memory)
        self._spec = spec
        self._tokens = max(spec.sampling.max_new_tokens, spec.sampling.reply_tokens, prompt_tokens)
        self._answer_bytes = max(8 * spec.file_bytes_max, self._answer_bytes)

    def read(self, path: Path) -> Reading:
        """Raises Malformed for whatever is not a rollout file of this run's shape, also when it kills the reader every time, and
        UnknownVersion, which names it, for a version of files or proofs that this program does not know.

        Raises Unavailable where the reader does not work, whatever the file.
        """
        try:
            return self._read(path)
        except Unavailable as error:
            log.warning("the reader failed on %s: %s", path.name, error)
        _require_readable(path, self._spec.file_bytes_max)
        self.require_reader()
        try:
            return self._read(path)
        except Unavailable as error:
            self.require_reader()
            raise Malformed(f"the reader gave up on the file twice, and on no other: {error}") from error

    def require_reader(self) -> None:
        """Reads a small file of our own. Raises Unavailable where that fails: then nobody's file is to blame."""
        try:
            with tempfile.TemporaryDirectory(prefix="murmur-specimen-") as folder:
                path = Path(folder) / "specimen.parquet"
                rollout.write(_specimen(self._spec), path)
                problem = self._read(path, least=path.stat().st_size).problem  # the spec may allow fewer
        except (Malformed, OSError) as error:
            raise Unavailable(f"this machine cannot read rollout files: {error}") from error
        if problem is not None:
            raise Unavailable(f"this machine misreads rollout files: {problem}")

    def _read(self, path: Path, *, least: int = 0) -> Reading:
        """One attempt, whatever the spec says of a file of `least` bytes. After Unavailable the next one has a fresh child."""
        request = {
            "op": "read",
            "path": str(path.resolve()),
            "rows": self._spec.samples,
            "tokens": self._tokens,
            "bytes": max(self._spec.file_bytes_max, least),
            "logprobs": self._spec.sampling.logprobs,
        }
        head, arrays = self._ask(request, attempts=1, of_a_stranger=True)
        try:
            header = Header.parse(head["header"].encode())
            columns = _columns(arrays, self._spec.samples, logprobs=self._spec.sampling.logprobs)
            return Reading(from_columns(header, columns), head["problem"])
        except Oversized as error:
            raise Malformed(str(error)) from error
        except (KeyError, AttributeError, wire.WireError) as error:
            self.close()
            raise Unavailable(f"the reader's answer makes no sense: {error}") from error


def _specimen(spec: RunSpec) -> RolloutFile:
    """The smallest file of the run's shape; what it says is of no account."""
    header = Header(
        proof=spec.verification.proof, chain_id=0, contract="", run=0, node="", step=0, sequence=0, beacon="", spec="", hardware=0
    )  # fmt: skip
    one = np.ones(1, np.int32)
    sample = Sample(
        group=0, sample=0, problem=0, budget=0, prompt=one, completion=one, proofs=(b"",),
        logprobs=np.zeros(1, np.float32) if spec.sampling.logprobs else None, task_reward=0.0, length_penalty=0.0, reward=0.0,
    )  # fmt: skip
    return RolloutFile(header, (sample,) * spec.samples)


def _require_readable(path: Path, most: int) -> None:
    """Raises Unavailable for a file that this machine's disk does not give."""
    try:
        with path.open("rb") as file:
            file.read(most)
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from error


def _columns(arrays: wire.Arrays, rows: int, *, logprobs: bool) -> dict[str, Sequence[Any]]:
    """Columns as rollout.Sample wants them; WireError or KeyError for anything that does not fit."""
    values: dict[str, Sequence[Any]] = {}
    for column in rollout.columns(logprobs=logprobs):
        name = column.name
        if column.kind == "binary":
            sizes = arrays[f"{name}.sizes"]
            pieces = [piece.tobytes() for piece in wire.split(arrays[name], sizes, len(sizes) - 1)]
            index = wire.split(np.arange(len(pieces)), arrays[f"{name}.offsets"], rows)
            values[name] = [tuple(pieces[i] for i in row) for row in index]
        elif arrays[name].dtype.name != column.kind or (not column.is_list and len(arrays[name]) != rows):
            raise wire.WireError(f"column {name}")
        elif column.is_list:
            values[name] = wire.split(arrays[name], arrays[f"{name}.offsets"], rows)
        else:
            values[name] = arrays[name].tolist()
    return values
