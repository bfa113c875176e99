"""One URL, several backends: the one that answers for events is some blocks behind the one that named the head, for a poll."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import World

from protocol.chain import Chain
from protocol.chain.events import Drawn
from protocol.chain.following import Follower, Happened
from protocol.chain.sync import Book
from protocol.errors import RpcUnavailable
from tests.clock import VirtualClock

LAG = 8  # blocks: more than a poll's
POLL_SECONDS, POLL_BLOCKS = 15.0, 7


class Lagging:
    """An endpoint whose backend for events lags while `is_on`; it refuses blocks that it has not got, as nodes do."""

    def __init__(self, anvil: Anvil) -> None:
        self._anvil, self.is_on, self.clock = anvil, False, VirtualClock()
        self.endpoint = FaultyEndpoint(anvil.rpc)
        self.endpoint.fault = self._answer

    def chain(self, world: World) -> Chain:
        return Chain(self.endpoint.url, world.chain.runs.address, clock=self.clock)

    def next_poll(self) -> None:
        self._anvil.request("anvil_mine", hex(POLL_BLOCKS), "0x2")
        self.clock.advance(POLL_SECONDS)

    def _answer(self, method: str, params: Any) -> bytes | None:
        if method != "eth_getLogs" or not self.is_on:
            return None
        has = int(self._anvil.request("eth_blockNumber"), 16) - LAG
        query = dict(params[0])
        if query["toBlock"] == "latest":
            query["toBlock"] = hex(has)
        elif int(query["toBlock"], 16) > has:
            return error(-32000, "block range extends beyond current head block")
        if int(query["fromBlock"], 16) > has:
            return result([])
        return result(self._anvil.request("eth_getLogs", query))


@pytest.fixture
def lagging(anvil: Anvil) -> Iterator[Lagging]:
    made = Lagging(anvil)
    yield made
    made.endpoint.close()


def test_a_book_has_the_event_with_the_next_poll(world: World, lagging: Lagging) -> None:
    book = Book(lagging.chain(world), world.run)
    for _ in range(3):
        lagging.next_poll()
        book.poll()
    step = world.chain.published(world.run)
    world.publish(step)
    lagging.next_poll()
    lagging.is_on = True
    with suppress(RpcUnavailable):  # it may see that something is wrong
        book.poll()
    lagging.is_on = False
    lagging.next_poll()
    book.poll()
    assert book.beacon(step) is not None


def test_who_follows_without_a_book_is_told(world: World, lagging: Lagging) -> None:
    chain = lagging.chain(world)
    follower = Follower(chain, world.run, chain.block_number())
    for _ in range(3):
        lagging.next_poll()
        list(follower.poll())
    world.publish(world.chain.published(world.run))
    lagging.next_poll()
    lagging.is_on = True
    told: list[Happened] = []
    with suppress(RpcUnavailable):
        told += follower.poll()
    lagging.is_on = False
    lagging.next_poll()
    told += follower.poll()
    assert any(isinstance(one.event.data, Drawn) for one in told)
