"""The beacon of a version, from which all work on it is derived: drawn, or as the first submission draws it.

It is made of the hash of the block after the publication, so that nobody who publishes knows it. The trainer draws it as soon as it can, and so
does the first submission. Where neither has for a while this node does it before it begins: after 256 blocks the hash is out of reach, and what was
made by then would be made in vain.
"""

from __future__ import annotations

import logging

from protocol.chain import Sender
from protocol.chain.types import Publication
from protocol.errors import InsufficientFunds, TransactionReverted
from protocol.shell.connection import Connection

log = logging.getLogger("node")

_LATE_BLOCKS = 64
"""After which a node draws a beacon itself: a quarter of those for which the hash can be had (EVM, BLOCKHASH)."""


class Beacons:
    def __init__(self, connection: Connection, sender: Sender) -> None:
        self._c = connection
        self._sender = sender

    def of(self, head: Publication) -> bytes | None:
        """None while it cannot be known yet."""
        if head.is_drawn:
            return head.beacon
        chain, run = self._c.chain, self._c.run
        source = chain.beacon_source(run, head.step)
        if chain.block_number() > source + _LATE_BLOCKS:
            try:
                self._sender.send(chain.draw(run, head.step), name=f"draw/{run}/{head.step}/{source}")
            except (TransactionReverted, InsufficientFunds) as error:
                log.info("the beacon of version %d is not drawn: %s", head.step, error)
        return chain.beacon(run, head.step)
