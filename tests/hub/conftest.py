"""One desk per module, with counts that begin anew in every test; a bucket for those who ask for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from swarm.anvil import Anvil

from protocol.identity import Key
from tests.hub.desk import Desk, open_desk

if TYPE_CHECKING:  # moto takes a second to import
    from tests.hub.cloud import Cloud
    from tests.hub.shop import Shop


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


@pytest.fixture(scope="module")
def _cloud() -> Iterator[Cloud]:
    from tests.hub.cloud import Cloud

    made = Cloud()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def cloud(_cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """One empty bucket, and an environment that leads to it."""
    from tests.hub.cloud import point_at

    point_at(_cloud.url, monkeypatch)
    _cloud.reset()
    return _cloud


@pytest.fixture
def shop(anvil: Anvil, cloud: Cloud, tmp_path: Path) -> Iterator[Shop]:
    from tests.hub.cloud import archived
    from tests.hub.shop import Shop

    store = archived(tmp_path / "store")
    with open_desk(anvil, tmp_path, store=store) as desk:
        yield Shop(desk, store, cloud)
