"""What roles with nothing to do ask of the chain's endpoint: one HTTP request a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from swarm.faulty_endpoint import FaultyEndpoint

from node.contributor.wanted import ENOUGH
from node.contributor.worker import Worker
from node.engine.torch_engine import TorchEngine
from node.validator.service import ValidatorService
from node.validator.settings import JudgeSettings
from protocol.chain import Chain
from protocol.gossip.messages import NeedWord
from protocol.hub.need import SignedNeed
from protocol.identity import Key
from tests.node.stage import Stage, Wired
from tests.node.test_demand import say
from tests.node.working import QUICK, waits_because

CALLS = 5
"""A turn, where the chain has no Multicall3: at four turns a minute no more than 20."""


@pytest.fixture
def endpoint(stage: Stage) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(stage.world.anvil.rpc)
    yield endpoint
    endpoint.close()


def counted_connection(stage: Stage, key: Key, endpoint: FaultyEndpoint) -> Wired:
    connection = stage.connection(key)
    connection.chain = Chain(endpoint.url, stage.world.chain.runs.address)
    connection.chain.check()
    return connection


def turns_cost(stage: Stage, endpoint: FaultyEndpoint, turn: Callable[[], object]) -> list[tuple[int, int]]:
    """(requests, calls) of turns that find a new block each, when the first ones are over."""
    found = []
    for _ in range(5):
        stage.world.anvil.request("evm_mine")
        before = endpoint.counted
        turn()
        found.append((endpoint.requests - before[0], endpoint.asked.total() - before[1]))
    return found[2:]


def test_a_contributor_that_waits_for_a_version_asks_once_a_turn(stage: Stage, endpoint: FaultyEndpoint) -> None:
    stage.publish()
    node = stage.seated()
    worker = Worker(counted_connection(stage, node, endpoint), stage.home("node"), QUICK, TorchEngine)
    worker.stop()  # so that its pauses end at once
    for requests, calls in turns_cost(stage, endpoint, worker._turn):
        assert (requests, calls <= CALLS) == (1, True), calls
    assert waits_because(stage, "the seat works from the next version on")()
    worker.close()


def test_a_contributor_of_whom_nothing_is_wanted_asks_once_a_turn(stage: Stage, endpoint: FaultyEndpoint) -> None:
    node, path, world = stage.seated(), stage.folder / "hub/need.json", stage.world
    stage.publish()
    say(stage, ready=99)
    stage.hub.hub.learn()
    need = SignedNeed.parse(stage.hub.hub.need(path), world.chain.domain, world.run, world.trainer.key.address)
    worker = Worker(counted_connection(stage, node, endpoint), stage.home("node"), QUICK, TorchEngine)
    worker._verdicts.mail.overhear(NeedWord(need))
    worker._verdicts.mail._heard.set()
    worker.stop()  # so that its pauses end at once
    for requests, calls in turns_cost(stage, endpoint, worker._turn):
        assert (requests, calls <= 8) == (1, True), calls  # three where a Multicall3 packs six of them
    assert waits_because(stage, ENOUGH)()
    worker.close()


def test_a_validator_with_nothing_to_judge_asks_once_a_turn(stage: Stage, endpoint: FaultyEndpoint) -> None:
    stage.publish()
    key = stage.validator()
    home, settings = stage.home("validator", "validator"), JudgeSettings(batch_seconds=0)
    service = ValidatorService(counted_connection(stage, key, endpoint), home, settings)
    assert turns_cost(stage, endpoint, service.turn) == [(1, 3)] * 3
    service.close()
