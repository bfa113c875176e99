"""Multiaddrs, the few that are of use here: an IP address or DNS name, a TCP port, and perhaps who is there.

    /ip4/192.0.2.7/tcp/4001    /ip6/2001:db8::1/tcp/4001    /dns4/boot.example.org/tcp/4001/p2p/16Uiu2HAm…

Parsing is strict and of our own, because the library's accepts what nobody can dial and raises many kinds of errors.
Text and bytes are those of the multiaddr specification.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Final

from protocol.errors import Malformed

ADDRESSES_MAX: Final = 4
"""Most addresses of one peer. Changing it breaks: nodes with a smaller one read no message with more."""

_LOOKED_AT_MAX: Final = 32  # addresses of one peer in a message, with those of transports that are not spoken here
_TCP: Final = 0x06
_P2P: Final = b"\xa5\x03"
_IPS: Final = {"ip4": (0x04, 4), "ip6": (0x29, 16)}
_NAMES: Final = {"dns": 0x35, "dns4": 0x36, "dns6": 0x37}
_DNS = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_PORT = re.compile(r"0|[1-9][0-9]{0,4}")
_DNS_LENGTH_MAX: Final = 127  # fits one length byte; longer names are legal but nobody's


@dataclass(frozen=True, order=True)
class Address:
    """A place to dial or to listen: `kind` is ip4, ip6, dns, dns4 or dns6."""

    kind: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises Malformed."""
        match text.split("/"):
            case ["", kind, host, "tcp", port] if _PORT.fullmatch(port) and int(port) <= 0xFFFF:
                return cls(kind, _host(kind, host), int(port))
        raise Malformed(f"{text[:128]!r} is not an address like /ip4/192.0.2.7/tcp/4001")

    @classmethod
    def decode(cls, data: bytes) -> Address:
        """From the binary form. Raises Malformed."""
        for kind, (code, size) in _IPS.items():
            if data[:1] == bytes([code]) and len(data) == 1 + size + 3 and data[1 + size] == _TCP:
                host = str(ipaddress.ip_address(data[1 : 1 + size]))
                return cls(kind, host, int.from_bytes(data[-2:], "big"))
        for kind, code in _NAMES.items():
            if data[:1] == bytes([code]) and len(data) >= 5 and len(data) == 2 + data[1] + 3 and data[-3] == _TCP:
                name = data[2:-3].decode("ascii", errors="replace")
                return cls(kind, _host(kind, name), int.from_bytes(data[-2:], "big"))
        raise Malformed("not the bytes of a TCP address")

    @cached_property
    def _encoded(self) -> bytes:
        port = struct.pack(">BH", _TCP, self.port)
        if self.kind in _IPS:
            return bytes([_IPS[self.kind][0]]) + ipaddress.ip_address(self.host).packed + port
        return bytes([_NAMES[self.kind], len(self.host)]) + self.host.encode() + port

    def encode(self) -> bytes:
        return self._encoded

    def __str__(self) -> str:
        return f"/{self.kind}/{self.host}/tcp/{self.port}"

    @cached_property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """Of IPv4 also where it is written as one of IPv6; None for a name."""
        return ipaddress.ip_address(plain_ip(self.host)) if self.kind in _IPS else None

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or bool(self.ip and self.ip.is_loopback)

    @property
    def is_dialable(self) -> bool:
        return self.port > 0 and not (self.ip and (self.ip.is_unspecified or self.ip.is_multicast))

    def seen_from(self, remote: str) -> Address:
        """This address, with "any interface" replaced by the `remote` IP its owner was seen at."""
        if self.ip is None or not self.ip.is_unspecified:
            return self
        return Address("ip6" if ":" in remote else "ip4", remote, self.port)


@dataclass(frozen=True, order=True)
class PeerAddress:
    """An address and the PeerID that must answer there (its bytes)."""

    address: Address
    peer: bytes

    @classmethod
    def parse(cls, text: str) -> PeerAddress:
        """Raises Malformed unless it is an address that ends in /p2p/ and a PeerID that carries its key."""
        from protocol.identity import check_peer

        place, separator, peer_id = text.rpartition("/p2p/")
        if not separator:
            raise Malformed(f"{text[:128]!r} does not say whom to expect there (/p2p/…)")
        peer = peer_bytes(peer_id)
        check_peer(peer)
        return cls(Address.parse(place), peer)

    def __str__(self) -> str:
        return f"{self.address}/p2p/{peer_text(self.peer)}"


def usable_addresses(raw: Iterable[bytes], peer: bytes) -> tuple[Address, ...]:
    """Those of a stranger's addresses of `peer` that mean something here, at most ADDRESSES_MAX.

    Other implementations name QUIC, WebSocket and relayed addresses too, and put /p2p/ and the PeerID behind them.
    """
    found: dict[Address, None] = {}
    for data in islice(raw, _LOOKED_AT_MAX):
        with suppress(Malformed):
            found[Address.decode(data.removesuffix(_P2P + bytes([len(peer)]) + peer))] = None
    return tuple(islice(found, ADDRESSES_MAX))


def plain_ip(host: str) -> str:
    """The IP as its owner writes it: an IPv4 address that came in over an IPv6 socket is one of IPv4."""
    ip = ipaddress.ip_address(host.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped) if mapped else host


def peer_text(peer: bytes) -> str:
    """The PeerID as people see it."""
    import base58

    return base58.b58encode(peer).decode()


def peer_bytes(peer_id: str) -> bytes:
    """Raises Malformed for what is not base58."""
    import base58

    try:
        return base58.b58decode(peer_id)
    except ValueError as error:
        raise Malformed(f"{peer_id[:64]!r} is no PeerID") from error


@lru_cache(maxsize=8192)
def network_of(host: str) -> str:
    """What counts as one source of connections: an IPv4 address, an IPv6 /64."""
    ip = ipaddress.ip_address(plain_ip(host).partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


@lru_cache(maxsize=8192)
def neighbourhood_of(address: Address) -> str | None:
    """The global IPv4 /24 or IPv6 /48 of an address; None where addresses say nothing about who owns them."""
    ip = address.ip
    if ip is None or not ip.is_global:
        return None
    return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 48), strict=False))


def _host(kind: str, host: str) -> str:
    if kind in _NAMES and len(host) <= _DNS_LENGTH_MAX and _DNS.fullmatch(host):
        return host
    try:
        if kind == "ip4":
            return str(ipaddress.IPv4Address(host))
        if kind == "ip6" and "%" not in host:
            return str(ipaddress.IPv6Address(host))
    except ValueError:
        pass
    raise Malformed(f"{host[:64]!r} is no {kind[:16]} host")
