"""What runs inside the host's thread: node, DHT and membership put together, and the endpoint protocol.

A provider record in the DHT only says that some PeerID claims a key, to be found at some addresses. The endpoint itself is
asked of that peer, over a connection on which it has proven its PeerID:

    /murmuration/endpoint/1    service key (34 bytes) → endpoint JSON (≤ 4 KiB), empty when it provides no such thing

Messages are length-prefixed, one each way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from protocol.errors import Malformed, MurmurationError, ProtocolViolation, Unavailable
from protocol.identity import address_of_peer, is_stranger
from protocol.logs import SaidOnce
from protocol.p2p import peers, report
from protocol.p2p.address import Address, peer_text
from protocol.p2p.gossip import Gossip
from protocol.p2p.kademlia import Kademlia
from protocol.p2p.membership import Membership
from protocol.p2p.node import Node, PeerConnection
from protocol.p2p.notices import Notice, Notices
from protocol.p2p.routing import Contact
from protocol.p2p.service import ENDPOINT_BYTES_MAX, Endpoint, Provider, Service
from protocol.p2p.settings import Setup
from protocol.p2p.stream import Stream
from protocol.p2p.subject import GossipSubject
from protocol.p2p.transport import Identity
from protocol.retry import Backoff, jittered

log = logging.getLogger(__name__)

ENDPOINT_PROTOCOL: Final = "/murmuration/endpoint/1"
"""Changing it breaks: nodes of different versions no longer learn each other's endpoints."""

_KEY_BYTES = 34
_NOTICE_SECONDS = 86400  # after which a notice that says the same is signed anew
_SIGNERS_MOST = 4  # of one `find`: those who may provide a service are few where one of them is trusted
_ATTEMPTS_PER_ADDRESS = 8  # of one `find`: the provider may be restarting just now
_SOON_SECONDS = 0.25
_PAUSE_SECONDS = 0.1
_PAUSE_MOST_SECONDS = 2.0


