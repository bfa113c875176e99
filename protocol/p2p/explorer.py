"""Asking around as a stranger: who answers where, who knows whom, and how a lookup goes, question by question.

What an operator's commands see (protocol/shell/commands/net.py). An explorer has a key of its own that nobody knows, listens
nowhere, enters no routing table and remembers nothing; a role that runs beside it is not disturbed, and not believed either.

    found = explore(lambda explorer: explorer.greet(peer, places), seconds=10)

What peers say of themselves (agent, protocols, addresses) is theirs to choose: cut to a length here, escaped by whoever prints it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from protocol.errors import DeadlineExceeded, MurmurationError, ProtocolViolation, Unavailable
from protocol.identity import Key
from protocol.p2p.address import Address, PeerAddress
from protocol.p2p.discovery import ENDPOINT_PROTOCOL, ask_endpoint
from protocol.p2p.host import innermost
from protocol.p2p.identify import identify
from protocol.p2p.kademlia import Kademlia, LookupStep
from protocol.p2p.node import Node, PeerConnection
from protocol.p2p.notices import Notice, decode_for, value_key
from protocol.p2p.routing import Contact
from protocol.p2p.service import Provider, Service
from protocol.p2p.settings import HostLimits, Timing
from protocol.p2p.transport import Identity
from protocol.p2p.wire import PROTOCOL, KademliaAnswer, Kind, Question, Value

_AGENT_MAX = 128
_PROTOCOLS_MAX = 32
_OURS = (PROTOCOL, ENDPOINT_PROTOCOL)

T = TypeVar("T")


@dataclass(frozen=True)
class Dialled:
    """One attempt to reach a peer. `ip` is what a name led to, None where it led nowhere; `problem` is None where the peer answered."""

    named: PeerAddress
    ip: Address | None
    seconds: float
    problem: MurmurationError | None


@dataclass(frozen=True)
class Greeting:
    """What came of calling on a peer. `agent`, `protocols` and `seen_as` are its own words; `unidentified` is why there are none.
    `local` is the IP of this machine that the connection went out from."""

    dialled: tuple[Dialled, ...]
    round_trips: tuple[float, ...] = ()
    lost: int = 0
    agent: str = ""
    protocols: tuple[str, ...] = ()
    seen_as: str = ""
    unidentified: str = ""
    local: str = ""

    @property
    def seen_ip(self) -> str:
        """The IP from which the peer says that this machine came."""
        return self.seen_as.split("/")[2] if self.seen_as else ""

    @property
    def answered(self) -> bool:
        return any(each.problem is None for each in self.dialled)

    @property
    def problem(self) -> MurmurationError | None:
        """What a command ends with: of several, what the peer is to blame for first."""
        problems = [each.problem for each in self.dialled if each.problem is not None]
        worst = sorted(problems, key=lambda problem: not isinstance(problem, ProtocolViolation))
        return None if self.answered or not worst else worst[0]


class Explorer:
    def __init__(self, node: Node, *, loopback: bool) -> None:
        self.node = node
        self.loopback = loopback
        self.dht = Kademlia(node, ())

    async def greet(
        self, peer: bytes, places: Iterable[Address], *, pings: int = 0, ask: bool = False, hearsay: bool = False
    ) -> Greeting:
        """Dials every address of a peer, then, with `pings`, asks the connection that stands for round trips and who is there; with
        `ask` only for the latter.

        `hearsay`: the addresses are the word of peers, who send nobody into this machine's interior.
        """
        inside = self.loopback or not hearsay
        dialled: list[Dialled] = []

        async def dial(place: Address) -> None:
            began, named = trio.current_time(), PeerAddress(place, peer)
            try:
                with trio.move_on_after(self.node.timing.dial):
                    ips = [place] if place.ip else await self.node.resolve(place, loopback=inside)
                    for ip in ips:
                        nursery.start_soon(dial_ip, named, ip)
                    return
                raise Unavailable(f"the name was not resolved within {self.node.timing.dial:g} s")
            except MurmurationError as error:
                dialled.append(Dialled(named, None, trio.current_time() - began, error))

        async def dial_ip(named: PeerAddress, ip: Address) -> None:
            began = trio.current_time()
            try:
                if not ip.is_dialable:
                    raise Unavailable("this address stands for any; it cannot be dialled")
                if ip.is_loopback and not inside:
                    raise Unavailable("this machine's own interior; not dialled on the word of peers")
                await self.node.dial(peer, ip)
            except MurmurationError as error:
                dialled.append(Dialled(named, ip, trio.current_time() - began, error))
            else:
                dialled.append(Dialled(named, ip, trio.current_time() - began, None))

        async with trio.open_nursery() as nursery:
            for place in dict.fromkeys(places):
                nursery.start_soon(dial, place)
        tried = tuple(sorted(dialled, key=lambda each: (each.named, str(each.ip))))
        connection = self.node.connection(peer)
        if connection is None:
            return Greeting(tried)
        connection.kept = True
        if not (pings or ask):
            return Greeting(tried)
        trips, lost = await self._ping(connection, pings)
        return await self._identify(connection, Greeting(tried, trips, lost))

    async def enter(self, bootnodes: Iterable[PeerAddress], met: Callable[[PeerAddress, Greeting], None]) -> None:
        """Calls on every bootnode at once; those that answer take part in every lookup. `met` hears of each as it is known."""

        async def call_on(known: PeerAddress) -> None:
            greeting = await self.greet(known.peer, [known.address], ask=True)
            if greeting.answered:
                try:
                    await self.dht.introduce(known, anchor=True)
                except MurmurationError as error:
                    (first, *_) = greeting.dialled
                    said = f"it answers, and is no bootnode: {error}"
                    wrong = type(error)(said) if isinstance(error, ProtocolViolation) else Unavailable(said)
                    greeting = Greeting((Dialled(first.named, first.ip, first.seconds, wrong),))
            met(known, greeting)

        async with trio.open_nursery() as nursery:
            for known in dict.fromkeys(bootnodes):
                nursery.start_soon(call_on, known)

    async def look_for(
        self,
        key: bytes,
        watch: Callable[[LookupStep], None],
        *,
        providers: bool,
        signer: str | None = None,
        noticed: Callable[[Notice], None] = lambda notice: None,
    ) -> list[Contact]:
        """Looks up a key among those who were met, and tells of each question as it ends: the providers, or the peers closest to it.

        Of a provider every address that anybody named, each once. With a `signer` (a chain address) everybody is asked for its notice
        too, and `noticed` hears of each.
        """
        if not providers:
            return await self.dht.lookup(key, None, watch)
        named: dict[bytes, dict[Address, None]] = {}
        wanted = value_key(key, signer) if signer else b""
        question = Question(Kind.GET_PROVIDERS, key, None, Value(wanted)) if wanted else None

        def heard(answer: KademliaAnswer) -> None:
            if wanted and answer.value and (notice := decode_for(wanted, answer.value.data)):
                noticed(notice)
            for contact in answer.providers:
                named.setdefault(contact.peer, {}).update(dict.fromkeys(contact.addresses))

        await self.dht.lookup(key, heard, watch, question)
        return [Contact(peer, tuple(places)) for peer, places in named.items()]

    async def ask(self, contacts: Sequence[Contact], service: Service) -> list[Provider | MurmurationError]:
        """What each says that it provides as `service`, or what was wrong with its answer."""
        answers: list[Provider | MurmurationError] = [Unavailable("it was not asked")] * len(contacts)
        slots = trio.CapacityLimiter(self.node.limits.parallel)

        async def ask(place: int, contact: Contact) -> None:
            async with slots:
                try:
                    answers[place] = await ask_endpoint(self.node, contact, service)
                except MurmurationError as error:
                    answers[place] = error

        async with trio.open_nursery() as nursery:
            for place, contact in enumerate(contacts):
                nursery.start_soon(ask, place, contact)
        return answers

    async def _ping(self, connection: PeerConnection, count: int) -> tuple[tuple[float, ...], int]:
        """Round trips in seconds, and how many stayed out; the rest is not tried once one did."""
        trips: list[float] = []
        for _ in range(count):
            try:
                trips.append(await connection.muxer.ping(self.node.timing.request))
            except Unavailable:
                return tuple(trips), 1
        return tuple(trips), 0

    async def _identify(self, connection: PeerConnection, so_far: Greeting) -> Greeting:
        found = partial(Greeting, so_far.dialled, so_far.round_trips, so_far.lost, local=connection.local)
        try:
            said = await identify(self.node, connection)
        except MurmurationError as error:
            return found(protocols=await self._spoken(connection), unidentified=str(error))
        protocols = tuple(name[:_AGENT_MAX] for name in said.protocols[:_PROTOCOLS_MAX])
        return found(
            agent=said.agent[:_AGENT_MAX],
            protocols=protocols,
            seen_as=str(said.seen_as) if said.seen_as and said.seen_as.ip else "",
        )

    async def _spoken(self, connection: PeerConnection) -> tuple[str, ...]:
        """Which of our own protocols it agrees to speak, where it does not say what it speaks."""
        spoken = []
        for protocol in _OURS:
            with trio.move_on_after(self.node.timing.request):
                try:
                    async with self.node.stream(connection, protocol):
                        spoken.append(protocol)
                except MurmurationError:
                    continue
        return tuple(spoken)


def explore(
    task: Callable[[Explorer], Awaitable[T]], *, seconds: float, loopback: bool = False, timing: Timing = Timing()
) -> T:
    """Runs `task` in a trio run of its own, and returns its result. `loopback`: whether addresses of this machine's interior may be
    dialled on the word of peers.

    Raises what it raises, and DeadlineExceeded after `seconds`.
    """

    async def main() -> T:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                node = Node(Identity(Key.generate()), HostLimits(), timing, loopback=loopback)
                await nursery.start(node.run, None)
                result = await task(Explorer(node, loopback=loopback))
                nursery.cancel_scope.cancel()
            return result
        raise DeadlineExceeded(f"asking around took longer than {seconds:g} s")

    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        raise innermost(group) from group
