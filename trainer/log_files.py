"""Which file each process of a run logs to: what rotates a file must be alone with it, or lines are lost.

logs/trainer.log          the trainer, rank 0
logs/trainer-hub.log      the hub
logs/trainer-rank1.log    another rank that torchrun started
"""

from __future__ import annotations

import os
from pathlib import Path

from protocol.logs import LoggingSettings


def of_trainer(settings: LoggingSettings) -> LoggingSettings:
    """For the rank that this process is, by torchrun's variable."""
    rank = int(os.environ.get("RANK", "0"))
    return settings if rank == 0 else _beside(settings, f"rank{rank}")


def of_hub(settings: LoggingSettings) -> LoggingSettings:
    return _beside(settings, "hub")


def _beside(settings: LoggingSettings, part: str) -> LoggingSettings:
    if settings.file is None:
        return settings
    file = Path(settings.file)
    return settings.model_copy(update={"file": str(file.with_name(f"{file.stem}-{part}{file.suffix}"))})
