"""The deployed contracts do what the reference model does: same results, same refusals, same books, whoever does whatever when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase
from swarm.anvil import Anvil

from protocol.chain.types import Stage
from tests.chain.schedules import drive
from tests.chain.twins import Twins

pytestmark = pytest.mark.chain
CLOSED = {Stage.UPHELD, Stage.CLEARED, Stage.SPLIT, Stage.RETURNED}
CONVICTING = {Stage.UPHELD, Stage.SPLIT}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    anvil = Anvil(tmp_path_factory.mktemp("model"))
    try:
        twins = Twins(anvil)
        twins.settle_in()
        yield twins
    finally:
        anvil.stop()


@pytest.mark.timeout(900)  # a failure is shrunk to the few actions that matter
def test_contracts_and_model_agree(twins: Twins) -> None:
    assert drive(twins, examples=30, steps=40) >= 500
    assert {stage for stage, _ in twins.verdicts} == CLOSED | {Stage.UNDECIDED}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_contracts_and_model_agree_for_long(twins: Twins) -> None:
    assert drive(twins, examples=200, steps=60) >= 5_000
    succeeded = {function for function, how in twins.done if how == "done"}
    assert succeeded == {function for function, _ in twins.done}, "something never succeeded"
    ends = {(stage, False) for stage in CLOSED | {Stage.UNDECIDED}} | {(stage, True) for stage in CONVICTING}
    assert set(twins.verdicts) == ends
