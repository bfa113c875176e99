"""Signed notices: "I provide this service, and these are my addresses", signed by the provider's own key.

A provider record lies with the peers around its key, and PeerIDs that surround a key cost nothing. A notice can be handed on by
anybody and changed by nobody: everyone who follows a provider keeps its newest notice, on disk too, and gives it to who asks. It
tells where to dial and no more; who answers there must still prove its key.

As values of the DHT (PUT_VALUE, GET_VALUE) notices are all that is stored: a value's key holds the service and the signer.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from eth_keys.datatypes import PublicKey, Signature
from eth_keys.exceptions import BadSignature as CurveMismatch
from eth_keys.exceptions import ValidationError

from protocol import canonical
from protocol.errors import BadSignature, Malformed, MurmurationError
from protocol.identity import address_of_peer
from protocol.p2p.address import ADDRESSES_MAX, Address, peer_bytes, peer_text
from protocol.p2p.settings import HostLimits
from protocol.signing import signature_of

if TYPE_CHECKING:
    from protocol.identity import Key

NOTICE_BYTES_MAX: Final = 2048
"""Cap on a notice's canonical JSON. Changing it breaks: nodes with a smaller one take no longer notices."""

NAMESPACE: Final = b"/murmur/"
"""Before the service's digest (32 bytes) and the signer's chain address (20). Changing it breaks: notices are no longer found."""

_DOMAIN: Final = b"murmuration notice 1\n"
_SERVICE: Final = b"\x12\x20"
_FUTURE_SECONDS: Final = 600  # how far a signer's clock may be ahead
_LIFE_SECONDS: Final = 90 * 86400
_FIELDS: Final = {"addresses", "issued", "peer", "service"}


def value_key(service: bytes, address: str) -> bytes:
    """The DHT key of the notice of `address` about the service with the 34-byte key `service`."""
    return NAMESPACE + service[len(_SERVICE) :] + bytes.fromhex(address.removeprefix("0x"))


@dataclass(frozen=True)
class Notice:
    """Verified: there is none with a wrong signature. `issued` is in seconds of Unix time."""

    service: bytes
    peer: bytes
    addresses: tuple[Address, ...]
    issued: int
    signature: bytes

    @classmethod
    def sign(cls, key: Key, service: bytes, addresses: Iterable[Address], issued: int) -> Notice:
        places = tuple(addresses)
        return cls(service, key.peer, places, issued, key.sign(_digest(_fields(service, key.peer, places, issued))))

    @cached_property
    def key(self) -> bytes:
        return value_key(self.service, address_of_peer(self.peer))

    def encode(self) -> bytes:
        fields = _fields(self.service, self.peer, self.addresses, self.issued)
        return canonical.encode(fields | {"signature": self.signature.hex()})

    @classmethod
    def decode(cls, data: bytes) -> Notice:
        """Raises a ProtocolViolation for anything `encode` would not have made, and for a signature that is not the peer's."""
        return cls.parse(canonical.decode(data, cap=NOTICE_BYTES_MAX, what="notice"))

    @classmethod
    def parse(cls, value: Any) -> Notice:
        """From its JSON. Raises as `decode` does."""
        if not isinstance(value, dict) or value.keys() != _FIELDS | {"signature"}:
            raise Malformed("notice with other fields than it should have")
        service, peer, issued, texts = value["service"], value["peer"], value["issued"], value["addresses"]
        if not isinstance(service, str) or not re.fullmatch(r"1220[0-9a-f]{64}", service):
            raise Malformed("notice names no service")
        if not isinstance(issued, str) or not re.fullmatch(r"[1-9][0-9]{0,11}", issued):
            raise Malformed("notice says no time")
        if not isinstance(peer, str) or len(peer) > 2 * 39 or not isinstance(texts, list):
            raise Malformed("notice names no peer, or no addresses")
        if not 1 <= len(texts) <= ADDRESSES_MAX or not all(isinstance(text, str) for text in texts):
            raise Malformed(f"notice with {len(texts)} addresses")
        try:
            raw = peer_bytes(peer)
        except ValueError as error:
            raise Malformed("notice names no peer") from error
        address_of_peer(raw)
        signature = signature_of(value["signature"], "a notice")
        made = cls(bytes.fromhex(service), raw, tuple(map(Address.parse, texts)), int(issued), signature)
        made._verify()
        return made

    def _verify(self) -> None:
        digest = _digest(_fields(self.service, self.peer, self.addresses, self.issued))
        try:
            signature = Signature(self.signature[:64] + bytes([self.signature[64] - 27]))
            good = PublicKey.from_compressed_bytes(self.peer[-33:]).verify_msg_hash(digest, signature)
        except (CurveMismatch, ValidationError, ValueError) as error:
            raise BadSignature("a notice holds no signature") from error
        if not good:
            raise BadSignature("a notice is not signed by the peer it is about")


