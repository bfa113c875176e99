from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.p2p.network import Network


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()
