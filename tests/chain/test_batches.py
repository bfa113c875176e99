"""Several requests in one: what an endpoint makes of a batch changes what it costs, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from swarm.faulty_endpoint import FaultyEndpoint, Hang, Refuse, error
from swarm.world import World

from protocol.chain import Chain
from protocol.chain.batches import BATCH_MOST
from protocol.chain.completeness import BATCH
from protocol.chain.ethereum import newest_block, numbered_block
from protocol.chain.events import Published
from protocol.chain.networks import SETTLED_BLOCKS
from protocol.chain.sync import Book
from tests.clock import VirtualClock


@pytest.fixture
def faulty(world: World) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(world.anvil.rpc)
    yield endpoint
    endpoint.close()


def chain_at(world: World, faulty: FaultyEndpoint, clock: VirtualClock | None = None) -> Chain:
    return Chain(faulty.url, world.chain.runs.address, timeout=30, clock=clock or VirtualClock())


def numbers_of(chain: Chain) -> list[int]:
    """Of the newest block and the first, asked ahead."""
    with chain.ahead(newest_block(), numbered_block(0)):
        return [chain.block().number, chain.block(0).number]


def test_what_is_asked_ahead_is_one_request(world: World, faulty: FaultyEndpoint) -> None:
    assert numbers_of(chain_at(world, faulty)) == [world.chain.block_number(), 0]
    assert faulty.counted == (1, 2)


def test_answers_may_come_in_any_order(world: World, faulty: FaultyEndpoint) -> None:
    faulty.whole = lambda answers: answers[::-1]
    assert numbers_of(chain_at(world, faulty)) == [world.chain.block_number(), 0]
    assert faulty.counted == (1, 2)


def test_a_long_list_is_asked_in_batches_that_public_endpoints_take(world: World, faulty: FaultyEndpoint) -> None:
    sizes: list[int] = []
    faulty.whole = lambda answers: sizes.append(len(answers)) or answers
    chain = chain_at(world, faulty)
    world.anvil.request("anvil_mine", hex(25))
    with chain.ahead(*(numbered_block(number) for number in range(25))):
        assert [chain.block(number).number for number in range(25)] == list(range(25))
    assert sizes == [BATCH_MOST, BATCH_MOST, 5]
    assert faulty.requests == 3


def _twice(answers: list[Any]) -> Any:
    return [answers[0], answers[0]]


def _renumbered(answers: list[Any]) -> Any:
    return [answers[0], {**answers[1], "id": 7}]


WRONG = {
    "one is missing": lambda answers: answers[:1],
    "one comes twice": _twice,
    "one is nobody's": _renumbered,
    "one has no id": lambda answers: [answers[0], {**answers[1], "id": None}],
    "one has a true id": lambda answers: [answers[0], {**answers[1], "id": True}],
    "one too many": lambda answers: [*answers, answers[0]],
    "one is no answer": lambda answers: [answers[0], 5],
    "batches are refused": lambda answers: json.loads(error(-32600, "batches are not supported")),
    "a number": lambda answers: 5,
    "nothing": lambda answers: None,
}


@pytest.mark.parametrize("name", WRONG)
def test_an_endpoint_that_answers_a_batch_wrongly_is_asked_one_by_one(
    world: World, faulty: FaultyEndpoint, name: str
) -> None:
    faulty.whole = WRONG[name]
    chain = chain_at(world, faulty)
    for polls in (1, 2):
        assert numbers_of(chain) == [world.chain.block_number(), 0]
        assert faulty.requests == 1 + 2 * polls  # no second batch


def test_an_endpoint_that_refused_batches_is_tried_again_later(world: World, faulty: FaultyEndpoint) -> None:
    clock = VirtualClock()
    chain = chain_at(world, faulty, clock)
    faulty.whole = WRONG["batches are refused"]
    numbers_of(chain)
    faulty.whole = lambda answers: answers
    clock.advance(61)
    before = faulty.requests
    numbers_of(chain)
    assert faulty.requests - before == 1


def test_what_one_of_a_batch_is_refused_is_asked_by_itself(world: World, faulty: FaultyEndpoint) -> None:
    refusals = iter([error(-32000, "not today")])
    faulty.fault = lambda method, params: next(refusals, None) if params[0] == "0x0" else None
    assert numbers_of(chain_at(world, faulty)) == [world.chain.block_number(), 0]
    assert faulty.counted == (2, 3)


def test_who_is_too_busy_for_one_of_a_batch_is_asked_for_that_one_again(world: World, faulty: FaultyEndpoint) -> None:
    refusals = iter([error(-32005, "limit exceeded")])
    faulty.fault = lambda method, params: next(refusals, None) if params[0] == "0x0" else None
    chain = chain_at(world, faulty)
    assert numbers_of(chain) == [world.chain.block_number(), 0]
    assert faulty.counted == (2, 3)
    numbers_of(chain)
    assert faulty.requests == 3  # batches go on


def test_a_retry_after_with_a_busy_answer_in_a_batch_holds(world: World, faulty: FaultyEndpoint) -> None:
    clock = VirtualClock()
    chain = chain_at(world, faulty, clock)
    refusals = iter([error(429, "compute units")])
    faulty.fault = lambda method, params: next(refusals, None) if params[0] == "0x0" else None
    faulty.headers["Retry-After"] = "4"
    begun = clock.monotonic()
    assert numbers_of(chain) == [world.chain.block_number(), 0]
    assert 4 <= clock.monotonic() - begun < 5


def test_who_asks_to_be_left_alone_is_not_asked_for_the_rest_of_a_long_list(
    world: World, faulty: FaultyEndpoint
) -> None:
    def busy(method: str, params: Any) -> bytes | None:
        raise Refuse(429, Retry_After="4")

    faulty.fault = busy
    with chain_at(world, faulty).ahead(*map(numbered_block, range(25))):
        assert faulty.requests == 1


def test_a_retry_after_holds_for_batches_too(world: World, faulty: FaultyEndpoint) -> None:
    clock = VirtualClock()
    chain = chain_at(world, faulty, clock)

    def busy(method: str, params: Any) -> bytes | None:
        raise Refuse(429, Retry_After="4")

    faulty.fault = busy
    begun = clock.monotonic()
    with chain.ahead(newest_block(), numbered_block(0)):
        faulty.fault = lambda method, params: None
        chain.block()
    assert clock.monotonic() - begun >= 4
    assert faulty.requests == 2


@pytest.mark.parametrize("fault", [Refuse(429), error(-32005, "limit exceeded")])
def test_an_endpoint_that_has_too_much_to_do_is_not_asked_more_often_for_it(
    world: World, faulty: FaultyEndpoint, fault: Refuse | bytes
) -> None:
    """Batches go on: one by one it would be asked more."""
    chain = chain_at(world, faulty)

    def busy(method: str, params: Any) -> bytes:
        if isinstance(fault, Refuse):
            raise fault
        return fault

    faulty.fault = busy
    with chain.ahead(newest_block(), numbered_block(0)):
        pass
    faulty.fault = lambda method, params: None
    before = faulty.requests
    numbers_of(chain)
    assert faulty.requests == before + 1


def test_what_was_asked_ahead_is_too_old_after_a_block(world: World, faulty: FaultyEndpoint) -> None:
    clock = VirtualClock()
    chain = chain_at(world, faulty, clock)
    with chain.ahead(newest_block(), numbered_block(0)):
        world.anvil.request("evm_mine")
        clock.advance(2)
        assert chain.block().number == world.chain.block_number()


def test_an_answer_is_as_old_as_its_request(world: World, faulty: FaultyEndpoint) -> None:
    clock = VirtualClock()
    chain = chain_at(world, faulty, clock)
    faulty.fault = lambda method, params: clock.advance(0.8)
    with chain.ahead(newest_block(), numbered_block(0)):
        world.anvil.request("evm_mine")
        clock.advance(0.5)
        assert chain.block().number == world.chain.block_number()
    with chain.turns().turn():
        before = chain.block().number
        world.anvil.request("evm_mine")
        clock.advance(1.1)
        assert chain.block().number == before  # 1.9 s
        clock.advance(0.2)
        assert chain.block().number == before + 1


def test_a_turn_asks_ahead_what_the_one_before_asked(world: World, faulty: FaultyEndpoint) -> None:
    clock = VirtualClock()
    chain, turns = chain_at(world, faulty, clock), None
    turns = chain.turns()
    for _ in range(3):
        clock.advance(10)
        before = faulty.counted
        with turns.turn():
            chain.published(world.run)
            chain.block()
            chain.block()
    assert faulty.counted == (before[0] + 1, before[1] + 2)


def test_what_is_sent_makes_a_turns_answers_old(world: World, faulty: FaultyEndpoint) -> None:
    chain = chain_at(world, faulty)
    turns = chain.turns()
    with turns.turn():
        before = chain.block().number
        with_nothing = chain.provider.make_request("eth_sendRawTransaction", ["0x00"])
        assert "error" in with_nothing
        world.anvil.request("evm_mine")
        assert chain.block().number == before + 1


def test_a_book_that_finds_nothing_new_asks_once(world: World, faulty: FaultyEndpoint) -> None:
    book = Book(chain_at(world, faulty), world.run)
    world.anvil.request(
        "anvil_mine", hex(BATCH + SETTLED_BLOCKS)
    )  # or what is read a second time would come up in between
    for _ in range(2):
        world.anvil.request("evm_mine")
        book.poll()
    for _ in range(3):
        world.anvil.request("evm_mine")
        before = faulty.counted
        assert book.poll().number == world.chain.block_number()
        assert faulty.counted == (before[0] + 1, before[1] + 3)


def test_a_book_follows_an_endpoint_that_hangs_at_batches(world: World, faulty: FaultyEndpoint) -> None:
    def hang(answers: list[Any]) -> Any:
        raise Hang

    book = Book(Chain(faulty.url, world.chain.runs.address, timeout=1), world.run)
    book.poll()
    faulty.whole = hang
    for step in range(2):
        world.publish(step)
        book.poll()
        assert book.publication(step) is not None


def test_events_beyond_the_head_of_the_same_answer_wait_for_their_block(world: World, faulty: FaultyEndpoint) -> None:
    """Behind one URL a block may come between two answers of a batch."""
    book = Book(chain_at(world, faulty), world.run)
    for _ in range(2):
        world.anvil.request("evm_mine")
        book.poll()
    step = world.chain.published(world.run)
    world.anvil.request("evm_mine")  # a new block, in which nothing happened
    world.publish(step)
    event = next(event for event in world.logs() if isinstance(event.data, Published) and event.data.step == step)
    before = world.anvil.request("eth_getBlockByNumber", hex(event.block - 1), False)
    faulty.whole = lambda answers: [{**answers[0], "result": before}, *answers[1:]] if len(answers) == 3 else answers
    assert book.poll().number == event.block - 1
    assert book.publication(step) is None
    faulty.whole = lambda answers: answers
    book.poll()
    assert book.publication(step) is not None


def test_a_block_that_was_read_while_its_fork_went_is_read_again(world: World, faulty: FaultyEndpoint) -> None:
    """Nothing was found in it, so that it was not looked at twice: the next poll does."""
    book = Book(chain_at(world, faulty), world.run)
    for _ in range(2):
        world.anvil.request("evm_mine")
        book.poll()
    step, here = world.chain.published(world.run), world.anvil.request("evm_snapshot")
    world.anvil.request("anvil_mine", hex(20))
    book.poll()
    world.anvil.request("evm_revert", here)
    world.publish(step)
    world.anvil.request("anvil_mine", hex(40))
    book.poll()
    assert book.publication(step) is not None
