"""Whom an origin serves first: the relays of its run, for each of them spares it many others.

A relay is known by where it can be found: its request says at which address it serves (the field Serves), that address is
one the run's relays have announced, and the request comes from the same host. While relays fetch a version, everybody else
is told to go to them; when they have been quiet for a while, or there are none, everybody is served. So is a guest that has been
sent away for long enough: where relays do serve, it has found one by then.

Nothing depends on this but the order. Anybody can announce an address and pass for a relay: that one is served sooner, and can keep
each other guest from a version for `_AWAY_SECONDS` in all.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from protocol.errors import Malformed
from protocol.shardcast.guest import Guest, neighbourhood, plain_address
from protocol.shardcast.source import Source

_QUIET_SECONDS = 10.0  # after the last request of a relay for a version, everybody is served
_AWAY_SECONDS = 20.0  # after it was first sent away for a version, a guest is served
_NAMED = 4  # relays that are named to those who are sent to them
_AWAY_MAX = 4096  # guests of one version of whom it is known when they were sent away; any more are served
_VERSIONS = 64  # of which that is known; more than a store holds


@dataclass
class RelaysFirst:
    """Safe to share between threads."""

    clock: Callable[[], float] = time.monotonic
    rng: random.Random = field(default_factory=random.Random)
    _hosts: dict[str, frozenset[str]] = field(default_factory=dict)  # IP addresses of each relay
    _asked: dict[int, float] = field(default_factory=dict)  # when a relay last asked for a version
    _away: dict[int, dict[str, float]] = field(default_factory=dict)  # since when each guest
    _mutex: Lock = field(default_factory=Lock)

    def learn(self, announced: Sequence[str]) -> None:
        """These (http://host:port) are the run's relays from now on. Resolves their names, which may take a while."""
        hosts = {url: _addresses(url) for url in announced}
        with self._mutex:
            self._hosts = hosts

    @property
    def announced(self) -> list[str]:
        """Where the run's relays say that they serve, as far as was learnt."""
        with self._mutex:
            return list(self._hosts)

    def is_first(self, guest: Guest) -> bool:
        with self._mutex:
            return guest.serves is not None and str(plain_address(guest.address)) in self._hosts.get(guest.serves, ())

    def elsewhere(self, guest: Guest, step: int) -> list[str]:
        """Addresses of some relays to ask instead, others every time; none if the guest is to be served."""
        is_relay, now = self.is_first(guest), self.clock()
        with self._mutex:
            if is_relay:
                self._asked[step] = now
                self._asked = {other: when for other, when in self._asked.items() if when + _QUIET_SECONDS > now}
            if is_relay or self._asked.get(step, float("-inf")) + _QUIET_SECONDS <= now:
                return []
            if not self._hosts or not self._may_send_away(neighbourhood(guest.address), step, now):
                return []
            return self.rng.sample(list(self._hosts), min(_NAMED, len(self._hosts)))

    def _may_send_away(self, guest: str, step: int, now: float) -> bool:
        """Whether it has not been away for long enough. The first time counts even where relays were quiet in between."""
        away = self._away.setdefault(step, {})
        if len(self._away) > _VERSIONS:
            del self._away[next(iter(self._away))]
        if guest not in away and len(away) >= _AWAY_MAX:
            return False
        return now < away.setdefault(guest, now) + _AWAY_SECONDS


def _addresses(url: str) -> frozenset[str]:
    try:
        host, port = Source(url, url, True).address()
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError, Malformed):
        return frozenset()
