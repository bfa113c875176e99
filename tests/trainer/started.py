"""Ranks as torchrun's agent starts them, but forked from one process that has imported what they need, which is most of what a start takes:
`python -m tests.trainer.started SIZE MODULE FOLDER WHAT` plays a scene of a module in each.

What of them failed is told as torchrun tells it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from uuid import uuid4

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def play(module: str, folder: str, what: str) -> None:
    torch.set_num_threads(1)
    importlib.import_module(module).main(Path(folder), what)


def main(size: int, module: str, folder: str, what: str) -> None:
    importlib.import_module(module)
    how = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=size, run_id=uuid4().hex, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        start_method="fork", max_restarts=0, monitor_interval=0.1,
    )  # fmt: skip
    elastic_launch(how, play)(module, folder, what)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
