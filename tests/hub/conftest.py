"""One desk per module, with counts that begin anew in every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from swarm.anvil import Anvil

from protocol.identity import Key
from tests.hub.desk import Desk, open_desk


@pytest.fixture(scope="module")
def _desk(anvil: Anvil, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with open_desk(anvil, tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture
def desk(_desk: Desk) -> Desk:
    _desk.mark()
    return _desk


@pytest.fixture
def node(desk: Desk) -> Key:
    """A seated node that has not worked yet, and a version for it to work on."""
    return desk.node()
