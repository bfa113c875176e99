"""A swarm whose trainer is waited for."""

from __future__ import annotations

import time

from swarm.pace import Patience
from swarm.processes import wait_until
from swarm.swarm import Swarm

from protocol.shell.home import read_json


def await_training(swarm: Swarm, steps: int, patience: Patience) -> None:
    """Until the trainer has finished and its last version is published."""
    while (read_json(swarm.folder / "output/status.json") or {}).get("state") != "finished":
        swarm.require_running()
        assert not patience.ended(), f"not within {patience}"
        time.sleep(0.25)
    wait_until(lambda: swarm.chain.published(swarm.run) == steps + 1, deadline=60, what="the last version")
