"""What others do between the estimate of a call's gas and its block may make it do more: it has the gas for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.calls import Call
from protocol.chain.types import Stage
from protocol.identity import Key

Overtake = Callable[[Key, Call, Callable[[], object]], Any]


@pytest.fixture
def overtaken(anvil: Anvil, world: World) -> Iterator[Overtake]:
    """Sends a call of a key, with a deed of somebody else's between its estimate and its block."""

    faulty = FaultyEndpoint(anvil.rpc)

    def send(key: Key, call: Call, deed: Callable[[], object]) -> Any:
        done: list[object] = []

        def fault(method: str, params: Any) -> None:
            if method == "eth_sendRawTransaction" and not done:
                done.append(None)
                deed()

        faulty.fault = fault
        sent = Sender(Chain(faulty.url, world.chain.runs.address), key).send(call)
        assert done
        return sent

    yield send
    faulty.close()


@pytest.mark.parametrize("submissions", [1, 12])
def test_a_vote_that_decides_because_another_juror_was_quicker(
    world: World, overtaken: Overtake, submissions: int
) -> None:
    node, challenger, *jurors = [Key.generate() for _ in range(5)]
    world.seat_node(Key.generate(), node)
    for validator in (challenger, *jurors):
        world.seat_validator(validator)
    world.publish(0)
    refs = [world.submit(node, 0, i, bytes([i + 1]) * 32, 1 + i % 2) for i in range(submissions)]
    world.sender(challenger).send(world.chain.challenge(world.run, refs, b"\x0e" * 32))
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    every_second = sum(1 << i for i in range(0, submissions, 2))
    vote = world.chain.vote(world.run, node.address, 1, every_second, 0, bytes(32))
    overtaken(jurors[0], vote, lambda: world.sender(jurors[1]).send(vote))
    stage = Stage.SPLIT if submissions > 1 else Stage.UPHELD
    assert world.chain.case(world.run, node.address, 1).stage == stage


def test_a_transfer_to_an_account_that_has_just_been_emptied(world: World, overtaken: Overtake) -> None:
    one, other = Key.generate(), Key.generate()
    for each in (one, other):
        world.anvil.give(each.address, TOKEN)
        world.owner.send(world.chain.transfer_tokens(each.address, 2))
    away = world.chain.transfer_tokens(world.owner.key.address, 2)
    overtaken(one, world.chain.transfer_tokens(other.address, 1), lambda: world.sender(other).send(away))
    assert world.chain.token_balance(other.address) == 1
