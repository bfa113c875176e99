"""The service's side of the sandbox: requests with deadlines, and a child that is restarted when it dies.

Covers: memory, time, files and secrets. Does not cover: an exploit inside the child, which would run as the same user; run
services under an account of their own where that matters.

A file is Malformed where the child says so, or where it ends or stalls two children that could read a specimen of our own.
Everything else that goes wrong is this machine's trouble, and Unavailable: nobody may be scored down for it.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protocol import rollout
from protocol.errors import DeadlineExceeded, Malformed, Oversized, Unavailable
from protocol.folders import TASKS_VARIABLE, tasks_folder
from protocol.rollout import Header, RolloutFile, Sample, from_columns
from protocol.runspec import RunSpec
from protocol.sandbox import wire

log = logging.getLogger(__name__)

_SCALARS = {
    "group": "int32",
    "sample": "int32",
    "problem": "int64",
    "budget": "int32",
    "task_reward": "float32",
    "length_penalty": "float32",
    "reward": "float32",
}
_LISTS = {"prompt": "int32", "completion": "int32", "logprobs": "float32"}


_ANSWER_BYTES = 1 << 20  # granted to any answer


@dataclass(frozen=True)
class Reading:
    """What a rollout file holds. `problem` names the first breach of the exact schema, None when there is none."""

    file: RolloutFile
    problem: str | None


class ChildDied(Exception):
    """The child ended or fell silent in the middle of a request."""


class Sandbox:
    """Reads files and scores answers for one run; may be shared by threads. Use as a context manager."""

    def __init__(self, spec: RunSpec, *, deadline: float = 30.0, memory: int = 4 << 30, prompt_tokens: int = 1 << 16):
        """`deadline` in seconds per request, `memory` in bytes of the child's address space."""
        self._spec = spec
        self._deadline = deadline
        self._memory = memory
        self._tokens = max(spec.sampling.max_new_tokens, prompt_tokens)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self.restarts = 0

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._kill()

    def warm_up(self) -> None:
        """Starts the child now, so that the first request does not wait for its imports."""
        self.score([])

    def read(self, path: Path) -> Reading:
        """Raises Malformed for whatever is not a rollout file of this run's shape, also when it kills the reader every time.

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
        }
        head, arrays = self._ask(request, attempts=1)
        try:
            header = Header.parse(head["header"].encode())
            return Reading(from_columns(header, _columns(arrays, self._spec.samples)), head["problem"])
        except Oversized as error:
            raise Malformed(str(error)) from error
        except (KeyError, AttributeError, wire.WireError) as error:
            self.close()
            raise Unavailable(f"the reader's answer makes no sense: {error}") from error

    def require_task_file(self, path: Path) -> None:
        """Reads all of a task file. Raises Malformed for what is none, Unavailable when that kills the reader."""
        group = 0
        while group >= 0:
            head, _ = self._ask({"op": "tasks", "path": str(path.resolve()), "group": group})
            following = head.get("next")
            if not isinstance(following, int) or following == group:
                raise Unavailable("the reader's answer makes no sense")
            group = following

    def score(self, items: Sequence[tuple[int, str | None]], *, held_out: bool = False) -> list[float]:
        """Task rewards of (index, answer) pairs; indices are of training problems, or of the held-out ones.

        Raises Unavailable when a verifier dies or takes too long.
        """
        head, _ = self._ask({"op": "score", "items": [list(item) for item in items], "held_out": held_out})
        rewards = head.get("rewards")
        if not isinstance(rewards, list) or len(rewards) != len(items):
            raise Unavailable("the verifiers' answer makes no sense")
        return [float(reward) for reward in rewards]

    # ---- the child -----------------------------------------------------------------------------------------------------

    def _ask(self, request: dict[str, Any], *, attempts: int = 2) -> tuple[dict[str, Any], wire.Arrays]:
        """`attempts` as a child that was about to die for its own reasons is no fault of the input."""
        with self._lock:
            for attempt in range(1, attempts + 1):
                try:
                    head, arrays = self._send(self._running(), request)
                    break
                except (ChildDied, wire.WireError, OSError) as error:
                    self._kill()
                    self.restarts += 1
                    log.warning("sandbox child restarted: %s", error)
                    if attempt == attempts:
                        raise DeadlineExceeded(f"the sandbox failed: {error}") from error
            if head.get("ok"):
                return head, arrays
            message = str(head.get("message", ""))[:500]
            if head.get("kind") == "malformed":
                raise Malformed(message)
            self._kill()  # what earlier inputs have left behind in it may be why
        raise Unavailable(f"sandbox: {message}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._kill()
            self.restarts += 1
        if self._process is None:
            command = [sys.executable, "-m", "protocol.sandbox.child", str(self._memory)]
            environment = {
                k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR")
            }
            environment |= {TASKS_VARIABLE: str(tasks_folder())}
            environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLCONFIGDIR": "/nonexistent"}
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
            )
            assert self._process.stdin
            os.set_blocking(self._process.stdin.fileno(), False)
            head, _ = self._send(self._process, {"op": "spec", "spec": self._spec.model_dump(mode="json")})
            if not head.get("ok"):
                self._kill()
                raise Unavailable(f"sandbox refuses the run spec: {head.get('message')}")
        return self._process

    def _send(self, process: subprocess.Popen[bytes], request: dict[str, Any]) -> tuple[dict[str, Any], wire.Arrays]:
        assert process.stdin and process.stdout
        until = time.monotonic() + self._deadline
        source, descriptor = process.stdin.fileno(), process.stdout.fileno()
        rest = memoryview(wire.encode(request))
        while rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([], [source], [], left)[1]:
                raise ChildDied(f"it took no request within {self._deadline:g} s")
            rest = rest[os.write(source, rest) :]

        def receive(count: int) -> bytearray:
            data = bytearray(count)  # filled in place: an answer is never held twice
            missing = memoryview(data)
            while missing:
                left = until - time.monotonic()
                if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                    raise ChildDied(f"no answer within {self._deadline:g} s")
                count = os.readv(descriptor, [missing])
                if not count:
                    raise ChildDied("it ended")
                missing = missing[count:]
            return data

        return wire.read(receive, cap=max(8 * self._spec.file_bytes_max, _ANSWER_BYTES))

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream:
                    stream.close()
            self._process = None


def _specimen(spec: RunSpec) -> RolloutFile:
    """The smallest file of the run's shape; what it says is of no account."""
    header = Header(
        protocol=spec.protocol, chain_id=0, contract="", run=0, node="", step=0, sequence=0, beacon="", spec="", hardware=0
    )  # fmt: skip
    one = np.ones(1, np.int32)
    sample = Sample(
        group=0, sample=0, problem=0, budget=0, prompt=one, completion=one, logprobs=np.zeros(1, np.float32), proofs=(b"",),
        task_reward=0.0, length_penalty=0.0, reward=0.0,
    )  # fmt: skip
    return RolloutFile(header, (sample,) * spec.samples)


def _require_readable(path: Path, most: int) -> None:
    """Raises Unavailable for a file that this machine's disk does not give."""
    try:
        with path.open("rb") as file:
            file.read(most)
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from error


def _columns(arrays: wire.Arrays, rows: int) -> dict[str, Sequence[Any]]:
    """Columns as rollout.Sample wants them; WireError or KeyError for anything that does not fit."""
    columns: dict[str, Sequence[Any]] = {}
    for name, kind in _SCALARS.items():
        if arrays[name].dtype.name != kind or len(arrays[name]) != rows:
            raise wire.WireError(f"column {name}")
        columns[name] = arrays[name].tolist()
    for name, kind in _LISTS.items():
        if arrays[name].dtype.name != kind:
            raise wire.WireError(f"column {name}")
        columns[name] = wire.split(arrays[name], arrays[f"{name}.offsets"], rows)
    sizes = arrays["proofs.sizes"]
    pieces = [piece.tobytes() for piece in wire.split(arrays["proofs"], sizes, len(sizes) - 1)]
    offsets = arrays["proofs.offsets"]
    index = wire.split(np.arange(len(pieces)), offsets, rows)
    columns["proofs"] = [tuple(pieces[i] for i in row) for row in index]
    return columns
