"""Who of those that ask enters the routing table: whoever serves the DHT itself, and has been reached.

Ours say that they serve in every question. Strangers' implementations do not: such a one is asked by identify, once for each
connection, and tells by a push when it begins or ceases to serve.

What one says is a claim. It enters with an address at which it was dialled and proved its key, and with no other: after a dial
back, or because a lookup dialled it. Who is behind NAT is thus a client, whatever it believes of itself.

A dial back goes to the IP alone from which the claim came (libp2p's AutoNAT v1 has the same rule), so nobody can have a third
dialled; for each network they are as many as its own connections may cost us at most, and who was not reached waits.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence
from functools import lru_cache

import trio

from protocol.errors import MurmurationError
from protocol.p2p.address import Address, network_of, peer_text, plain_ip
from protocol.p2p.identify import Identified, Identify, identify
from protocol.p2p.node import Node, PeerConnection
from protocol.p2p.routing import Contact, RoutingTable
from protocol.p2p.stream import Stream
from protocol.p2p.transport import StreamBudget

log = logging.getLogger(__name__)

_AT_ONCE = 16  # peers that are being looked into; beyond it, one is looked into when it asks again


class Admission:
    def __init__(self, node: Node, table: RoutingTable, own: Sequence[Address], protocol: str) -> None:
        """`own` is how others reach this node; `protocol` is what one must speak to be of use in `table`."""
        self._node = node
        self._table = table
        Identify(node, own, self.told)
        self._protocol = protocol
        self._places = trio.CapacityLimiter(_AT_ONCE)
        self._budgets: dict[str, StreamBudget] = {}
        self._under_way: set[bytes] = set()
        self._failed: dict[bytes, float] = {}  # until when not to try again

    def asked(self, stream: Stream, sender: Contact | None) -> None:
        """Somebody has asked on `stream`, and named itself as `sender` if it is one of ours that serves."""
        if sender:
            self._claimed(sender, stream.remote)
            return
        connection = self._node.connection(stream.peer)
        if connection and not connection.identified and self._places.available_tokens:
            connection.identified = True
            self._node.start_soon(self._look_into, connection)

    def told(self, peer: bytes, remote: str, identified: Identified) -> None:
        """What `peer`, who comes from the IP `remote`, says of itself."""
        if self._protocol not in identified.protocols:
            self._table.forget(peer)
        elif sender := as_seen(Contact(peer, identified.addresses), remote):
            self._claimed(sender, remote)

    def answered(self, contact: Contact) -> None:
        """`contact` has answered a question as one who serves."""
        if places := self._node.reached(contact.peer):
            self._table.seen(Contact(contact.peer, places), trio.current_time())
        elif contact.peer in self._table:
            self._table.renew(contact.peer, trio.current_time())
        elif connection := self._node.connection(contact.peer):  # which it made: its addresses are hearsay
            self._claimed(contact, connection.remote)

    def _claimed(self, sender: Contact, remote: str) -> None:
        """`sender`, who comes from the IP `remote`, wants to be in the table."""
        now = trio.current_time()
        if set(self._table.addresses(sender.peer)) & set(sender.addresses):
            self._table.renew(sender.peer, now)
            return
        if len(self._failed) > self._node.limits.connections:
            self._failed = {who: until for who, until in self._failed.items() if until > now}
        if sender.peer in self._under_way:
            return
        busy = len(self._under_way) >= self._node.limits.connections
        if self._failed.get(sender.peer, 0.0) > now or busy or not self._may_cost(network_of(remote)):
            self._node.counts["dials back put off"] += 1
            return
        self._under_way.add(sender.peer)
        self._node.start_soon(self._dial_back, sender, remote)

    def _may_cost(self, network: str) -> bool:
        limits = self._node.limits
        if len(self._budgets) > limits.connections:
            self._budgets = {name: budget for name, budget in self._budgets.items() if not budget.is_full}
        if network not in self._budgets:
            self._budgets[network] = StreamBudget(limits.dial_backs, limits.dial_back_rate)
        return self._budgets[network].spend(1)

    async def _dial_back(self, sender: Contact, remote: str) -> None:
        """Puts `sender` into the table with the addresses at which it proves its key, out of those at the IP it comes from."""
        reached: list[Address] = []

        async def attempt(place: Address) -> None:
            try:
                await self._node.reach(sender.peer, place)
            except MurmurationError as error:
                log.debug("%s is not at %s: %s", peer_text(sender.peer), place, error)
            else:
                reached.append(place)

        try:
            async with self._places:
                own = await self._at(sender.addresses, remote)
                async with trio.open_nursery() as nursery:
                    for place in own:
                        nursery.start_soon(attempt, place)
        finally:
            self._under_way.discard(sender.peer)
        if reached:
            self._table.seen(Contact(sender.peer, tuple(sorted(reached))), trio.current_time())
        else:
            self._failed[sender.peer] = trio.current_time() + self._node.timing.dial_back
            self._node.counts["not reached back" if own else "claims of others' addresses"] += 1

    async def _at(self, places: Sequence[Address], remote: str) -> list[Address]:
        """Those of `places` that lie at the IP `remote`, names by what is behind them."""
        here = ipaddress.ip_address(plain_ip(remote))
        found: dict[Address, None] = {}
        for place in places:
            behind = [place]
            if place.ip is None:
                try:
                    with trio.fail_after(self._node.timing.dial):
                        behind = await self._node.resolve(place)
                except (MurmurationError, trio.TooSlowError):
                    continue
            found.update(dict.fromkeys(each for each in behind if each.ip == here))
        return list(found)

    async def _look_into(self, connection: PeerConnection) -> None:
        async with self._places:
            try:
                identified = await identify(self._node, connection)
            except MurmurationError as error:
                log.debug("%s does not say who it is: %s", peer_text(connection.peer), error)
            else:
                self.told(connection.peer, connection.remote, identified)


def as_seen(sender: Contact, remote: str) -> Contact | None:
    """`sender`, who comes from the IP `remote`, as others can reach it. Nobody may send others into their own machine."""
    inside = _is_loopback(remote)
    seen = (place.seen_from(remote) for place in sender.addresses)
    usable = tuple(place for place in seen if place.is_dialable and (inside or not place.is_loopback))
    return Contact(sender.peer, usable) if usable else None


@lru_cache(maxsize=4096)  # a peer asks many questions
def _is_loopback(remote: str) -> bool:
    return ipaddress.ip_address(remote.partition("%")[0]).is_loopback
