"""Gossip about one subject, over the node's connections: finds peers for it, keeps a stream to each, and ties them to a `Mesh`.

    /meshsub/1.1.0    frames (gossip_frames.py), one after the other, for as long as the connection stands; each side opens a stream of its own

Streams go both ways over one connection, so who can only dial out takes part over the connections that it has opened. Peers are found
through the DHT, under the keys that a subject names; who can be reached provides the first of them itself.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import trio

from protocol.errors import MurmurationError, ProtocolViolation, Unavailable
from protocol.p2p.address import Address, peer_text
from protocol.p2p.gossip_frames import FRAME_BYTES_MAX, PROTOCOL
from protocol.p2p.kademlia import Kademlia
from protocol.p2p.mesh import Mesh
from protocol.p2p.node import Node, PeerConnection
from protocol.p2p.reputation import gossip_network
from protocol.p2p.routing import Contact
from protocol.p2p.stream import Stream
from protocol.p2p.subject import GossipSubject
from protocol.retry import Backoff, jittered

log = logging.getLogger(__name__)

T = TypeVar("T")

_QUESTIONS = 4  # to the chain at the same time
_QUESTION_SECONDS = 30.0
_AT_ONCE = 4  # peers that are dialled at the same time
_FULL_FACTOR = 4.0  # by which the pauses before a full host is dialled again grow
_FULL_MOST = 10  # looks that such a pause takes at most
_LEARNT_AT_ONCE = 4  # neighbours whose stake is looked up anew at each refresh


@dataclass
class _Talk:
    """What is said to one peer: what is put into `queue` comes out of `frames`, and goes over `connection` until `scope` is cancelled.
    What the peer says is read until `hearing` is cancelled; None while it has said nothing."""

    connection: PeerConnection
    queue: trio.MemorySendChannel[bytes]
    frames: trio.MemoryReceiveChannel[bytes]
    scope: trio.CancelScope
    hearing: trio.CancelScope | None = None


class Gossip:
    def __init__(self, node: Node, dht: Kademlia, own: tuple[Address, ...], subject: GossipSubject) -> None:
        """`own`: where this node can be reached, as far as it knows; empty where it does not listen."""
        self.subject = subject
        self._node, self._dht, self._own = node, dht, own
        self._limits = subject.limits
        self._talks: dict[bytes, _Talk] = {}
        self._full: dict[bytes, tuple[float, float]] = {}  # by peer: the last pause, and until when to leave it alone
        self._asking = trio.CapacityLimiter(_QUESTIONS)
        self._provide_again = trio.Event()
        self._nursery: trio.Nursery
        self._is_over = False
        self.mesh = Mesh(
            subject.topic, subject.rules, subject.limits, now=trio.current_time, send=self._send, cut=self._cut, ask=self._look_up
        )  # fmt: skip

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                await self._refresh()  # what came before could not be judged
                self._nursery.start_soon(self._keep_fresh)
                self._node.handle(PROTOCOL, self._listen, lasting=True)
                self._nursery.start_soon(self._beat)
                self._nursery.start_soon(self._find)
                if self._own:
                    self._nursery.start_soon(self._provide)
        finally:
            self._is_over = True

    def announce_again(self) -> None:
        """Place the provider record now: the network may have lost it."""
        self._provide_again.set()

    # ---- from time to time ---------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await trio.sleep(self._limits.heartbeat)
            self.mesh.heartbeat()
            for each in self.mesh.neighbours.values():
                # What we have dialled is not closed for being idle. Who came to us keeps its place in a full house no longer than
                # others that are silent, unless it has something at stake.
                if each.outbound or (each.meshed and self.subject.rules.weight(each.peer)):
                    self._talks[each.peer].connection.used = trio.current_time()

    async def _find(self) -> None:
        """Dials peers of the subject while too few are known that way; soon again while there are none."""
        backoff = Backoff(self._node.timing.retry, self._limits.look, jitter=True)
        while True:
            lacking = self._limits.dialled - sum(each.outbound for each in self.mesh.neighbours.values())
            if lacking > 0:
                await self._dial(await self._others(), lacking)
            if not self.mesh.neighbours:
                await trio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            few = len(self.mesh.neighbours) < self._limits.degree
            await trio.sleep(jittered(self._limits.look if few else 10 * self._limits.look))

    async def _others(self) -> list[Contact]:
        """Who the DHT says gossips about this, or serves what it is about."""
        found: dict[bytes, Contact] = {}

        def named(contact: Contact) -> None:
            found[contact.peer] = contact

        for key in self.subject.keys:
            await self._dht.providers(key, named)
        return list(found.values())

    async def _dial(self, contacts: list[Contact], most: int) -> None:
        """Some of them, no two of one network before all networks had their turn."""
        random.shuffle(contacts)
        turns: dict[str, int] = {}
        ranked = []
        for contact in contacts:
            host = contact.addresses[0].host
            network = gossip_network(host) if contact.addresses[0].ip else host
            turns[network] = turns.get(network, 0) + 1
            ranked.append((turns[network], contact))
        ranked.sort(key=lambda each: each[0])
        now, own = trio.current_time(), self._dht.peer
        full = {peer for peer, (_, until) in self._full.items() if until > now}
        wanted = [each for _, each in ranked if each.peer not in self._talks and each.peer not in full | {own}]
        slots = trio.CapacityLimiter(_AT_ONCE)
        made = 0

        async def attempt(contact: Contact) -> None:
            nonlocal made
            async with slots:
                if made >= most:
                    return
                try:
                    connection = await self._node.connect(contact.peer, contact.addresses)
                except MurmurationError as error:
                    log.debug("%s cannot be asked to gossip: %s", peer_text(contact.peer), error)
                    return
                made += self._speak(connection)

        async with trio.open_nursery() as nursery:
            for contact in wanted:
                nursery.start_soon(attempt, contact)

    async def _provide(self) -> None:
        """Lets others find this node for gossip, once it has been reached from outside or is on the same machine as they are."""
        timing = self._node.timing
        backoff = Backoff(timing.retry, timing.retry_most, jitter=True)
        while True:
            self._provide_again = trio.Event()
            near = all(place.is_loopback for place in self._own)
            holders = 0
            if near or self._node.welcomed:
                holders = await self._dht.provide(self.subject.keys[0])
            if holders:
                backoff.succeeded()
            with trio.move_on_after(jittered(timing.provide) if holders else backoff.failed()):
                await self._provide_again.wait()

    # ---- streams ---------------------------------------------------------------------------------------------------------

    async def _listen(self, stream: Stream) -> None:
        """Reads what a peer says for as long as it does; who is spoken to speaks back over the same connection."""
        peer = stream.peer
        if peer not in self._talks:
            connection = self._node.connection(peer)
            if connection is None or not self._speak(connection):
                raise Unavailable("a peer that we do not gossip with")
        talk, hearing = self._talks[peer], trio.CancelScope()
        if talk.hearing:  # its stream before has ended, for whatever reason
            talk.hearing.cancel()
            self.mesh.began_anew(peer)
        talk.hearing = hearing
        try:
            with hearing:
                while not await stream.ended():
                    self.mesh.received(peer, await stream.read_message(FRAME_BYTES_MAX, "gossip frame"))
        except ProtocolViolation:
            self.mesh.received(peer, b"\xff")  # as good as any frame that is none
            raise

    def _speak(self, connection: PeerConnection) -> bool:
        """Opens a stream to a peer; whether there will be one."""
        peer = connection.peer
        if peer in self._talks:
            return False
        network = gossip_network(connection.remote)
        about = self.subject.rules.unknown(peer)
        if about and self.mesh.may_ask(network):
            self._look_up(about)  # also about who is not admitted: with a stake it is, when it comes again
        if not self.mesh.admits(peer, network):
            self.mesh.counts["not admitted"] += 1
            return False
        send, receive = trio.open_memory_channel[bytes](self._limits.queue)
        talk = self._talks[peer] = _Talk(connection, send, receive, trio.CancelScope())
        self.mesh.opened(peer, network, outbound=connection.outbound)
        self._nursery.start_soon(self._keep_speaking, talk)
        return True

    async def _keep_speaking(self, talk: _Talk) -> None:
        timing, connection, watching = self._node.timing, talk.connection, trio.CancelScope()
        try:
            with talk.scope, trio.fail_after(timing.request) as opening:
                async with self._node.stream(connection, PROTOCOL, lasting=True) as stream:
                    opening.deadline = float("inf")
                    self._nursery.start_soon(self._watch, stream, talk, watching)
                    async for frame in talk.frames:
                        opening.deadline = trio.current_time() + timing.write
                        await stream.write_message(frame)
                        await stream.flush()
                        opening.deadline = float("inf")
        except (MurmurationError, trio.TooSlowError) as error:
            log.debug("no more gossip with %s: %s", peer_text(connection.peer), error)
        finally:
            watching.cancel()
            if self._talks.get(connection.peer) is talk:
                self._forget(connection.peer)

    async def _watch(self, stream: Stream, talk: _Talk, scope: trio.CancelScope) -> None:
        """Nothing is ever said back on our stream: when it ends the peer does not listen any more, and there is nobody to write to."""
        with scope, suppress(MurmurationError):
            await stream.ended()
        if not scope.cancel_called:
            talk.scope.cancel()

    def _send(self, peer: bytes, frame: bytes) -> None:
        talk = self._talks.get(peer)
        if talk is None:
            return
        try:
            talk.queue.send_nowait(frame)
        except trio.WouldBlock:
            self.mesh.counts["frames for slow peers"] += 1

    def lost(self, connection: PeerConnection) -> None:
        """A connection has ended: a stream over it notices only when something is to be written."""
        talk = self._talks.get(connection.peer)
        if talk is None or talk.connection is not connection:
            return
        talk.scope.cancel()
        standing = self._node.connection(connection.peer)
        if standing is not None and not self._is_over:  # both had dialled: the peer has not noticed anything
            anew = self._talks[connection.peer] = replace(talk, connection=standing, scope=trio.CancelScope())
            self.mesh.neighbours[connection.peer].outbound = standing.outbound
            self.mesh.repeat(connection.peer)
            self._nursery.start_soon(self._keep_speaking, anew)
            return
        self._forget(connection.peer)
        if connection.outbound:
            self._note_loss(connection)

    def _note_loss(self, connection: PeerConnection) -> None:
        """A host that cuts us soon after we came has no room, as a bootnode (membership.py): it is left alone for pauses that grow. The
        first time it may have restarted."""
        now, look = trio.current_time(), self._limits.look
        last = self._full.pop(connection.peer, None)
        if now - connection.since < self._node.timing.stay:
            pause = min(_FULL_FACTOR * last[0], _FULL_MOST * look) if last else 0.0
            self._full[connection.peer] = max(pause, look), now + jittered(pause)
        while len(self._full) > self._limits.neighbours:
            del self._full[next(iter(self._full))]

    def _cut(self, peer: bytes) -> None:
        """Ends what there is with a peer that has misbehaved, or that makes room for another."""
        if peer in self._talks:
            self._talks[peer].scope.cancel()
            self._forget(peer)
        connection = self._node.connection(peer)
        if connection and not connection.busy and not connection.kept:
            connection.muxer.cut()

    def _forget(self, peer: bytes) -> None:
        talk = self._talks.pop(peer)
        talk.queue.close()
        if talk.hearing:
            talk.hearing.cancel()  # so the peer notices
        self.mesh.closed(peer)

    # ---- the chain -------------------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        await self._in_thread(self.subject.rules.refresh)

    async def _keep_fresh(self) -> None:
        while True:
            await trio.sleep(self._limits.refresh)
            await self._refresh()
            names = {about for peer in self.mesh.neighbours if (about := self.subject.rules.unknown(peer))}
            for about in random.sample(sorted(names), min(len(names), _LEARNT_AT_ONCE)):
                self._look_up(about)

    def _look_up(self, about: str) -> None:
        async def ask() -> None:
            answered = await self._in_thread(lambda: self.subject.rules.look_up(about))
            self.mesh.settled(about, answered=answered is True)

        self._nursery.start_soon(ask)

    async def _in_thread(self, question: Callable[[], T]) -> T | None:
        """None where it failed, or took too long."""
        with trio.move_on_after(_QUESTION_SECONDS):
            try:
                return await trio.to_thread.run_sync(  # type: ignore[call-arg, unused-ignore]
                    question, abandon_on_cancel=True, limiter=self._asking
                )
            except Exception as error:  # noqa: BLE001  an endpoint of the chain ends no host
                log.error("a question to the chain failed: %s: %s", type(error).__name__, error)
        return None
