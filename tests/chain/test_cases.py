"""Open cases and their submissions, as the chain tells them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from swarm.world import World

from protocol.chain import cases
from protocol.chain.types import Stage
from protocol.errors import RpcUnavailable
from protocol.identity import Key
from protocol.submission import SubmissionRef


def challenged(world: World, node: Key, validator: Key, *refs: SubmissionRef) -> None:
    world.sender(validator).send(world.chain.challenge(world.run, refs, b"\x0e" * 32))


def open_submissions(world: World, node: Key) -> dict[int, list[SubmissionRef]]:
    chain, run = world.chain, world.run
    found = cases.unanswered(chain, run, node.address, chain.seat(run, node.address))
    return {number: cases.submissions(chain, run, node.address, number, case) for number, case in found}


@pytest.fixture
def parties(world: World) -> tuple[Key, Key, Key]:
    """A node and two validators that were seated before its submissions."""
    node, one, two = Key.generate(), Key.generate(), Key.generate()
    world.seat_node(Key.generate(), node)
    for validator in (one, two):
        world.seat_validator(validator)
    world.publish(0)
    return node, one, two


def test_every_open_case_names_its_submissions_however_often_they_were_taken(
    world: World, parties: tuple[Key, Key, Key]
) -> None:
    node, one, two = parties
    refs = [world.submit(node, 0, sequence, bytes([sequence]) * 32) for sequence in range(3)]
    challenged(world, node, one, *refs[:2])
    world.accuse(two, refs[0])
    world.accuse(one, refs[0])
    assert open_submissions(world, node) == {3: refs[:1], 2: refs[:1], 1: refs[1:2]}, (
        "an accused one leaves its soft case"
    )


def test_cases_that_are_appealed_or_closed_are_left_out(world: World, parties: tuple[Key, Key, Key]) -> None:
    node, one, two = parties
    refs = [world.submit(node, 0, sequence, bytes([sequence]) * 32) for sequence in range(3)]
    for ref in refs:
        challenged(world, node, one, ref)
    world.sender(node).send(world.chain.appeal(world.run, node.address, 2))
    world.anvil.advance(world.chain.policy(world.run).appeal)
    world.sender(two).send(world.chain.settle(world.run, node.address, 3))
    assert open_submissions(world, node) == {1: refs[:1]}, "also long after its block, as it is not settled"


def test_a_case_whose_events_an_endpoint_does_not_know_has_no_submissions_yet(
    world: World, parties: tuple[Key, Key, Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor has one of which an endpoint leaves one out: a node that finds the others false would not appeal."""
    node, one, _ = parties
    challenged(world, node, one, *(world.submit(node, 0, sequence, bytes([sequence]) * 32) for sequence in range(2)))
    head, whole = world.chain.block_number(), world.chain.ask
    lagging: list[tuple[str, Callable[..., Any]]] = [
        ("ask", lambda *asked, **how: []),
        ("ask", lambda *asked, **how: whole(*asked, **how)[:-1]),
        ("block_number", lambda: head - 1),
    ]
    for name, answer in lagging:
        with monkeypatch.context() as patch, pytest.raises(RpcUnavailable, match="case 1"):
            patch.setattr(world.chain, name, answer)
            open_submissions(world, node)
    assert world.chain.case(world.run, node.address, 1).stage == Stage.OPEN


@pytest.mark.parametrize("times", [[7], [1, 2, 3], [1, 1, 4, 4, 4, 9], [*range(0, 200, 2)], [5] * 70], ids=len)
def test_the_first_block_of_a_time_is_found_without_looking_far_back(times: list[int]) -> None:
    asked: set[int] = set()

    def block(number: int | None = None) -> Any:
        number = len(times) - 1 if number is None else number
        assert number >= 0
        asked.add(number)
        return SimpleNamespace(number=number, time=times[number])

    chain: Any = SimpleNamespace(block=block)
    for time in range(max(times) + 2):
        asked.clear()
        right = next((number for number, found in enumerate(times) if found >= time), len(times))
        assert cases._first_since(chain, time) == right
        assert min(asked) >= len(times) - 1 - 2 * (len(times) - right), "old blocks may be pruned"