class Discovery:
    """One life of the thread. `announcements` gives what is to be provided just now; the host keeps it over restarts."""

    def __init__(
        self,
        setup: Setup,
        announcements: Callable[[], Mapping[Service, Endpoint]],
        make_node: Callable[[Setup, bool], Node] = lambda setup, loopback: Node(
            Identity(setup.key), setup.limits, setup.timing, loopback=loopback
        ),
    ) -> None:
        self._setup = setup
        self._make_node = make_node
        self.announcements = announcements
        self._holders: dict[Service, int] = {}
        self._provide_again = trio.Event()
        self._provided = trio.Event()
        self._news = trio.Event()  # what a report says has changed
        self.provided: float | None = None
        """When provider records were placed last, by the wall clock."""
        self.bound: Address | None = None
        self.own: tuple[Address, ...] = ()
        self.dropped: Counter[str] = Counter()
        self._said = SaidOnce(log)
        self.gossip: Gossip | None = None

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled; started once it listens. Raises PreflightError when it cannot."""
        setup = self._setup
        near = [setup.listen, *setup.announce, *(known.address for known in setup.bootnodes)]
        loopback = any(place.is_loopback for place in near if place)
        memory = peers.load(setup.peers_file, most=setup.limits.saved_peers) if setup.peers_file else peers.Memory()
        loopback = loopback or any(each.address.is_loopback for each in memory.peers)
        self.node = self._make_node(setup, loopback)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.bound = await nursery.start(self.node.run, setup.listen)
            if self.bound:
                self.own = setup.announce or (self.bound,)
            self.dht = Kademlia(self.node, self.own, Notices(setup.limits, memory.notices))
            self.membership = Membership(
                self.node, self.dht, setup.bootnodes, setup.peers_file, memory.peers, self.announce_again
            )
            self.node.handle(ENDPOINT_PROTOCOL, self._answer)
            self._note_loss, self.node.on_lost = self.node.on_lost, self._lost
            if setup.subject:
                self.gossip_about(setup.subject)
            nursery.start_soon(self.membership.run)
            nursery.start_soon(self._keep_providing)
            if setup.report_file:
                nursery.start_soon(self._keep_reporting, setup.report_file)
            task_status.started()

    def gossip_about(self, subject: GossipSubject) -> None:
        """From now on, until the end; about one subject in a life."""
        if self.gossip is None:
            self.gossip = Gossip(self.node, self.dht, self.own, subject)
            self._nursery.start_soon(self.gossip.run)

    def publish(self, data: bytes) -> None:
        """Tells those who gossip about the same subject."""
        if self.gossip:
            self.gossip.mesh.publish(data)

    def _lost(self, connection: PeerConnection) -> None:
        self._note_loss(connection)
        if self.gossip:
            self.gossip.lost(connection)

    def save(self) -> None:
        """The last words, at the end of a life."""
        self.membership.save()
        if self._setup.report_file:
            report.write(self._setup.report_file, self, report.STOPPED)

    async def _keep_reporting(self, path: Path) -> None:
        """At the latest after `timing.report`; soon after joining and after providing: people ask a role that just started."""
        while True:
            self._news = trio.Event()
            report.write(path, self, report.RUNNING)
            with trio.move_on_after(self._setup.timing.report):
                await self._news.wait()
                await trio.sleep(_SOON_SECONDS)  # what changes together is said together

    # ---- providing ----

    def announce_again(self) -> None:
        """Place all provider records now: there is a new one, or the network may have lost them."""
        self._provide_again.set()
        self._news.set()
        if self.gossip:
            self.gossip.announce_again()

    def holders(self, service: Service) -> int:
        """How many others held the provider record of `service` when it was placed last."""
        return self._holders.get(service, 0)

    async def announced(self, service: Service) -> None:
        """Returns once somebody else holds the provider record of `service`."""
        while not self.holders(service):
            await self._provided.wait()

    async def _keep_providing(self) -> None:
        timing = self._setup.timing
        backoff = Backoff(timing.retry, timing.retry_most, jitter=True)
        while True:
            self._provide_again = trio.Event()
            self._holders = {
                service: await self.dht.provide(service.key, self._notice(service)) for service in self.announcements()
            }
            for service in self.announcements():  # where we are may have been learned only now
                self._notice(service)
            if self._holders:
                self.provided = self.node.wall()
            self._provided.set()
            self._news.set()
            self._provided = trio.Event()
            if all(self._holders.values()):
                backoff.succeeded()
                pause = jittered(timing.provide)
            else:
                pause = backoff.failed()
            with trio.move_on_after(pause):
                await self._provide_again.wait()

    def _notice(self, service: Service) -> Notice | None:
        """Our signed notice about `service`, which we keep ourselves too; None while we do not know where others see us."""
        usable = [place for place in self.own if place.is_dialable]
        if not usable:  # "any interface": what most others say
            told = self.dht.seen_as.most_common(1)
            usable = list(told[0][0]) if told and 2 * told[0][1] > self.dht.seen_as.total() else []
        if not usable:
            return None
        made = Notice.sign(self._setup.key, service.key, usable, int(self.node.wall()))
        known = self.dht.notices.get(made.key)
        if known and known.addresses == made.addresses and made.issued - known.issued < _NOTICE_SECONDS:
            return known
        self.dht.notices.follow(made, self.node.wall())
        return made

    async def _answer(self, stream: Stream) -> None:
        key = await stream.read_message(_KEY_BYTES, "service key")
        endpoints = (endpoint for service, endpoint in self.announcements().items() if service.key == key)
        endpoint = next(endpoints, None)
        await stream.write_message(endpoint.encode() if endpoint else b"")

    # ---- finding ----

    async def find(
        self, service: Service, at_least: int, seconds: float, among: Collection[str] | None = None
    ) -> list[Provider]:
        """Those who prove to provide `service`, quickest first: all that answer, once there are `at_least`.

        Fewer when `seconds` have passed. Raises Unavailable when that leaves none, though some were wanted. Only those
        with a chain address in `among` are asked, if it is given.
        """
        search = _Search(self, service, at_least, among)
        looked = False
        with trio.move_on_after(seconds):
            backoff = Backoff(_PAUSE_SECONDS, _PAUSE_MOST_SECONDS, jitter=True)
            while True:
                if self.membership.is_joined or len(self.dht.records) or len(self.dht.notices):
                    await search.round()
                    looked = True
                    if len(search.found) >= at_least:
                        break
                await trio.sleep(backoff.failed())
        if search.dropped:
            self.dropped.update(search.dropped)
            what = ", ".join(f"{count} {why}" for why, count in sorted(search.dropped.items()))
            self._said.say(logging.INFO, service, f"{service}: {len(search.found)} found, dropped {what}")
        elif looked:
            self._said.over(service)
        if not search.found and (at_least > 0 or not looked):
            if not self.membership.is_joined:
                raise Unavailable(
                    f"cannot look for a {service}: {self.membership.reason()}",
                    hint="murmur net status says who answers from this machine",
                )
            tried = f"; {len(search.asked)} claimed to be one and failed" if search.asked else ""
            raise Unavailable(
                f"no {service} was found within {seconds:.3g} s{tried}",
                hint=f"try again; murmur net trace {service.role} shows where the lookup stops",
            )
        return list(search.found.values())

    async def ask(self, contact: Contact, service: Service) -> Provider:
        return await ask_endpoint(self.node, contact, service)

    def follow(self, contact: Contact, service: Service) -> None:
        """Keeps the notice of a provider that was just found, for the next start and for others who ask."""

        async def learn() -> None:
            try:
                await self.dht.learn(contact, service.key, address_of_peer(contact.peer))
                self.membership.save()
            except MurmurationError as error:
                log.debug("%s gives no notice: %s", peer_text(contact.peer), error)

        self._nursery.start_soon(learn)


async def ask_endpoint(node: Node, contact: Contact, service: Service) -> Provider:
    """Raises Unavailable, or a ProtocolViolation for an answer that is not an endpoint of `service`."""
    data = await node.request(
        contact.peer, contact.addresses, ENDPOINT_PROTOCOL, service.key, cap=ENDPOINT_BYTES_MAX, what="endpoint"
    )
    if not data:
        raise Malformed(f"it provides no {service}")
    endpoint = Endpoint.decode(data)
    if (endpoint.role, endpoint.run) != (service.role, service.run):
        raise Malformed(f"it calls itself {endpoint.role} of run {endpoint.run}")
    return Provider(peer_text(contact.peer), address_of_peer(contact.peer), endpoint)


class _Search:
    """One `find`: whom it asked, who answered, and how many were dropped for what."""

    def __init__(self, discovery: Discovery, service: Service, at_least: int, among: Collection[str] | None) -> None:
        self.found: dict[bytes, Provider] = {}
        self.asked: set[bytes] = set()
        self.dropped: Counter[str] = Counter()
        self._elsewhere: set[bytes] = set()
        # Whose notices are followed; where many may provide a service, it does not hang on one.
        self._signers = list(among) if among is not None and len(among) <= _SIGNERS_MOST else []
        # Not per peer: anybody may name a false address of it.
        self._attempts: Counter[tuple[bytes, Address]] = Counter()
        self._discovery = discovery
        self._service = service
        self._at_least = at_least
        self._among = None if among is None else {address.lower() for address in among}

    async def round(self) -> None:
        """One lookup; everybody it names is asked at once. Once there are enough, the others get a moment's grace."""
        node = self._discovery.node
        slots = trio.CapacityLimiter(node.limits.parallel)

        async def ask(contact: Contact) -> None:
            async with slots:
                if contact.peer in self.found:
                    return
                try:
                    self.found[contact.peer] = await self._discovery.ask(contact, self._service)
                    if self._signers:
                        self._discovery.follow(contact, self._service)
                except MurmurationError as error:
                    wrong = isinstance(error, ProtocolViolation)
                    self.dropped["with a wrong answer" if wrong else "without an answer"] += 1
                    log.debug("%s: dropped %s: %s", self._service, peer_text(contact.peer), error)
                    return
            if 0 < self._at_least <= len(self.found):
                nursery.cancel_scope.deadline = min(
                    nursery.cancel_scope.deadline, trio.current_time() + node.timing.grace
                )

        def named(contact: Contact) -> None:
            if is_stranger(contact.peer):  # nobody on any chain provides what runs need
                return
            if self._among is not None and address_of_peer(contact.peer).lower() not in self._among:
                return
            known = contact.peer in self.asked or len(self.asked) < node.limits.candidates
            pairs = [(contact.peer, place) for place in contact.addresses]
            pairs = [pair for pair in pairs if self._attempts[pair] < _ATTEMPTS_PER_ADDRESS]
            if known and pairs and contact.peer not in self.found:
                self.asked.add(contact.peer)
                self._attempts.update(pairs)
                nursery.start_soon(ask, Contact(contact.peer, tuple(place for _, place in pairs)))

        async with trio.open_nursery() as nursery:
            await self._discovery.dht.providers(self._service.key, named, self._signers, self._elsewhere)
