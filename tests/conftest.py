"""Fixtures that several test packages share: one Anvil per session, a fresh deployment per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm.anvil import Anvil

from tests.world import World


@pytest.fixture(scope="session")
def anvil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anvil]:
    node = Anvil(tmp_path_factory.mktemp("anvil"))
    yield node
    node.stop()


@pytest.fixture
def world(anvil: Anvil, tmp_path: Path) -> World:
    """Contracts deployed, a run created and funded, nobody seated yet."""
    return World.fresh(anvil)
