"""An endpoint before Anvil that lies, hangs or breaks when a test wants it to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint


@pytest.fixture
def faulty(anvil: Anvil) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(anvil.rpc)
    yield endpoint
    endpoint.close()
