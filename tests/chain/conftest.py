"""An endpoint before Anvil that lies, hangs or breaks when a test wants it to, and a key that can pay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint
from swarm.world import World

from protocol.identity import Key
from tests.chain.paying import sender


@pytest.fixture
def faulty(anvil: Anvil) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(anvil.rpc)
    yield endpoint
    endpoint.close()


@pytest.fixture
def honest(anvil: Anvil) -> Iterator[list[FaultyEndpoint]]:
    """Two that lie where a test wants it only."""
    two = [FaultyEndpoint(anvil.rpc) for _ in range(2)]
    yield two
    for each in two:
        each.close()


@pytest.fixture
def key(world: World) -> Key:
    """With tokens, an allowance for deposits, and gas money."""
    key = Key.generate()
    sender(world, key)
    return key
