"""The DHT: asking the peers around a key, and answering when asked. Wire-compatible with libp2p's Kademlia messages.

py-libp2p's KadDHT is not used: it serves twelve streams at a time and lets silent ones keep them for ever, finds what it
once found for 48 hours and nothing newer, gives each key to the first twenty who claim it, stores a megabyte for anybody,
takes clients for servers, and always speaks the public IPFS network's protocol id.
"""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from protocol.errors import Malformed, MurmurationError
from protocol.p2p.address import Address, PeerAddress, network_of, peer_text
from protocol.p2p.admission import Admission, as_seen
from protocol.p2p.node import Node
from protocol.p2p.notices import Notice, Notices, decode_for, value_key
from protocol.p2p.records import ProviderRecords
from protocol.p2p.routing import BUCKET, Contact, RoutingTable, diverse
from protocol.p2p.stream import Stream
from protocol.p2p.wire import ANSWER_BYTES_MAX, PROTOCOL, QUESTION_BYTES_MAX, KademliaAnswer, Kind, Question, Value

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

    def __init__(self, node: Node, own: tuple[Address, ...], notices: Notices | None = None) -> None:
        self.notices = Notices(node.limits) if notices is None else notices
        # Where we listen on any interface: how those who hold a record of ours see us, and how many of them.
        self.seen_as: Counter[tuple[Address, ...]] = Counter()
        self.peer = node.identity.peer
        self.table = RoutingTable(self.peer)
        self.records = ProviderRecords(node.limits, node.timing.record)
        self.anchors: dict[bytes, Contact] = {}
        self._node = node
        self._wall = node.wall
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

    async def provide(self, key: bytes, notice: Notice | None = None) -> int:
        """Announces that we provide `key` to the peers closest to it, and to some that are nowhere near it, so that whoever surrounds
        the key does not hold all there is; the number of those that hold the record now. `notice` goes with it."""
        if self._self is None:
            raise ValueError("a node that does not listen provides nothing")
        # Held here too: whoever asks this node first, because it is their bootnode, need ask nobody else.
        self.records.put(key, self._self, source="", now=trio.current_time())
        value = Value(notice.key, notice.encode()) if notice else None
        record = Question(Kind.ADD_PROVIDER, key, self._self, value)
        # It has no answer, so a second question tells when it has been read, and where we are seen if we do not know.
        located = any(place.is_dialable for place in self._self.addresses)
        following = Question(Kind.PING, b"") if located else Question(Kind.GET_PROVIDERS, key, self._self)
        holders = 0
        told: Counter[tuple[Address, ...]] = Counter()

        async def give(contact: Contact) -> None:
            nonlocal holders
            try:
                answer = await self._ask(contact, following, first=record)
                holders += 1
                if contact.peer not in closest or contact.peer in self.anchors:  # who surrounds the key has no say
                    told.update(each.addresses for each in answer.providers if each.peer == self.peer)
            except MurmurationError as error:
                log.debug("%s did not take a provider record: %s", peer_text(contact.peer), error)

        closest = {contact.peer: contact for contact in await self.lookup(key)}
        holding = closest | self.anchors
        for contact in self._somewhere(self._node.limits.spread, without=holding):
            holding[contact.peer] = contact
        async with trio.open_nursery() as nursery:
            for contact in holding.values():
                nursery.start_soon(give, contact)
        self.seen_as = told or self.seen_as
        return holders

    async def providers(
        self,
        key: bytes,
        found: Callable[[Contact], None],
        signers: Collection[str] = (),
        elsewhere: set[bytes] | None = None,
    ) -> None:
        """Calls `found` for each provider of `key` as soon as somebody names it, each peer and address once.

        Those around the key are asked, and some that are nowhere near it; for the notices of `signers` too (chain addresses), which
        are followed from then on. `elsewhere` are those far from the key that a search has asked before: it asks others each time.
        """
        wanted = [value_key(key, address) for address in signers]
        known: set[tuple[bytes, Address]] = set()

        def merge(contacts: Sequence[Contact]) -> None:
            once = {contact.peer: contact for contact in contacts}  # as in an honest answer
            for contact in random.sample([*once.values()], len(once)):  # nobody is asked first for having come first
                fresh = tuple(place for place in contact.addresses if (contact.peer, place) not in known)
                known.update((contact.peer, place) for place in fresh)
                if fresh and contact.peer != self.peer:
                    found(Contact(contact.peer, fresh))

        def heard(answer: KademliaAnswer) -> None:
            if answer.value and answer.value.key in wanted:
                notice = decode_for(answer.value.key, answer.value.data)
                if notice and self.notices.follow(notice, self._wall()):
                    merge([Contact(notice.peer, notice.addresses)])
            merge(answer.providers)

        merge(self.records.get(key, trio.current_time()))
        merge([Contact(notice.peer, notice.addresses) for notice in self.notices.of(key, signers)])
        question = Question(Kind.GET_PROVIDERS, key, self._self, Value(random.choice(wanted)) if wanted else None)
        slots = trio.CapacityLimiter(self._node.limits.parallel)

        async def ask(contact: Contact) -> None:
            async with slots:
                with suppress(MurmurationError):
                    heard(await self._ask(contact, question))

        async def wander() -> None:
            for contact in await self.lookup(os.urandom(32)):
                nursery.start_soon(ask, contact)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: self.lookup(key, heard, question=question))
            if elsewhere:  # those we know have not helped
                nursery.start_soon(wander)
            before = elsewhere if elsewhere is not None else set()
            chosen = self._somewhere(self._node.limits.spread, without=before)
            if len(chosen) < self._node.limits.spread:
                before.clear()
            before.update(contact.peer for contact in chosen)
            for contact in chosen:
                nursery.start_soon(ask, contact)

    async def learn(self, contact: Contact, key: bytes, signer: str) -> None:
        """Follows the notice of `signer`, whom we have just found at `contact`. Raises what a question raises."""
        wanted = value_key(key, signer)
        answer = await self._ask(contact, Question(Kind.GET_VALUE, wanted, self._self))
        notice = decode_for(wanted, answer.value.data) if answer.value else None
        if notice:
            self.notices.follow(notice, self._wall())

    def _somewhere(self, count: int, without: Container[bytes] = ()) -> list[Contact]:
        """Up to `count` peers that we know, wherever they are in the key space."""
        known = [contact for contact in self.table.contacts() if contact.peer not in without]
        return random.sample(known, min(count, len(known)))

    async def lookup(
        self,
        key: bytes,
        heard: Callable[[KademliaAnswer], None] | None = None,
        watch: Callable[[LookupStep], None] = lambda step: None,
        question: Question | None = None,
    ) -> list[Contact]:
        """The peers closest to `key` that answered, closest first; `heard` sees every answer, `watch` each question as it ends.

        Without a `question` it asks for providers with `heard`, else for peers only.
        """
        question = question or Question(Kind.GET_PROVIDERS if heard else Kind.FIND_NODE, key, self._self)
        candidates = self.anchors | {contact.peer: contact for contact in self.table.nearest(key)}
        asked: set[bytes] = set()
        failed: set[bytes] = set()
        wake = trio.Event()
        limiter = trio.Semaphore(self._node.limits.parallel)

        ordered: list[Contact] | None = None

        def closest() -> list[Contact]:
            nonlocal ordered
            if ordered is None:
                ordered = diverse((each for each in candidates.values() if each.peer not in failed), key)
            return ordered

        async def ask(contact: Contact) -> None:
            nonlocal wake, ordered
            began = trio.current_time()
            try:
                answer = await self._ask(contact, question)
            except MurmurationError as error:
                log.debug("%s does not answer: %s", peer_text(contact.peer), error)
                failed.add(contact.peer)
                ordered = None
                watch(LookupStep(contact, trio.current_time() - began, error))
            else:
                watch(LookupStep(contact, trio.current_time() - began, answer))
                for closer in answer.closer:
                    if closer.peer != self.peer and closer.peer not in candidates:
                        candidates[closer.peer] = closer
                        ordered = None
                if heard:
                    heard(answer)
            finally:
                running.discard(contact.peer)
                limiter.release()
                wake.set()

        running: set[bytes] = set()
        async with trio.open_nursery() as nursery:
            while len(asked) < _QUESTIONS_PER_LOOKUP:
                line = (*self.anchors.values(), *closest())
                following = next((contact for contact in line if contact.peer not in asked), None)
                if following is None:
                    if not running:
                        break
                    await wake.wait()
                    wake = trio.Event()
                    continue
                await limiter.acquire()
                candidates.setdefault(following.peer, following)  # an anchor that was reached meanwhile
                asked.add(following.peer)
                running.add(following.peer)
                nursery.start_soon(ask, following)
        return diverse((candidates[peer] for peer in asked - failed), key)

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
        self._admission.answered(contact)
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
            self._hold(question.value, stream)
            return None
        if question.kind is Kind.PING:
            return KademliaAnswer()
        if question.kind is Kind.PUT_VALUE:
            return KademliaAnswer(value=self._hold(question.value, stream))
        self._admission.asked(stream, sender)
        closer = [contact for contact in self.table.nearest(question.key, BUCKET + 1) if contact.peer != stream.peer]
        providers = self.records.get(question.key, now) if question.kind is Kind.GET_PROVIDERS else []
        wanted = question.key if question.kind is Kind.GET_VALUE else question.value and question.value.key
        notice = self.notices.get(wanted) if wanted else None
        value = Value(notice.key, notice.encode()) if notice else None
        return KademliaAnswer(
            tuple(closer[:BUCKET]), tuple(self._as_reached(each, stream) for each in providers), value
        )

    def _as_reached(self, provider: Contact, stream: Stream) -> Contact:
        """A provider as who asks on `stream` can reach it: if it is this node, also where it has just been reached."""
        if provider.peer != self.peer or not stream.local:
            return provider
        places = (*provider.addresses, *(place.seen_from(stream.local) for place in provider.addresses))
        return Contact(provider.peer, tuple(dict.fromkeys(places)))

    def _hold(self, value: Value | None, stream: Stream) -> Value | None:
        """Keeps the notice that somebody hands us; None where the value is not taken."""
        notice = decode_for(value.key, value.data) if value else None
        if notice is None or not self.notices.put(notice, source=network_of(stream.remote), now=self._wall()):
            return None
        return value

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
        return KademliaAnswer(answer.closer, tuple(providers), answer.value)