class Notices:
    """The newest notice of each key: `followed` ones for good, those held for others up to a cap, by source network."""

    def __init__(self, limits: HostLimits, followed: Iterable[Notice] = ()) -> None:
        self._limits = limits
        self._followed = {notice.key: notice for notice in followed}
        self._held: dict[bytes, tuple[Notice, str]] = {}
        self._sources: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._followed) + len(self._held)

    @property
    def followed(self) -> list[Notice]:
        return list(self._followed.values())

    def get(self, key: bytes) -> Notice | None:
        """The newest one under `key`."""
        both = (self._followed.get(key), self._held[key][0] if key in self._held else None)
        return max((each for each in both if each), key=lambda notice: notice.issued, default=None)

    def of(self, service: bytes, addresses: Collection[str]) -> list[Notice]:
        """What is known of the signers `addresses` (chain addresses)."""
        found = (self.get(value_key(service, address)) for address in addresses)
        return [notice for notice in found if notice]

    def follow(self, notice: Notice, now: float) -> bool:
        """Keeps the notice of somebody we look for ourselves; the one followed longest ago makes room. False when it is not newer."""
        if not self._is_news(notice, now):
            return False
        self._followed.pop(notice.key, None)
        while len(self._followed) >= self._limits.followed:
            del self._followed[next(iter(self._followed))]
        self._followed[notice.key] = notice
        return True

    def put(self, notice: Notice, *, source: str, now: float) -> bool:
        """Keeps what another network asks us to hold; says whether it is held now."""
        key = notice.key
        if key in self._followed:
            self.follow(notice, now)
            return self._followed[key] == notice
        known = self._held.get(key)
        if known and known[0] == notice:
            return True
        if not self._is_news(notice, now):
            return False
        if known:  # also of another source: the newer one is the signer's own word
            self._drop(key)
        if self._sources[source] >= self._limits.notices_per_address:
            return False
        if len(self._held) >= self._limits.notices:
            crowd = max(self._sources, key=lambda name: self._sources[name])
            self._drop(next(each for each, (_, name) in self._held.items() if name == crowd))
        self._held[key] = (notice, source)
        self._sources[source] += 1
        return True

    def _is_news(self, notice: Notice, now: float) -> bool:
        if not now - _LIFE_SECONDS <= notice.issued <= now + _FUTURE_SECONDS:
            return False
        known = self.get(notice.key)
        return known is None or notice.issued > known.issued

    def _drop(self, key: bytes) -> None:
        _, source = self._held.pop(key)
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]


# Every peer that a search asks gives the same one, and a signature is dear to check. A notice has 2 KiB at most.
@lru_cache(maxsize=256)
def _decoded(data: bytes) -> Notice:
    return Notice.decode(data)


def decode_for(key: bytes, data: bytes) -> Notice | None:
    """The notice under `key`; None for a value that is none of that key."""
    if len(data) > NOTICE_BYTES_MAX:
        return None
    try:
        notice = _decoded(data)
    except MurmurationError:
        return None
    return notice if notice.key == key else None


def _fields(service: bytes, peer: bytes, addresses: Iterable[Address], issued: int) -> dict[str, Any]:
    texts = [str(address) for address in addresses]
    return {"addresses": texts, "issued": str(issued), "peer": peer_text(peer), "service": service.hex()}


def _digest(fields: dict[str, Any]) -> bytes:
    return hashlib.sha256(_DOMAIN + canonical.encode(fields)).digest()
