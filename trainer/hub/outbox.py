"""Handing a new version of the weights to the hub's process, which hashes, signs, broadcasts and publishes it.

The trainer takes a bf16 snapshot of its weights (trainer/learning/snapshot.py); a thread writes it beside
config.json and tokenizer.json. A version appears under its name by an atomic rename. Before that the hub's process may read what is
written of it already: a plan says which files there will be, how large, and in which order each grows from front to back.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.model_files import CONFIG, INDEX, TOKENIZER
from protocol.whole_folder import WRITING, sweep, whole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Coming:
    """A version that is being written in `folder`: names and sizes of its `files`, in this order; `attempt` is this one's alone."""

    step: int
    folder: Path
    files: tuple[tuple[str, int], ...]
    attempt: str


class Outbox:
    def __init__(self, folder: Path, model_files: Path, *, shard_bytes: int | None = None) -> None:
        """`model_files` holds the run's config.json and tokenizer.json. Weights of more than `shard_bytes`, else 4 GiB, lie in many
        files."""
        self.folder = folder
        self._model_files = model_files
        self._shard_bytes = shard_bytes
        self._plan = folder / ".plan.json"
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, weights: Mapping[str, Tensor], step: int) -> Path:
        """Writes version `step`; a version that is there already is left as it is. Raises PreflightError on a full disk."""
        from node.engine.tensor_files import tensor_files
        from node.engine.weights import SHARD_BYTES

        final = self.folder / str(step)
        if final.exists():
            return final
        sweep(self.folder)  # one version is written at a time; the hub's process only reads and removes
        try:
            with whole(final, f"the weights of step {step}") as partial:
                for name in (CONFIG, TOKENIZER):
                    shutil.copyfile(self._model_files / name, partial / name)
                files, index = tensor_files(weights, self._shard_bytes or SHARD_BYTES)
                if index is not None:
                    (partial / INDEX).write_bytes(index)
                sizes = {path.name: path.stat().st_size for path in partial.iterdir()}
                sizes |= {file.name: file.size for file in files}
                plan = {"attempt": secrets.token_hex(16), "boot": _boot(), "files": list(sizes.items()), "step": step}
                self._plan.write_text(json.dumps(plan))
                for file in files:
                    file.write(partial, weights)
        finally:
            self._plan.unlink(missing_ok=True)
        return final

    def coming(self) -> Coming | None:
        """The version that is being written, on this very machine: elsewhere what a file says of its size may be true before its bytes are."""
        with suppress(OSError, ValueError, TypeError, KeyError):  # there is none, or it is just being begun
            plan = json.loads(self._plan.read_bytes())
            folder = self.folder / f"{WRITING}{int(plan['step'])}"
            if folder.is_dir() and plan["boot"] and plan["boot"] == _boot():
                files = tuple((str(name), int(size)) for name, size in plan["files"])
                return Coming(int(plan["step"]), folder, files, str(plan["attempt"]))
        return None

    def waiting(self) -> list[int]:
        """Versions that are here, ascending."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def remove_after(self, step: int) -> None:
        """Forgets versions newer than `step`: nobody has seen them."""
        for later in self.waiting():
            if later > step:
                shutil.rmtree(self.folder / str(later))

    def keep_only(self, steps: Collection[int]) -> None:
        """Forgets all other versions."""
        for other in self.waiting():
            if other not in steps:
                shutil.rmtree(self.folder / str(other), ignore_errors=True)

    def remove_before(self, step: int) -> None:
        """Forgets versions older than `step`."""
        for old in self.waiting():
            if old < step:
                shutil.rmtree(self.folder / str(old), ignore_errors=True)


def _boot() -> str:
    """What tells this run of this machine's kernel from all others; nothing where it does not say."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
