"""Many calls as one: by Multicall3 where its code is, with the same answers as one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from eth_abi import encode
from swarm.faulty_endpoint import FaultyEndpoint, result
from swarm.multicall import CODE, place_multicall
from swarm.world import World

from protocol.chain import Chain, multicall
from protocol.errors import TransactionReverted
from tests.clock import VirtualClock


@pytest.fixture
def faulty(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyEndpoint]:
    """Before a chain that has the contract."""
    monkeypatch.setattr(multicall, "CODE_HASH", multicall.CODE_HASH)
    place_multicall(world.anvil)
    endpoint = FaultyEndpoint(world.anvil.rpc)
    yield endpoint
    endpoint.close()
    world.anvil.request("anvil_setCode", multicall.ADDRESS, "0x")


class Role:
    """It asks for the number of versions, the run's status and its funds, turn by turn."""

    def __init__(self, world: World, faulty: FaultyEndpoint) -> None:
        self.clock = VirtualClock()
        self.chain = Chain(faulty.url, world.chain.runs.address, timeout=5, clock=self.clock)
        self.chain.check()
        self._faulty, self._run = faulty, world.run
        self._turns = self.chain.turns()
        for _ in range(2):
            self.turn()

    def turn(self) -> tuple[Any, tuple[int, int]]:
        """(what it was told, what that cost)"""
        self.clock.advance(10)
        before = self._faulty.counted
        with self._turns.turn():
            told = self.chain.published(self._run), self.chain.status(self._run), self.chain.funds(self._run)
        after = self._faulty.counted
        return told, (after[0] - before[0], after[1] - before[1])


def truth(world: World) -> Any:
    return world.chain.published(world.run), world.chain.status(world.run), world.chain.funds(world.run)


def test_calls_of_one_block_are_one_call_with_the_same_answers(world: World, faulty: FaultyEndpoint) -> None:
    role = Role(world, faulty)
    assert role.turn() == (truth(world), (1, 1))
    world.publish(world.chain.published(world.run))
    assert role.turn() == (truth(world), (1, 1))


@pytest.mark.parametrize("code", ["0x", "0x60015f5260205ff3"])
def test_where_there_is_no_such_contract_or_another_calls_are_asked_as_they_are(
    world: World, faulty: FaultyEndpoint, code: str
) -> None:
    world.anvil.request("anvil_setCode", multicall.ADDRESS, code)
    role = Role(world, faulty)
    assert role.turn() == (truth(world), (1, 3))


def test_where_it_seemed_to_be_missing_it_is_looked_for_again_after_some_minutes(
    world: World, faulty: FaultyEndpoint
) -> None:
    faulty.fault = lambda method, params: result("0x") if params[0] == multicall.ADDRESS else None
    role = Role(world, faulty)
    faulty.fault = lambda method, params: None
    assert role.turn() == (truth(world), (1, 3))
    role.clock.advance(600)
    role.turn()
    assert role.turn() == (truth(world), (1, 1))


def test_a_call_that_reverts_is_asked_for_by_itself_and_says_why(world: World, faulty: FaultyEndpoint) -> None:
    role = Role(world, faulty)
    asked = [role.chain.policies.functions.policy(run).request() for run in (world.run, 999)]
    with role.chain.ahead(*asked):
        before = faulty.asked["eth_call"]
        assert role.chain.policy(world.run) == world.chain.policy(world.run)
        with pytest.raises(TransactionReverted, match="NoSuchRun"):
            role.chain._call("reading the policy", role.chain.policies.functions.policy(999))
        assert faulty.asked["eth_call"] == before + 1


ANSWERS = {
    "nothing": "0x",
    "no code": "0x" + "00" * 31,
    "too few": "0x" + encode(["(bool,bytes)[]"], [[(True, bytes(32))]]).hex(),
    "too many": "0x" + encode(["(bool,bytes)[]"], [[(True, bytes(32))] * 4]).hex(),
    "without end": "0x" + "ff" * 96,
    "no hex": "0xzz",
    "a number": 7,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_none_costs_calls_and_misleads_nobody(
    world: World, faulty: FaultyEndpoint, name: str
) -> None:
    role = Role(world, faulty)

    def lie(method: str, params: Any) -> bytes | None:
        is_aggregate = method == "eth_call" and params[0]["to"] == multicall.ADDRESS
        return result(ANSWERS[name]) if is_aggregate else None

    faulty.fault = lie
    assert role.turn() == (truth(world), (4, 4))


def test_the_contract_placed_here_is_not_taken_for_multicall3() -> None:
    """What is at that address on other chains has another hash."""
    assert multicall._hash_of({"result": "0x" + CODE.hex()}) != multicall.CODE_HASH
