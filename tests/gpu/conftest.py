"""All of tests/gpu is marked `gpu` and needs an NVIDIA GPU; elsewhere each test is skipped, and says what torch sees instead.

Nothing here asks for fixtures of the other tests, so that a machine with little but torch and pytest can run it (scripts/gpu-report does, with
`--confcutdir tests/gpu`). MURMUR_GPU_TESTS=cpu rehearses on the CPU those that a CPU can compute: that a test is right before its day comes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from node.engine.device import driver_state

REHEARSAL = os.environ.get("MURMUR_GPU_TESTS") == "cpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    missing = not torch.cuda.is_available()
    reason = f"no NVIDIA GPU: {driver_state()}" if missing else ""
    for item in items:
        if here in item.path.parents:
            item.add_marker("gpu")
            if missing and not (REHEARSAL and not item.get_closest_marker("cuda_alone")):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The first NVIDIA GPU; the CPU in a rehearsal."""
    return torch.device("cpu") if REHEARSAL and not torch.cuda.is_available() else torch.device("cuda", 0)
