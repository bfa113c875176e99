"""Who of those that ask enters the routing table: whoever serves the DHT itself.

Ours say so in every question. Strangers' implementations do not: such a one is asked by identify, once for each connection,
and tells by a push when it begins or ceases to serve.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence

import trio

from protocol.errors import MurmurationError
from protocol.p2p.address import Address, peer_text
from protocol.p2p.identify import Identified, Identify, identify
from protocol.p2p.node import Node, PeerConnection
from protocol.p2p.routing import Contact, RoutingTable
from protocol.p2p.stream import Stream

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

    def asked(self, stream: Stream, sender: Contact | None) -> None:
        """Somebody has asked on `stream`, and named itself as `sender` if it is one of ours that serves."""
        if sender:
            self._claimed(sender)
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
            self._claimed(sender)

    def _claimed(self, sender: Contact) -> None:
        self._table.seen(sender, trio.current_time())

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
    inside = ipaddress.ip_address(remote.partition("%")[0]).is_loopback
    seen = (place.seen_from(remote) for place in sender.addresses)
    usable = tuple(place for place in seen if place.is_dialable and (inside or not place.is_loopback))
    return Contact(sender.peer, usable) if usable else None
