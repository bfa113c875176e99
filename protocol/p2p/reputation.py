"""What gossiping peers did wrong, by peer and by network: points that fade, and who has too many is cut off for a while.

Points are given for what no honest peer does, since it checks what it hands on: never for a message that was valid when it was sent. A
network is a global IPv4 /24 or an IPv6 /64; elsewhere, as in a home or on one machine, it is the address alone. One peer cannot make its network
guilty, and whoever holds a stake in the run answers for itself only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from protocol.p2p.address import plain_ip

FORGED: Final = 30.0
"""A signature that is not of who it says it is; a frame or a message that is none."""
STAKELESS: Final = 15.0
"""A message of somebody without a part in the run. Endpoints of the chain may differ for some blocks: one alone cuts nobody off."""
FLOOD: Final = 20.0
RUDE: Final = 5.0
"""Asks to be in the mesh though it was told not to."""
BROKEN_PROMISE: Final = 1.0
"""A message that was offered and not sent."""

PEER_MOST: Final = 50.0
NETWORK_MOST: Final = 150.0
_HALF_LIFE: Final = 300.0
_REMEMBERED: Final = 4096


@lru_cache(maxsize=8192)
def gossip_network(host: str) -> str:
    """What counts as one source of gossip."""
    ip = ipaddress.ip_address(plain_ip(host).partition("%")[0])
    if ip.version == 6:
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ipaddress.ip_network((ip, 24), strict=False)) if ip.is_global else str(ip)


class Reputation:
    """`now` gives seconds; `cut` is how long who has misbehaved is refused."""

    def __init__(self, now: Callable[[], float], cut: float) -> None:
        self._now = now
        self._cut = cut
        self._points: dict[bytes | str, tuple[float, float]] = {}
        self._refused: dict[bytes | str, float] = {}

    def blame(self, peer: bytes, network: str, points: float, *, has_stake: bool) -> bool:
        """Gives `points`; whether the peer is cut off now."""
        if self._add(peer, points) >= PEER_MOST:
            self._refuse(peer)
        if not has_stake and self._add(network, points) >= NETWORK_MOST:
            self._refuse(network)
        return self.refuses(peer, network, has_stake=has_stake)

    def refuses(self, peer: bytes, network: str, *, has_stake: bool = False) -> bool:
        now = self._now()
        return self._refused.get(peer, 0.0) > now or (not has_stake and self._refused.get(network, 0.0) > now)

    def points(self, who: bytes | str) -> float:
        """Of a peer or of a network."""
        points, since = self._points.get(who, (0.0, 0.0))
        return points * 0.5 ** ((self._now() - since) / _HALF_LIFE) if points else 0.0

    def _add(self, who: bytes | str, points: float) -> float:
        total = self.points(who) + points
        self._points.pop(who, None)
        self._points[who] = total, self._now()
        while len(self._points) > _REMEMBERED:  # whose last fault is longest ago
            del self._points[next(iter(self._points))]
        return total

    def _refuse(self, who: bytes | str) -> None:
        now = self._now()
        self._points.pop(who, None)
        self._refused.pop(who, None)
        self._refused[who] = now + self._cut
        if len(self._refused) > _REMEMBERED:
            self._refused = {each: until for each, until in self._refused.items() if until > now}
        while len(self._refused) > _REMEMBERED:
            del self._refused[next(iter(self._refused))]
