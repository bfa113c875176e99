"""A network of hundreds of peers in virtual time: everything of protocol/p2p but the sockets, of which there are none.

Each peer runs the real `Discovery` (membership, DHT, search, wire formats); only its `Node` is replaced, by one that hands questions to
the other's handler after a delay. A peer that is down takes the dial's deadline to say nothing, as on the real network.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from protocol.errors import MurmurationError, Unavailable
from protocol.identity import Key
from protocol.p2p import Endpoint, HostLimits, Provider, Service, Timing
from protocol.p2p.address import Address, PeerAddress
from protocol.p2p.discovery import Discovery
from protocol.p2p.routing import BUCKET, Contact
from protocol.p2p.settings import Setup
from protocol.p2p.wire import PROTOCOL, QUESTION_BYTES_MAX, KademliaAnswer, Kind, Question

DELAY = 0.05
WALL = 1_700_000_000
DIAL_SECONDS = 3.0

Handler = Callable[[Any], Awaitable[None]]


def new_key() -> Key:
    """Of Python's seeded randomness, so that a simulation can be repeated."""
    return Key.from_secret(random.randbytes(32))


class Exchange:
    """Questions and the answer to the last one, as a handler sees them."""

    def __init__(self, messages: Iterable[bytes], peer: bytes, remote: str, local: str) -> None:
        self.peer, self.remote, self.local = peer, remote, local
        self._questions = list(messages)
        self.answer = b""

    async def read_message(self, cap: int, what: str) -> bytes:
        message = self._questions.pop(0)
        assert len(message) <= cap, what
        return message

    async def ended(self) -> bool:
        return not self._questions

    async def write_message(self, data: bytes) -> None:
        self.answer = data


class Link:
    """What membership keeps to a bootnode."""

    def __init__(self, peer: bytes, place: Address) -> None:
        self.peer, self.place, self.remote, self.kept = peer, place, place.host, False


class SimulatedNode:
    def __init__(self, world: World, setup: Setup) -> None:
        assert setup.listen
        self.identity = setup.key
        self.limits, self.timing = setup.limits, setup.timing
        self.handlers: dict[str, Handler] = {}
        self.counts: Counter[str] = Counter()
        self.on_lost: Callable[[Any], None] = lambda link: None
        self.place = setup.listen
        self._world = world
        self._links: dict[bytes, Link] = {}

    def wall(self) -> float:
        return WALL + trio.current_time()

    def handle(self, protocol: str, handler: Handler) -> None:
        self.handlers[protocol] = handler

    def connection(self, peer: bytes) -> Link | None:
        return self._links.get(peer)

    def reached(self, peer: bytes) -> tuple[Address, ...]:
        link = self._links.get(peer)
        return (link.place,) if link else ()

    async def reach(self, peer: bytes, place: Address) -> None:
        node = self._world.up.get(place)
        await trio.sleep(DELAY if node else DIAL_SECONDS)
        if node is None or node.identity.peer != peer:
            raise Unavailable("nobody there")

    def start_soon(self, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        self._world.nursery.start_soon(task, *arguments)

    def lose(self, peer: bytes) -> None:
        link = self._links.pop(peer, None)
        if link:
            self.on_lost(link)

    async def run(self, listen: Address, *, task_status: Any) -> None:
        self._world.up[self.place] = self
        task_status.started(listen)
        try:
            await trio.sleep_forever()
        finally:
            del self._world.up[self.place]
            for other in [*self._world.up.values()]:
                other.lose(self.identity.peer)

    async def request(
        self, peer: bytes, addresses: Iterable[Address], protocol: str, *messages: bytes, cap: int, what: str
    ) -> bytes:
        self._world.messages += 1
        there = [self._world.up.get(place) for place in addresses]
        found = next((node for node in there if node and node.identity.peer == peer), None)
        if found is None:
            await trio.sleep(DIAL_SECONDS)
            raise Unavailable("nobody there")
        await trio.sleep(DELAY * random.uniform(0.5, 1.5))
        exchange = Exchange(messages, self.identity.peer, self.place.host, found.place.host)
        try:
            await found.handlers[protocol](exchange)
        except (MurmurationError, KeyError) as error:
            raise Unavailable("the stream was reset") from error
        assert len(exchange.answer) <= cap, what
        self._links.setdefault(peer, Link(peer, found.place))
        return exchange.answer


class Peer:
    """A peer that can be started, stopped and started again, on the same address or another, with what it remembers."""

    def __init__(self, world: World, key: Key, place: Address, file: Path | None = None) -> None:
        self.key = key
        self.place = place
        self.announced: dict[Service, Endpoint] = {}
        self._world = world
        self._file = file
        self._scope: trio.CancelScope | None = None
        self.discovery: Discovery

    @property
    def is_up(self) -> bool:
        return self._scope is not None

    async def start(self, *bootnodes: Peer) -> None:
        known = tuple(PeerAddress(each.place, each.key.peer) for each in bootnodes)
        setup = Setup(self.key, self.place, known, (), self._file, None, self._world.timing, self._world.limits)
        self.discovery = Discovery(
            setup,
            lambda: self.announced,
            lambda setup, _: SimulatedNode(self._world, setup),  # type: ignore[arg-type, return-value]
        )
        self._scope = trio.CancelScope()

        async def live(*, task_status: Any) -> None:
            with self._scope:  # type: ignore[union-attr]
                await self.discovery.run(task_status=task_status)

        await self._world.nursery.start(live)

    async def stop(self) -> None:
        assert self._scope
        if self._file:
            self.discovery.membership.save()
        self._scope.cancel()
        self._scope = None
        await wait_all_tasks_blocked()

    async def find(self, service: Service, signer: Key, seconds: float) -> list[Provider]:
        try:
            return await self.discovery.find(service, 1, seconds, [signer.address])
        except Unavailable:
            return []


class World:
    def __init__(self, limits: HostLimits = HostLimits()) -> None:
        self.limits = limits
        self.up: dict[Address, SimulatedNode] = {}
        self.messages = 0
        self.timing = replace(Timing(), dial=DIAL_SECONDS, settle=60.0)
        self.nursery: trio.Nursery
        self._numbers = iter(range(1, 1 << 20))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        async with trio.open_nursery() as self.nursery:
            yield self
            self.nursery.cancel_scope.cancel()

    def peer(self, file: Path | None = None, key: Key | None = None, block: int | None = None) -> Peer:
        """One in a /24 of its own, or in the /24 `block` that it shares."""
        number = next(self._numbers)
        host = f"{11 + number // 62500}.{number // 250 % 250}.{number % 250}.7"
        if block is not None:
            host = f"9.{block // 250}.{block % 250}.{number % 250}"
        return Peer(self, key or new_key(), Address("ip4", host, 4001 + number // 250), file)


def turn_hostile(crowd: list[Peer]) -> None:
    """From now on they take every record, and name only each other, and no provider and no notice at all."""
    own = [Contact(each.key.peer, (each.place,)) for each in crowd]

    async def answer(stream: Exchange) -> None:
        while True:
            question = Question.decode(await stream.read_message(QUESTION_BYTES_MAX, "question"))
            if question.kind is not Kind.ADD_PROVIDER:
                closer = () if question.kind is Kind.PING else tuple(random.sample(own, min(BUCKET, len(own))))
                await stream.write_message(KademliaAnswer(closer).encode(question.kind))
            if await stream.ended():
                return

    for each in crowd:
        each.discovery.node.handle(PROTOCOL, answer)  # type: ignore[arg-type]
