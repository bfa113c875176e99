"""The DHT: asking the peers around a key, and answering when asked. Wire-compatible with libp2p's Kademlia messages.

py-libp2p's KadDHT is not used: it serves twelve streams at a time and lets silent ones keep them for ever, finds what it
once found for 48 hours and nothing newer, gives each key to the first twenty who claim it, stores a megabyte for anybody,
takes clients for servers, and always speaks the public IPFS network's protocol id.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from protocol.errors import Malformed, MurmurationError
from protocol.p2p.address import Address, PeerAddress, network_of, peer_text
from protocol.p2p.admission import Admission, as_seen
from protocol.p2p.node import Node
from protocol.p2p.records import ProviderRecords
from protocol.p2p.routing import BUCKET, Contact, RoutingTable, nearest
from protocol.p2p.stream import Stream
from protocol.p2p.wire import ANSWER_BYTES_MAX, PROTOCOL, QUESTION_BYTES_MAX, KademliaAnswer, Kind, Question

log = logging.getLogger(__name__)

_QUESTIONS_PER_LOOKUP = 64
_QUESTIONS_PER_STREAM = 64


@dataclass(frozen=True)
class LookupStep:
    """One question of a lookup: to whom, how many seconds it took, and the answer or what was wrong."""

    contact: Contact
    seconds: float
    outcome: KademliaAnswer | MurmurationError


class Kademlia:
    """`own` is how others reach this node; empty when it does not listen, and then it only asks.

    `anchors` are peers that take part in every lookup and hold every record of ours, however far from the key: whoever
    mints PeerIDs all around a key then still does not hide it. Membership puts the bootnodes there.
    """

    def __init__(self, node: Node, own: tuple[Address, ...]) -> None:
        self.peer = node.identity.peer
        self.table = RoutingTable(self.peer)
        self.records = ProviderRecords(node.limits, node.timing.record)
        self.anchors: dict[bytes, Contact] = {}
        self._node = node
        self._self = Contact(self.peer, own) if own else None
        self._admission = Admission(node, self.table, own, PROTOCOL)
        if own:
            node.handle(PROTOCOL, self._answer)

    async def introduce(self, known: PeerAddress, *, anchor: bool = False) -> None:
        """Asks a peer we only have the address of for those around us. Raises Unavailable or a ProtocolViolation."""
        contact = Contact(known.peer, (known.address,))
        await self._ask(contact, Question(Kind.FIND_NODE, self.peer, self._self))
        if anchor:
            self.anchors[known.peer] = contact

    async def refresh(self) -> None:
        """Looks around ourselves and around a random place; drops who no longer answers."""
        await self.lookup(self.peer)
        if len(self.table) > BUCKET:  # else the first lookup has asked everybody
            await self.lookup(os.urandom(32))

    async def provide(self, key: bytes) -> int:
        """Announces that we provide `key` to the peers closest to it; the number of those that hold the record now."""
        if self._self is None:
            raise ValueError("a node that does not listen provides nothing")
        # Held here too: whoever asks this node first, because it is their bootnode, need ask nobody else.
        self.records.put(key, self._self, source="", now=trio.current_time())
        holders = 0

        async def give(contact: Contact) -> None:
            nonlocal holders
            try:
                # It has no answer, so a second question tells when it has been read.
                await self._ask(contact, Question(Kind.PING, b""), first=Question(Kind.ADD_PROVIDER, key, self._self))
                holders += 1
            except MurmurationError as error:
                log.debug("%s did not take a provider record: %s", peer_text(contact.peer), error)

        holding = {contact.peer: contact for contact in await self.lookup(key)} | self.anchors
        async with trio.open_nursery() as nursery:
            for contact in holding.values():
                nursery.start_soon(give, contact)
        return holders

    async def providers(self, key: bytes, found: Callable[[Contact], None]) -> None:
        """Calls `found` for each provider of `key` as soon as somebody names it, each peer and address once."""
        known: set[tuple[bytes, Address]] = set()

        def merge(contacts: Sequence[Contact]) -> None:
            once = {contact.peer: contact for contact in contacts}  # as in an honest answer
            for contact in random.sample([*once.values()], len(once)):  # nobody is asked first for having come first
                fresh = tuple(place for place in contact.addresses if (contact.peer, place) not in known)
                known.update((contact.peer, place) for place in fresh)
                if fresh and contact.peer != self.peer:
                    found(Contact(contact.peer, fresh))

        merge(self.records.get(key, trio.current_time()))
        await self.lookup(key, lambda answer: merge(answer.providers))

    async def lookup(
        self,
        key: bytes,
        heard: Callable[[KademliaAnswer], None] | None = None,
        watch: Callable[[LookupStep], None] = lambda step: None,
    ) -> list[Contact]:
        """The peers closest to `key` that answered, closest first; `heard` sees every answer, `watch` each question as it ends.

        With `heard` it asks for providers, else for peers only.
        """
        question = Question(Kind.GET_PROVIDERS if heard else Kind.FIND_NODE, key, self._self)
        candidates = self.anchors | {contact.peer: contact for contact in self.table.nearest(key)}
        asked: set[bytes] = set()
        failed: set[bytes] = set()
        wake = trio.Event()
        limiter = trio.Semaphore(self._node.limits.parallel)

        async def ask(contact: Contact) -> None:
            nonlocal wake
            began = trio.current_time()
            try:
                answer = await self._ask(contact, question)
            except MurmurationError as error:
                log.debug("%s does not answer: %s", peer_text(contact.peer), error)
                failed.add(contact.peer)
                watch(LookupStep(contact, trio.current_time() - began, error))
            else:
                watch(LookupStep(contact, trio.current_time() - began, answer))
                for closer in answer.closer:
                    if closer.peer != self.peer:
                        candidates.setdefault(closer.peer, closer)
                if heard:
                    heard(answer)
            finally:
                running.discard(contact.peer)
                limiter.release()
                wake.set()

        running: set[bytes] = set()
        async with trio.open_nursery() as nursery:
            while len(asked) < _QUESTIONS_PER_LOOKUP:
                closest = nearest((each for each in candidates.values() if each.peer not in failed), key)
                line = (*self.anchors.values(), *closest)
                following = next((contact for contact in line if contact.peer not in asked), None)
                if following is None:
                    if not running:
                        break
                    await wake.wait()
                    wake = trio.Event()
                    continue
                await limiter.acquire()
                asked.add(following.peer)
                running.add(following.peer)
                nursery.start_soon(ask, following)
        return nearest((candidates[peer] for peer in asked - failed), key)

    async def _ask(self, contact: Contact, question: Question, *, first: Question | None = None) -> KademliaAnswer:
        """Raises Unavailable or a ProtocolViolation, and then the contact is forgotten. `first` has no answer."""
        messages = [each.encode() for each in (first, question) if each]
        try:
            data = await self._node.request(
                contact.peer, contact.addresses, PROTOCOL, *messages, cap=ANSWER_BYTES_MAX, what="DHT answer"
            )
            answer = KademliaAnswer.decode(data, question.kind)
        except MurmurationError:
            self.table.forget(contact.peer)
            raise
        self.table.seen(contact, trio.current_time())
        return self._as_told(answer, contact)

    async def _answer(self, stream: Stream) -> None:
        for _ in range(_QUESTIONS_PER_STREAM):
            question = Question.decode(await stream.read_message(QUESTION_BYTES_MAX, "DHT question"))
            answer = self._answer_to(question, stream)
            if answer is not None:
                await stream.write_message(answer.encode(question.kind))
            if await stream.ended():
                return

    def _answer_to(self, question: Question, stream: Stream) -> KademliaAnswer | None:
        now = trio.current_time()
        if question.sender and question.sender.peer != stream.peer:
            raise Malformed("the sender names another peer as itself")
        sender = as_seen(question.sender, stream.remote) if question.sender else None
        if question.kind is Kind.ADD_PROVIDER:  # a provider may be one that only asks
            if sender is None:
                raise Malformed("the provider record holds no address that could be dialled")
            self.records.put(question.key, sender, source=network_of(stream.remote), now=now)
            return None
        if question.kind is Kind.PING:
            return KademliaAnswer()
        self._admission.asked(stream, sender)
        closer = [contact for contact in self.table.nearest(question.key, BUCKET + 1) if contact.peer != stream.peer]
        providers = self.records.get(question.key, now) if question.kind is Kind.GET_PROVIDERS else []
        return KademliaAnswer(tuple(closer[:BUCKET]), tuple(self._as_reached(each, stream) for each in providers))

    def _as_reached(self, provider: Contact, stream: Stream) -> Contact:
        """A provider as who asks on `stream` can reach it: if it is this node, also where it has just been reached."""
        if provider.peer != self.peer or not stream.local:
            return provider
        places = (*provider.addresses, *(place.seen_from(stream.local) for place in provider.addresses))
        return Contact(provider.peer, tuple(dict.fromkeys(places)))

    def _as_told(self, answer: KademliaAnswer, teller: Contact) -> KademliaAnswer:
        """An answer in which the one who gave it is found where we found it, if it named itself as "any interface"."""
        connection = self._node.connection(teller.peer)
        if connection is None:
            return answer
        remote = connection.remote
        providers = (
            Contact(each.peer, tuple(place.seen_from(remote) for place in each.addresses))
            if each.peer == teller.peer
            else each
            for each in answer.providers
        )
        return KademliaAnswer(answer.closer, tuple(providers))
