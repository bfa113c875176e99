"""The DHT's messages: libp2p's Kademlia protobuf.

    FIND_NODE      key                        → closer peers
    GET_PROVIDERS  key                        → closer peers, providers
    GET_VALUE      key                        → closer peers
    ADD_PROVIDER   key, provider (the sender) → nothing
    PING                                      → the same

Two things are ours. Whoever serves the DHT names itself in the `closerPeers` of its questions, so that ours need not ask
whom they hear from; strangers leave it empty, and are asked by identify. An address of "any interface" means "where you
see me". Value records do not exist here: nobody can store bytes with a stranger, so PUT_VALUE is refused and GET_VALUE
finds no value.
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
from protocol.p2p.records import PROVIDERS_PER_KEY
from protocol.p2p.routing import BUCKET, Contact

PROTOCOL: Final = "/murmuration/kad/1.0.0"
"""Not /ipfs/kad/1.0.0: this is a network of its own, as libp2p's specification has each name it. Changing it breaks: nodes of
different versions no longer meet."""

QUESTION_BYTES_MAX: Final = 4096
ANSWER_BYTES_MAX: Final = 64 << 10
KEY_BYTES_MAX: Final = 64
_HASHED_PEER: Final = b"\x12\x20"  # a PeerID that is the SHA-256 of its key, as of RSA: nobody here can speak with it
_HASHED_PEER_BYTES: Final = 34


class Kind(Enum):
    FIND_NODE = Message.FIND_NODE
    GET_PROVIDERS = Message.GET_PROVIDERS
    GET_VALUE = Message.GET_VALUE
    ADD_PROVIDER = Message.ADD_PROVIDER
    PING = Message.PING


@dataclass(frozen=True)
class Question:
    """`sender` is the sender as others may reach it: the provider in ADD_PROVIDER, else one that serves the DHT itself."""

    kind: Kind
    key: bytes
    sender: Contact | None = None

    def encode(self) -> bytes:
        message = Message(type=self.kind.value, key=self.key)
        if self.sender is not None:
            field = message.providerPeers if self.kind is Kind.ADD_PROVIDER else message.closerPeers
            _write(field, [self.sender])
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
        sender = _read(field, 1)
        return cls(kind, message.key, sender[0] if sender else None)


@dataclass(frozen=True)
class KademliaAnswer:
    closer: tuple[Contact, ...] = ()
    providers: tuple[Contact, ...] = ()

    def encode(self, kind: Kind) -> bytes:
        message = Message(type=kind.value)
        _write(message.closerPeers, self.closer)
        _write(message.providerPeers, self.providers)
        return message.SerializeToString()

    @classmethod
    def decode(cls, data: bytes, kind: Kind) -> KademliaAnswer:
        """Raises Oversized or Malformed."""
        message = _parse(data, ANSWER_BYTES_MAX, "DHT answer")
        if message.type != kind.value:
            raise Malformed("the DHT answer is to another question")
        return cls(tuple(_read(message.closerPeers, BUCKET)), tuple(_read(message.providerPeers, PROVIDERS_PER_KEY)))


@lru_cache(maxsize=4096)  # the same peers stand in every answer, and a point on the curve is dear to check
def _check_peer(peer: bytes) -> None:
    """Raises Malformed unless `peer` is a PeerID that carries its key."""
    check_peer(peer)


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


def _read(field: Any, most: int) -> list[Contact]:
    """The first `most` peers: other implementations give every provider they know, and one closer peer more than k."""
    contacts = []
    for peer in field[:most]:
        if len(peer.id) == _HASHED_PEER_BYTES and peer.id.startswith(_HASHED_PEER):
            continue
        _check_peer(peer.id)
        addresses = usable_addresses(peer.addrs, peer.id)
        if addresses:
            contacts.append(Contact(peer.id, addresses))
    return contacts
