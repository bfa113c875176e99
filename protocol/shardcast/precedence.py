"""Whom an origin serves first: the relays of its run, for each of them spares it many others.

A relay is known by where it can be found: its request says at which address it serves (the field Serves), that address is
one the run's relays have announced, and the request comes from the same host. While relays fetch a version, everybody else
is told to go to them; when they have been quiet for a while, or there are none, everybody is served.

Nothing depends on this but the order: a stranger who passes for a relay is served sooner, and no more.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from protocol.errors import Malformed
from protocol.shardcast.guest import Guest
from protocol.shardcast.source import Source

_QUIET_SECONDS = 10.0  # after the last request of a relay for a version, everybody is served
_NAMED = 4  # relays that are named to those who are sent to them


@dataclass
class RelaysFirst:
    """Safe to share between threads."""

    clock: Callable[[], float] = time.monotonic
    _hosts: dict[str, frozenset[str]] = field(default_factory=dict)  # IP addresses of each relay
    _asked: dict[int, float] = field(default_factory=dict)  # when a relay last asked for a version
    _mutex: Lock = field(default_factory=Lock)

    def learn(self, announced: Sequence[str]) -> None:
        """These (http://host:port) are the run's relays from now on. Resolves their names, which may take a while."""
        hosts = {url: _addresses(url) for url in announced}
        with self._mutex:
            self._hosts = hosts

    def is_first(self, guest: Guest) -> bool:
        with self._mutex:
            return guest.serves is not None and guest.address in self._hosts.get(guest.serves, ())

    def elsewhere(self, guest: Guest, step: int) -> list[str]:
        """Addresses of relays to ask instead; none if the guest is to be served."""
        is_relay, now = self.is_first(guest), self.clock()
        with self._mutex:
            if is_relay:
                self._asked[step] = now
                self._asked = {other: when for other, when in self._asked.items() if when + _QUIET_SECONDS > now}
            if is_relay or self._asked.get(step, float("-inf")) + _QUIET_SECONDS <= now:
                return []
            return list(self._hosts)[:_NAMED]


def _addresses(url: str) -> frozenset[str]:
    try:
        host, port = Source(url, url, True).address()
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError, Malformed):
        return frozenset()
