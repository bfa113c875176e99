"""Handing a new version of the weights to the hub's process, which hashes, signs, broadcasts and publishes it.

The trainer takes a bf16 snapshot of its weights and goes on with the next step at once; a thread writes the snapshot beside
config.json and tokenizer.json. A version appears under its name by an atomic rename.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.folder import sweep, whole

if TYPE_CHECKING:
    from torch import Tensor


def snapshot(model: Any) -> dict[str, Tensor]:
    """The weights as they are published, on the CPU, in memory of their own. All ranks call it: each has a part of them.

    Rounding to bf16 is the copy: it moves less memory than a copy in full precision would.
    """
    import torch  # the hub's process reads outboxes, and has no use for torch

    from node.engine.weights import stored_tensors
    from trainer.ranks import gathered

    return {
        name: gathered(tensor.detach().to(torch.bfloat16, copy=True)).cpu().contiguous()
        for name, tensor in stored_tensors(model).items()
    }


class Outbox:
    def __init__(self, folder: Path, model_files: Path) -> None:
        """`model_files` holds the run's config.json and tokenizer.json."""
        self.folder = folder
        self._model_files = model_files
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, model: Any, step: int) -> Path:
        """Writes the model's weights as version `step`, see `write`."""
        return self.write(snapshot(model), step)

    def write(self, weights: Mapping[str, Tensor], step: int) -> Path:
        """Writes version `step`; a version that is there already is left as it is. Raises PreflightError on a full disk."""
        from safetensors.torch import save_file

        from node.engine.weights import CONFIG, TOKENIZER, WEIGHTS

        final = self.folder / str(step)
        if final.exists():
            return final
        sweep(self.folder)  # one version is written at a time; the hub's process only reads and removes
        with whole(final, f"the weights of step {step}") as partial:
            for name in (CONFIG, TOKENIZER):
                shutil.copyfile(self._model_files / name, partial / name)
            save_file(dict(weights), partial / WEIGHTS, metadata={"format": "pt"})
        return final

    def waiting(self) -> list[int]:
        """Versions that are here, ascending."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def remove_before(self, step: int) -> None:
        """Forgets versions older than `step`."""
        for old in self.waiting():
            if old < step:
                shutil.rmtree(self.folder / str(old), ignore_errors=True)
