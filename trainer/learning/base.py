"""The policy before training: what adapters are added to, and what the KL measures the divergence from.

Neither is in a checkpoint. So each checkpoint names the weights that its training began with, and goes on with those alone. One
that needs neither goes on without them: nothing is read of that folder's weights then.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from protocol.errors import IntegrityError
from protocol.model_files import weight_files
from trainer.config import TrainSettings


def digest_of(folder: Path) -> str:
    """SHA-256 of a policy's weights: of the digests of its files, in order of name."""
    found = hashlib.sha256()
    try:
        for name in weight_files(folder):
            with (folder / name).open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise IntegrityError(f"cannot read the weights in {folder}: {error}") from error
    return found.hexdigest()


def stamp(folder: Path) -> list[tuple[str, int, int, int]]:
    """What tells without reading them whether a policy's weights are the files they were: names, inodes, sizes, times of change."""
    try:
        found = ((name, (folder / name).stat()) for name in weight_files(folder))
        return [(name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in found]
    except OSError as error:
        raise IntegrityError(f"cannot read the weights in {folder}: {error}") from error


def require_untouched(stamped: list[tuple[str, int, int, int]], policy: Path) -> None:
    """Raises IntegrityError where the weights in `policy` are read again, as the reference, and were written since they were `stamped`."""
    if stamp(policy) != stamped:
        raise IntegrityError(
            f"the weights in {policy} were written while the training measures its divergence from them",
            hint="bring back the policy that it began with, and resume",
        )


def require_same(saved: str, policy: Path, settings: TrainSettings, checkpoint: Path) -> None:
    """Raises IntegrityError where a training that began with the weights of digest `saved` needs them, and `policy` holds others."""
    if not (settings.lora_rank or settings.kl.weight) or digest_of(policy) == saved:
        return
    if settings.lora_rank:
        what, hint = "holds adapters of", "bring back the policy they were trained on"
    else:
        what = "measures its divergence from"
        hint = "bring back the policy that it began with, or set trainer.kl.weight = 0"
    raise IntegrityError(f"{checkpoint} {what} other weights than those in {policy}", hint=hint)
