"""Who asks a server for weights, and what counts as one peer."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True)
class Guest:
    """Who asks: `address` is an IP address, `serves` what the request says in its field Serves, an address it is served at."""

    address: str
    serves: str | None


def plain_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """A peer's address as sockets give it: an IPv4 one that came through IPv6 is taken for what it is."""
    ip = ipaddress.ip_address(text.partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip


def plain_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The same of a network: what is written as one of ::ffff:0:0/96 is an IPv4 network."""
    network = ipaddress.ip_network(text)
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None or network.prefixlen < 96:
        return network
    return ipaddress.ip_network(f"{mapped}/{network.prefixlen - 96}")


def neighbourhood(text: str) -> str:
    """What counts as one peer: an IPv4 address, or the /64 that an IPv6 address lies in, all of which one customer has."""
    ip = plain_address(text)
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network(f"{ip}/64", strict=False))
