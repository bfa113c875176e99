"""Handing a new version of the weights to the hub's process, which hashes, signs, broadcasts and publishes it.

The trainer writes the bf16 weights beside config.json and tokenizer.json and goes on with the next step at once: publishing
overlaps training. A version appears under its name by an atomic rename.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from trainer.folder import sweep, whole


class Outbox:
    def __init__(self, folder: Path, model_files: Path) -> None:
        """`model_files` holds the run's config.json and tokenizer.json."""
        self.folder = folder
        self._model_files = model_files
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, model: Any, step: int) -> Path:
        """Writes version `step`; a version that is there already is left as it is. Raises PreflightError on a full disk."""
        import torch  # the hub's process reads outboxes, and has no use for torch

        from node.engine.weights import CONFIG, TOKENIZER, WEIGHTS, save_weights

        final = self.folder / str(step)
        if final.exists():
            return final
        sweep(self.folder)  # the trainer is the only one that writes here; the hub's process only reads and removes
        with whole(final, f"the weights of step {step}") as partial:
            for name in (CONFIG, TOKENIZER):
                shutil.copyfile(self._model_files / name, partial / name)
            save_weights(model, partial / WEIGHTS, torch.bfloat16)
        return final

    def waiting(self) -> list[int]:
        """Versions that are here, ascending."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def remove_before(self, step: int) -> None:
        """Forgets versions older than `step`."""
        for old in self.waiting():
            if old < step:
                shutil.rmtree(self.folder / str(old), ignore_errors=True)
