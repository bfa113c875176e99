"""How near an address is to this machine: whoever is told where to go by somebody else goes nowhere nearer than that one is.

Else a stranger on the Internet could make this machine ask services of its private network, or of its own.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address


class Reach(IntEnum):
    """How near an address is to whoever names it."""

    FAR = 0
    NEAR = 1
    SELF = 2
    NOWHERE = 3

    @classmethod
    def of(cls, ip: IPv4Address | IPv6Address) -> Reach:
        if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
            return cls.NOWHERE
        if ip.is_loopback:
            return cls.SELF
        return cls.FAR if ip.is_global else cls.NEAR
