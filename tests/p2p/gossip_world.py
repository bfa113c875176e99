"""Hundreds of gossiping peers in virtual time: the real `Mesh` of each, and in place of connections a queue of what arrives when.

Simpler than tests/p2p/simulation.py, which has the DHT: here a peer that has too few neighbours is given some by chance, as a search in the
DHT would, and only those that can be reached.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from itertools import count

from protocol.p2p import Fate, GossipLimits, Ruling
from protocol.p2p.mesh import Mesh

DELAY = 0.05
LIMITS = GossipLimits()


class PlainRules:
    """A message is "signer:number". Who signs as "forger" is found out at once, a "stranger" by the chain; "old" is too old."""

    def __init__(self, stakes: dict[bytes, float] | None = None) -> None:
        self.taken: list[bytes] = []
        self.asked: set[str] = set()
        self.chain_is_down = False
        self.unseated: set[str] = set()  # validators that had no seat when the chain was asked; they have one now
        self.stakes = {} if stakes is None else stakes

    def rule(self, data: bytes) -> Ruling:
        signer = data.partition(b":")[0].decode(errors="replace")
        if signer in ("trainer", "old"):
            return Ruling(Fate.ACCEPT, slot=signer, most=64) if signer == "trainer" else Ruling(Fate.IGNORE, "old")
        if signer == "forger" or b":" not in data:
            return Ruling(Fate.REJECT, "forged")
        if signer not in self.asked:
            return Ruling(Fate.ASK, about=signer)
        if signer.startswith("validator") and signer not in self.unseated:
            return Ruling(Fate.ACCEPT, slot=signer, most=64)
        return Ruling(Fate.DISOWN, "of somebody without a stake", about=signer)

    def heard(self, data: bytes) -> None:
        self.taken.append(data)

    def weight(self, peer: bytes) -> float:
        return self.stakes.get(peer, 0.0)

    def unknown(self, peer: bytes) -> str:
        return ""

    def look_up(self, about: str) -> bool:
        if self.chain_is_down:
            return False
        self.asked.add(about)
        self.unseated.discard(about)
        return True

    def refresh(self) -> None:
        pass


class GossipPeer:
    def __init__(self, world: GossipWorld, name: bytes, network: str, *, reachable: bool) -> None:
        self.name, self.network, self.reachable = name, network, reachable
        self.rules = PlainRules(world.stakes)
        self.is_up = True
        self.sent = 0
        self.questions = 0
        self._world = world
        self.mesh = Mesh(
            "t", self.rules, LIMITS, now=lambda: world.now, send=self._send, cut=self._cut, ask=self._ask, chance=world.chance
        )  # fmt: skip

    def _send(self, peer: bytes, frame: bytes) -> None:
        self.sent += 1
        self._world.deliver(self, peer, frame)

    def _cut(self, peer: bytes) -> None:
        self._world.unlink(self, self._world.peers[peer])

    def _ask(self, about: str) -> None:
        self.questions += 1

        def answered() -> None:
            self.mesh.settled(about, answered=self.rules.look_up(about))

        self._world.later(1.0, answered)


class GossipWorld:
    def __init__(self, seed: int = 14) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.peers: dict[bytes, GossipPeer] = {}
        self.stakes: dict[bytes, float] = {}
        self.frames = 0
        self.parted: Callable[[GossipPeer, GossipPeer], bool] = lambda one, other: False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def peer(self, *, network: str = "", reachable: bool = True) -> GossipPeer:
        number = len(self.peers)
        name = b"peer %d" % number
        made = self.peers[name] = GossipPeer(
            self, name, network or f"10.{number >> 8}.{number & 255}.0/24", reachable=reachable
        )
        self.later(self.chance.random(), lambda: self._live(made))
        return made

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    def up(self) -> list[GossipPeer]:
        return [each for each in self.peers.values() if each.is_up]

    def link(self, one: GossipPeer, other: GossipPeer) -> None:
        """`one` dials; both must be willing."""
        if one is other or other.name in one.mesh.neighbours or self.parted(one, other):
            return
        if one.mesh.admits(other.name, other.network) and other.mesh.admits(one.name, one.network):
            one.mesh.opened(other.name, other.network, outbound=True)
            other.mesh.opened(one.name, one.network, outbound=False)

    def unlink(self, one: GossipPeer, other: GossipPeer) -> None:
        one.mesh.closed(other.name)
        other.mesh.closed(one.name)

    def leave(self, peer: GossipPeer) -> None:
        """Without a word; who has a connection to it notices at once."""
        peer.is_up = False
        for other in self.peers.values():
            self.unlink(peer, other)

    def part(self, parted: Callable[[GossipPeer, GossipPeer], bool]) -> None:
        """No frame goes between two for whom it is true, and their connections break."""
        self.parted = parted
        for one in self.up():
            for name in [*one.mesh.neighbours]:
                if parted(one, self.peers[name]):
                    self.unlink(one, self.peers[name])

    def deliver(self, sender: GossipPeer, to: bytes, frame: bytes) -> None:
        self.frames += 1
        there = self.peers[to]

        def arrive() -> None:
            if there.is_up and sender.is_up and to in sender.mesh.neighbours:
                there.mesh.received(sender.name, frame)

        self.later(DELAY * self.chance.uniform(0.5, 1.5), arrive)

    def _live(self, peer: GossipPeer) -> None:
        if not peer.is_up:
            return
        dialled = sum(each.outbound for each in peer.mesh.neighbours.values())
        if dialled < LIMITS.dialled and (not peer.mesh.neighbours or self.chance.random() < 1 / LIMITS.look):
            others = [each for each in self.up() if each.reachable and each is not peer]
            for other in self.chance.sample(others, min(len(others), LIMITS.dialled - dialled)):
                self.link(peer, other)
        peer.mesh.heartbeat()
        self.later(LIMITS.heartbeat, lambda: self._live(peer))

    def reached(self, message: bytes, among: list[GossipPeer] | None = None) -> int:
        return sum(message in each.rules.taken for each in (self.up() if among is None else among))

    def counts(self) -> Counter[str]:
        return sum((each.mesh.counts for each in self.peers.values()), Counter[str]())
