"""The routing table of the DHT: which peers to ask about a key. Pure data; time is handed in.

Kademlia's rules: a key's place is the SHA-256 of its bytes, distance is XOR, a bucket per shared prefix length holds up to
20 peers, and whoever has been there longest stays as long as it answers. As in libp2p, at most two peers of one global
/24 (IPv6 /48) share a bucket, so that one rented block cannot surround a key.

Only a peer that has proven its PeerID to us where it says it listens enters: one that answered, or one that asked, says it
serves others, and was dialled back (admission.py). Hearsay is followed, never stored.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from protocol.p2p.address import Address, neighbourhood_of

BUCKET: Final = 20
"""Peers per bucket, peers a record is stored with, and peers in an answer: Kademlia's k. Changing it breaks: nodes with a smaller
one read no answer."""

NEIGHBOURS: Final = 2
STALE_SECONDS: Final = 900.0


@dataclass(frozen=True)
class Contact:
    """A peer and where it is said to listen."""

    peer: bytes
    addresses: tuple[Address, ...]

    @cached_property
    def neighbourhoods(self) -> frozenset[str]:
        """The global /24s and /48s of its addresses."""
        return frozenset(block for block in map(neighbourhood_of, self.addresses) if block)

    @cached_property
    def place(self) -> int:
        return place(self.peer)


@lru_cache(maxsize=16384)
def place(key: bytes) -> int:
    """Where a key or PeerID lies in the key space."""
    return int.from_bytes(hashlib.sha256(key).digest(), "big")


def nearest(contacts: Iterable[Contact], key: bytes, count: int = BUCKET) -> list[Contact]:
    """The `count` contacts closest to `key`, closest first."""
    goal = place(key)
    return sorted(contacts, key=lambda contact: contact.place ^ goal)[:count]


def diverse(contacts: Iterable[Contact], key: bytes, count: int = BUCKET) -> list[Contact]:
    """The `count` closest to `key`, at most two of one global /24 or /48: addresses are dear where PeerIDs are not."""
    chosen: list[Contact] = []
    crowd: Counter[str] = Counter()
    for contact in nearest(contacts, key, sys.maxsize):
        blocks = contact.neighbourhoods
        if not any(crowd[block] >= NEIGHBOURS for block in blocks):
            for block in blocks:
                crowd[block] += 1
            chosen.append(contact)
            if len(chosen) == count:
                break
    return chosen


@dataclass
class _Entry:
    contact: Contact
    seen: float


class RoutingTable:
    def __init__(self, own: bytes) -> None:
        self._own = own
        self._buckets: defaultdict[int, dict[bytes, _Entry]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())

    def __contains__(self, peer: bytes) -> bool:
        return peer in self._bucket(peer)

    def seen(self, contact: Contact, now: float) -> bool:
        """Notes that `contact` is alive; says whether the table holds it now."""
        if contact.peer == self._own or not contact.addresses:
            return False
        bucket = self._bucket(contact.peer)
        if contact.peer in bucket:
            bucket[contact.peer] = _Entry(contact, now)
            return True
        if self._crowded(bucket, contact):
            return False
        if len(bucket) >= BUCKET:
            oldest = min(bucket.values(), key=lambda entry: entry.seen)
            if now - oldest.seen < STALE_SECONDS:
                return False
            del bucket[oldest.contact.peer]
        bucket[contact.peer] = _Entry(contact, now)
        return True

    def renew(self, peer: bytes, now: float) -> None:
        """Notes that a peer of the table is alive, where it is known to be."""
        self._bucket(peer)[peer].seen = now

    def addresses(self, peer: bytes) -> tuple[Address, ...]:
        """Where a peer of the table is; none of another."""
        entry = self._bucket(peer).get(peer)
        return entry.contact.addresses if entry else ()

    def forget(self, peer: bytes) -> None:
        self._bucket(peer).pop(peer, None)

    def contacts(self) -> list[Contact]:
        return [contact for contact, _ in self.entries()]

    def entries(self) -> list[tuple[Contact, float]]:
        """Each contact and when it was last seen."""
        return [(entry.contact, entry.seen) for bucket in self._buckets.values() for entry in bucket.values()]

    def nearest(self, key: bytes, count: int = BUCKET) -> list[Contact]:
        return nearest(self.contacts(), key, count)

    def _bucket(self, peer: bytes) -> dict[bytes, _Entry]:
        return self._buckets[(place(peer) ^ place(self._own)).bit_length()]

    @staticmethod
    def _crowded(bucket: dict[bytes, _Entry], contact: Contact) -> bool:
        return any(
            sum(block in entry.contact.neighbourhoods for entry in bucket.values()) >= NEIGHBOURS
            for block in contact.neighbourhoods
        )
