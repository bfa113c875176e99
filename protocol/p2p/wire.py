"""The DHT's messages: libp2p's Kademlia protobuf.

    FIND_NODE      key                        → closer peers
    GET_PROVIDERS  key                        → closer peers, providers
    GET_VALUE      key                        → closer peers, the value
    PUT_VALUE      key, value                 → the value, if it is held now
    ADD_PROVIDER   key, provider (the sender) → nothing
    PING                                      → the same

Values are signed notices (notices.py) and nothing else: nobody can store bytes of his own with a stranger.

Three things are ours. Whoever serves the DHT names itself in the `closerPeers` of its questions, so that ours need not ask
whom they hear from; strangers leave it empty, and are asked by identify. An address of "any interface" means "where you
see me". The record of a GET_PROVIDERS may name the key of a notice that is wanted as well, and that of an ADD_PROVIDER hold one:
that spares a round trip each, and other implementations pass over it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import DecodeError
from libp2p.kad_dht.pb.kademlia_pb2 import Message

from protocol.errors import Malformed, Oversized
from protocol.identity import check_peer
from protocol.p2p.address import usable_addresses
from protocol.p2p.notices import NAMESPACE, NOTICE_BYTES_MAX
from protocol.p2p.records import PROVIDERS_PER_KEY
from protocol.p2p.routing import BUCKET, Contact

PROTOCOL: Final = "/murmuration/kad/1.0.0"
"""Not /ipfs/kad/1.0.0: this is a network of its own, as libp2p's specification has each name it. Changing it breaks: nodes of
different versions no longer meet."""

QUESTION_BYTES_MAX: Final = 4096  # of which a notice takes half
ANSWER_BYTES_MAX: Final = 64 << 10
KEY_BYTES_MAX: Final = 64
_HASHED_PEER: Final = b"\x12\x20"  # a PeerID that is the SHA-256 of its key, as of RSA: nobody here can speak with it
_HASHED_PEER_BYTES: Final = 34
_CACHED_BYTES: Final = 512  # of addresses of one peer


class Kind(Enum):
    FIND_NODE = Message.FIND_NODE
    GET_PROVIDERS = Message.GET_PROVIDERS
    GET_VALUE = Message.GET_VALUE
    PUT_VALUE = Message.PUT_VALUE
    ADD_PROVIDER = Message.ADD_PROVIDER
    PING = Message.PING


@dataclass(frozen=True)
class Value:
    """What stands under a key of the DHT; no `data` where it is asked for. Whether it is true, notices.py knows."""

    key: bytes
    data: bytes = b""


@dataclass(frozen=True)
class Question:
    """`sender` is the sender as others may reach it: the provider in ADD_PROVIDER, else one that serves the DHT itself."""

    kind: Kind
    key: bytes
    sender: Contact | None = None
    value: Value | None = None

    def encode(self) -> bytes:
        message = Message(type=self.kind.value, key=self.key)
        if self.sender is not None:
            field = message.providerPeers if self.kind is Kind.ADD_PROVIDER else message.closerPeers
            _write(field, [self.sender])
        _write_value(message, self.value)
        return message.SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Question:
        """Raises Oversized or Malformed."""
        message = _parse(data, QUESTION_BYTES_MAX, "DHT question")
        try:
            kind = Kind(message.type)
        except ValueError:
            raise Malformed(f"DHT question of type {message.type}") from None
        if not (len(message.key) >= 1 or kind is Kind.PING) or len(message.key) > KEY_BYTES_MAX:
            raise Malformed(f"DHT key of {len(message.key)} bytes")
        field = message.providerPeers if kind is Kind.ADD_PROVIDER else message.closerPeers
        if len(field) > 1:
            raise Malformed(f"DHT question with {len(field)} peers")
        sender, value = _read(field, 1), _read_value(message)
        if kind is Kind.PUT_VALUE and not (value and value.key == message.key and message.key.startswith(NAMESPACE)):
            raise Malformed("a value that is no notice")
        return cls(kind, message.key, sender[0] if sender else None, value)


@dataclass(frozen=True)
class KademliaAnswer:
    closer: tuple[Contact, ...] = ()
    providers: tuple[Contact, ...] = ()
    value: Value | None = None

    def encode(self, kind: Kind) -> bytes:
        message = Message(type=kind.value)
        _write(message.closerPeers, self.closer)
        _write(message.providerPeers, self.providers)
        _write_value(message, self.value)
        return message.SerializeToString()

    @classmethod
    def decode(cls, data: bytes, kind: Kind) -> KademliaAnswer:
        """Raises Oversized or Malformed."""
        message = _parse(data, ANSWER_BYTES_MAX, "DHT answer")
        if message.type != kind.value:
            raise Malformed("the DHT answer is to another question")
        closer, providers = _read(message.closerPeers, BUCKET), _read(message.providerPeers, PROVIDERS_PER_KEY)
        return cls(tuple(closer), tuple(providers), _read_value(message))


@lru_cache(maxsize=4096)  # the same peers stand in every answer, and a point on the curve is dear to check
def _contact(peer: bytes, raw: tuple[bytes, ...]) -> Contact | None:
    """None without an address that means something here. Raises Malformed unless `peer` is a PeerID that carries its key."""
    check_peer(peer)
    addresses = usable_addresses(raw, peer)
    return Contact(peer, addresses) if addresses else None


def _parse(data: bytes, cap: int, what: str) -> Any:
    if len(data) > cap:
        raise Oversized(f"{what} has {len(data)} bytes, more than {cap}")
    message = Message()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise Malformed(f"{what} is no protobuf message") from error
    return message


def _write(field: Any, contacts: Iterable[Contact]) -> None:
    for contact in contacts:
        field.add(id=contact.peer, addrs=[address.encode() for address in contact.addresses])


def _write_value(message: Any, value: Value | None) -> None:
    if value is not None:
        message.record.key, message.record.value = value.key, value.data


def _read_value(message: Any) -> Value | None:
    """None where there is none; a value longer than a notice can be is as good as none."""
    if not message.HasField("record"):
        return None
    key, data = message.record.key, message.record.value
    return Value(key, data) if 1 <= len(key) <= KEY_BYTES_MAX and len(data) <= NOTICE_BYTES_MAX else None


def _read(field: Any, most: int) -> list[Contact]:
    """The first `most` peers: other implementations give every provider they know, and one closer peer more than k."""
    contacts = []
    for peer in field[:most]:
        if len(peer.id) == _HASHED_PEER_BYTES and peer.id.startswith(_HASHED_PEER):
            continue
        raw = tuple(peer.addrs)
        small = sum(map(len, raw)) <= _CACHED_BYTES
        contact = _contact(peer.id, raw) if small else _contact.__wrapped__(peer.id, raw)
        if contact:
            contacts.append(contact)
    return contacts
