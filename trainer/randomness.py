"""Torch's own random numbers, for a checkpoint: dropout and the like would go on where they stopped.

Nothing of ours draws from a running stream: batches are dealt by (seed, step), samples by their keys. The learning rate is a
function of the step as well, so there is no scheduler to save.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from protocol.errors import IntegrityError

_FILE = "randomness.safetensors"


def begin(seed: int) -> None:
    torch.manual_seed(seed)


def save(folder: Path) -> None:
    states = {"cpu": torch.get_rng_state()}
    states |= {f"cuda/{i}": torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())}
    save_file(states, folder / _FILE)


def restore(folder: Path) -> None:
    """Exactly what `save` wrote, as far as this machine has the devices. Raises IntegrityError."""
    try:
        states = load_file(folder / _FILE)
        torch.set_rng_state(states["cpu"])
    except (SafetensorError, OSError, KeyError, RuntimeError) as error:
        raise IntegrityError(f"{folder / _FILE} holds no random state: {error}") from error
    for index in range(torch.cuda.device_count()):
        if (state := states.get(f"cuda/{index}")) is not None:
            torch.cuda.set_rng_state(state, index)
