"""Joining the network and staying in it.

A node is in while its routing table holds somebody. It keeps a connection to every bootnode it reached; losing one (a
bootnode that restarts, and with it every record it held) makes it join again at once and announce itself anew. Bootnodes
that do not answer are tried again for ever, with growing pauses and jitter. A node without bootnodes waits to be found.

Who returns asks a few of the peers it remembers, and once one of them has let it in, all the others: the first to answer may be an
attacker who names only attackers.

A bootnode that cuts a connection soon after it answered has no room: it told whom it knows, and a node that is in leaves it alone for
pauses that grow, and keeps to the peers it got.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from pathlib import Path

import trio

from protocol.errors import MurmurationError, Unavailable
from protocol.p2p import peers
from protocol.p2p.address import PeerAddress
from protocol.p2p.kademlia import Kademlia
from protocol.p2p.node import Node, PeerConnection
from protocol.retry import Backoff, jittered

log = logging.getLogger(__name__)

_NOT_TRIED = "not tried yet"
_LOOK_SECONDS = 0.05
_SETTLE_FACTOR = 6.0
_FULL_FACTOR = 4.0  # by which the pauses before a full bootnode is visited again grow


class Membership:
    def __init__(
        self,
        node: Node,
        dht: Kademlia,
        bootnodes: Sequence[PeerAddress],
        file: Path | None,
        saved: Sequence[PeerAddress],
        joined: Callable[[], None],
    ) -> None:
        """`joined` is called each time the node has (re)joined: provider records must then be placed anew."""
        self._node = node
        self._dht = dht
        self._bootnodes = [bootnode for bootnode in bootnodes if bootnode.peer != dht.peer]
        self.problems: dict[PeerAddress, str] = dict.fromkeys(self._bootnodes, _NOT_TRIED)
        self._file = file
        self._saved = list(saved)
        self._joined = joined
        self._visited: dict[bytes, float] = {}  # when each bootnode answered last
        self._full: dict[bytes, tuple[float, float]] = {}  # the last pause, and until when to leave it alone
        self._lost = trio.Event()
        node.on_lost = self._note_loss

    def add(self, bootnodes: Sequence[PeerAddress]) -> None:
        """Goes to these as well, from now on."""
        fresh = [known for known in bootnodes if known.peer != self._dht.peer and known not in self.problems]
        if fresh:
            self._bootnodes += fresh
            self.problems |= dict.fromkeys(fresh, _NOT_TRIED)
            self._lost.set()  # wakes

    @property
    def is_joined(self) -> bool:
        return len(self._dht.table) > 0

    @property
    def is_joining(self) -> bool:
        """Whether nobody is known yet, and a bootnode has still to answer or fail for the first time."""
        return not self.is_joined and _NOT_TRIED in self.problems.values()

    async def wait_joined(self, seconds: float) -> None:
        """Raises Unavailable with the reason when nobody is known after `seconds`."""
        with trio.move_on_after(seconds):
            while not self.is_joined:
                await trio.sleep(_LOOK_SECONDS)
            return
        raise Unavailable(self.reason())

    def reason(self) -> str:
        """Why nobody is found, for people: the bootnodes and what is wrong with each."""
        if not self._bootnodes:
            return "no bootnode was given and nobody has come here"
        problems = (f"{known.address.host}:{known.address.port}: {why}" for known, why in self.problems.items())
        return "no bootnode is reachable (" + "; ".join(problems) + ")"

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await self._stay_in(nursery)

    async def _stay_in(self, nursery: trio.Nursery) -> None:
        timing = self._node.timing
        backoff = Backoff(timing.retry, timing.retry_most, jitter=True)
        calm_since = trio.current_time()
        settle, due, was_joined = timing.settle, -inf, False
        for turn in count():
            self._lost = trio.Event()
            if not self.is_joined:  # at once: bootnodes that are down take their time to say nothing
                async with trio.open_nursery() as first:
                    first.start_soon(self._introduce_saved, self._node.limits.parallel)
                    new = await self._introduce_bootnodes()
            else:
                new = await self._introduce_bootnodes()
            if self.is_joined and not was_joined:
                nursery.start_soon(self._introduce_saved, len(self._saved))
            if self.is_joined and (new or not was_joined):
                settle, due = timing.settle, -inf
                self._joined()
            if self.is_joined and trio.current_time() >= due:
                await self._dht.refresh()
                self.save()
                if settle == timing.settle:  # the first since joining: now there are more to tell than who let us in
                    self._joined()
                due, settle = trio.current_time() + jittered(settle), min(settle * _SETTLE_FACTOR, timing.refresh)
            if self.is_joined != was_joined or (turn == 0 and self._bootnodes):
                self._tell()
            was_joined = self.is_joined

            pause = max(0.0, due - trio.current_time()) if self.is_joined else timing.refresh
            if self._full and not self.is_joined:  # nobody else is left
                self._full.clear()
                pause = backoff.failed()
            pause = min([pause, *(left for left in map(self._left_alone, self._bootnodes) if left)])
            if any(self.problems.values()):
                pause, calm_since = min(pause, backoff.failed()), trio.current_time()
            with trio.move_on_after(pause):
                await self._lost.wait()
                if trio.current_time() - calm_since > timing.retry_most:
                    backoff.succeeded()
                calm_since = trio.current_time()
                await trio.sleep(backoff.failed())  # many lose a bootnode at the same moment
                due = -inf

    def _tell(self) -> None:
        if self.is_joined:
            log.info("joined; peers known: %d", len(self._dht.table))
        else:
            log.warning("%s; trying again in the background", self.reason())

    def save(self) -> None:
        """Writes the peers that answer to the saved peer list, in random order so that nobody is everybody's first.

        Half of the places are for those of the list that still answer, and a quarter for those that do not just now: a crowd that
        appears overnight does not displace all who were there before.
        """
        if self._file is None or not self.is_joined:
            return
        most = self._node.limits.saved_peers
        known = dict.fromkeys(  # not a set, whose order differs from run to run
            PeerAddress(place, contact.peer) for contact in self._dht.table.contacts() for place in contact.addresses
        )
        proven = [each for each in self._saved if each in known][: most // 2]
        missing = [each for each in self._saved if each not in known]
        kept = set(proven)
        others = [each for each in known if each not in kept]
        saved = [*proven, *random.sample(others, min(len(others), most - most // 4 - len(proven)))]
        saved += missing[: most - len(saved)]
        self._saved = random.sample(saved, len(saved))
        peers.save(self._file, peers.Memory(tuple(self._saved), tuple(self._dht.notices.followed)))

    async def _introduce_bootnodes(self) -> bool:
        """Calls on every bootnode there is no connection to. True when one answered."""
        answered = False

        async def call_on(known: PeerAddress) -> None:
            nonlocal answered
            try:
                await self._dht.introduce(known, anchor=True)
            except MurmurationError as error:
                if not self.problems[known]:
                    log.warning("the bootnode %s went away (%s); trying again", known.address, error)
                self.problems[known] = str(error) or type(error).__name__
                return
            answered = True
            self.problems[known] = ""
            self._visited[known.peer] = trio.current_time()
            connection = self._node.connection(known.peer)
            if connection:
                connection.kept = True

        async with trio.open_nursery() as nursery:
            for known in self._bootnodes:
                connection = self._node.connection(known.peer)
                if (connection is None or not connection.kept) and not self._left_alone(known):
                    nursery.start_soon(call_on, known)
        return answered

    async def _introduce_saved(self, most: int) -> None:
        """Calls on up to `most` of the saved peers that are not known yet, `parallel` at a time."""
        slots = trio.CapacityLimiter(self._node.limits.parallel)

        async def call_on(known: PeerAddress) -> None:
            async with slots:
                if known.peer in self._dht.table:
                    return
                try:
                    await self._dht.introduce(known)
                except MurmurationError as error:
                    log.debug("the saved peer %s does not answer: %s", known, error)

        async with trio.open_nursery() as nursery:
            for known in random.sample(self._saved, min(len(self._saved), most)):
                nursery.start_soon(call_on, known)

    def _note_loss(self, connection: PeerConnection) -> None:
        if not connection.kept:
            return
        now, timing = trio.current_time(), self._node.timing
        if now - self._visited.get(connection.peer, now) < timing.stay:
            last, _ = self._full.get(connection.peer, (0.0, 0.0))  # the first time it may have restarted
            pause = min(_FULL_FACTOR * last, timing.refresh)
            self._full[connection.peer] = max(pause, timing.retry), now + jittered(pause)
        else:
            self._full.pop(connection.peer, None)
        self._lost.set()

    def _left_alone(self, known: PeerAddress) -> float:
        """For how many seconds a full bootnode is still left alone; 0 while nobody else is known."""
        _, until = self._full.get(known.peer, (0.0, 0.0))
        return max(0.0, until - trio.current_time()) if self.is_joined else 0.0
