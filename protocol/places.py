"""Who may be connected to a server: so many in all, so many of one address, and the cheapest to lose gives way to who comes.

A newcomer at the cap sends away a connection between two requests or behind its last, else a follower that waits for news, never one that
is being answered: of its own address where that is at its cap, else of the address that has most. So whoever opens connections
from many addresses takes them from itself, and an address with one or two is the last to lose any.

An IPv6 /64 counts as one address: that is what one machine is given.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

PER_ADDRESS_MAX = 256
"""Connections from one address; many nodes may share one."""
EVICTION_SECONDS = 1.0
"""A connection of an address that has no more than the newcomer's is not sent away sooner."""


class Occupant(Protocol):
    """One connection; told apart by identity."""

    address: str

    def give_way(self) -> None:
        """Ends soon, without asking `Places` anything any more."""
        ...


class Crowd:
    """Guests that do the same, by address, in the order in which they began to. A method takes about as long however many there are."""

    def __init__(self, size: Mapping[str, int]) -> None:
        """`size`: how many an address has in all, whatever they do; `resized` must follow where it changes."""
        self._size = size
        self._of: dict[str, dict[Occupant, float]] = {}
        self._filed: dict[str, int] = {}  # under which size an address stands in the next
        self._addresses: dict[int, dict[str, None]] = {}  # by size; few sizes differ
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, guest: Occupant, now: float) -> None:
        self._of.setdefault(guest.address, {})[guest] = now
        self._count += 1
        self.resized(guest.address)

    def discard(self, guest: Occupant) -> None:
        of = self._of.get(guest.address, {})
        if guest in of:
            del of[guest]
            self._count -= 1
            if not of:
                del self._of[guest.address]
                self.resized(guest.address)

    def longest(self, address: str | None = None) -> tuple[Occupant, float] | None:
        """Who has done it for longest, and since when: of an address, or of the largest one."""
        if address is None and self._addresses:
            address = next(iter(self._addresses[max(self._addresses)]))
        return next(iter(self._of.get(address or "", {}).items()), None)

    def resized(self, address: str) -> None:
        before, after = self._filed.pop(address, 0), self._size[address] if address in self._of else 0
        if before != after and before:
            del self._addresses[before][address]
            if not self._addresses[before]:
                del self._addresses[before]
        if after:
            self._filed[address] = after
            self._addresses.setdefault(after, {})[address] = None


class Places:
    """For one thread. Each guest idles, waits for news, or is being answered."""

    def __init__(self, most: int, per_address: int, eviction_seconds: float, now: Callable[[], float]) -> None:
        self._by_address: Counter[str] = Counter()
        self.idle, self.waiting = Crowd(self._by_address), Crowd(self._by_address)
        self._most, self._per_address, self._youngest, self._now = most, per_address, eviction_seconds, now
        self._guests: set[Occupant] = set()

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self, guest: Occupant) -> bool:
        """Whether there is a place, perhaps after sending somebody away; then the guest idles there."""
        if self._by_address[guest.address] >= self._per_address:
            has_room = self._send_away(guest, guest.address)
        else:
            has_room = len(self._guests) < self._most or self._send_away(guest)
        if has_room:
            self._guests.add(guest)
            self._count(guest.address, 1)
            self.idle.add(guest, self._now())
        return has_room

    def leave(self, guest: Occupant) -> None:
        if guest in self._guests:
            self.works(guest)
            self._guests.discard(guest)
            self._count(guest.address, -1)

    def rests(self, guest: Occupant) -> None:
        self._move(guest, self.idle)

    def waits(self, guest: Occupant) -> None:
        self._move(guest, self.waiting)

    def works(self, guest: Occupant) -> None:
        self._move(guest, None)

    def _count(self, address: str, more: int) -> None:
        self._by_address[address] += more
        for crowd in (self.idle, self.waiting):
            crowd.resized(address)
        if not self._by_address[address]:
            del self._by_address[address]

    def _move(self, guest: Occupant, to: Crowd | None) -> None:
        if guest in self._guests:
            self.idle.discard(guest)
            self.waiting.discard(guest)
            if to is not None:
                to.add(guest, self._now())

    def _send_away(self, newcomer: Occupant, address: str | None = None) -> bool:
        for crowd in (self.idle, self.waiting):
            found = crowd.longest(address)
            if found is None:
                continue
            guest, since = found
            has_more = self._by_address[guest.address] > self._by_address[newcomer.address] + 1
            if has_more or self._now() - since >= self._youngest:
                self.leave(guest)
                guest.give_way()
                return True
        return False


def household(host: str) -> str:
    """What counts as one address."""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:  # of a listener for both
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))
