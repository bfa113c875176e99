"""Torch's own random numbers, for a checkpoint: dropout and the like would go on where they stopped.

Nothing of ours draws from a running stream: batches are dealt by (seed, step), samples by their keys. The learning rate is a
function of the step as well, so there is no scheduler to save. Each rank has numbers of its own; one that a checkpoint does
not know, because fewer ranks wrote it, begins anew.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from protocol.errors import IntegrityError


def begin(seed: int, rank: int = 0) -> None:
    torch.manual_seed(seed + rank)


def save(folder: Path, rank: int = 0) -> None:
    states = {"cpu": torch.get_rng_state()}
    states |= {f"cuda/{i}": torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())}
    save_file(states, _file(folder, rank))


def restore(folder: Path, rank: int = 0) -> None:
    """Exactly what `save` wrote, as far as this machine has the devices. Raises IntegrityError."""
    file = _file(folder, rank)
    if rank and not file.exists():
        return
    try:
        states = load_file(file)
        torch.set_rng_state(states["cpu"])
    except (SafetensorError, OSError, KeyError, RuntimeError) as error:
        raise IntegrityError(f"{file} holds no random state: {error}") from error
    for index in range(torch.cuda.device_count()):
        if (state := states.get(f"cuda/{index}")) is not None:
            torch.cuda.set_rng_state(state, index)


def _file(folder: Path, rank: int) -> Path:
    return folder / f"randomness-{rank}.safetensors"
