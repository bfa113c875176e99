"""The DHT's messages: libp2p's Kademlia protobuf, of which three questions are spoken, each answered on its own stream.

    FIND_NODE      key                        → closer peers
    GET_PROVIDERS  key                        → closer peers, providers
    ADD_PROVIDER   key, provider (the sender) → empty

One thing is ours: whoever serves the DHT itself names itself in the `closerPeers` of its questions. A node that only
asks leaves it out and is never put into a routing table; py-libp2p takes every asker for a server. An address of "any
interface" means "where you see me". Value records do not exist here: nobody can store bytes with a stranger.
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
from protocol.identity import address_of_peer
from protocol.p2p.address import usable_addresses
from protocol.p2p.records import PROVIDERS_PER_KEY
from protocol.p2p.routing import BUCKET, Contact

PROTOCOL: Final = "/murmuration/kad/1.0.0"
"""Not /ipfs/kad/1.0.0: this is a network of its own. Changing it breaks: nodes of different versions no longer meet."""

QUESTION_BYTES_MAX: Final = 4096
ANSWER_BYTES_MAX: Final = 64 << 10
KEY_BYTES_MAX: Final = 64


class Kind(Enum):
    FIND_NODE = Message.FIND_NODE
    GET_PROVIDERS = Message.GET_PROVIDERS
    ADD_PROVIDER = Message.ADD_PROVIDER


@dataclass(frozen=True)
class Question:
    """`server` is the sender as others may reach it; None when it only asks."""

    kind: Kind
    key: bytes
    server: Contact | None = None

    def encode(self) -> bytes:
        message = Message(type=self.kind.value, key=self.key)
        if self.server is not None:
            field = message.providerPeers if self.kind is Kind.ADD_PROVIDER else message.closerPeers
            _write(field, [self.server])
        return message.SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Question:
        """Raises Oversized or Malformed."""
        message = _parse(data, QUESTION_BYTES_MAX, "DHT question")
        try:
            kind = Kind(message.type)
        except ValueError:
            raise Malformed(f"DHT question of type {message.type}") from None
        if not 1 <= len(message.key) <= KEY_BYTES_MAX:
            raise Malformed(f"DHT key of {len(message.key)} bytes")
        sender = _read(message.providerPeers if kind is Kind.ADD_PROVIDER else message.closerPeers, 1)
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
    """Raises Malformed unless `peer` is a secp256k1 PeerID."""
    address_of_peer(peer)


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
    if len(field) > most:
        raise Malformed(f"DHT message with {len(field)} peers")
    contacts = []
    for peer in field:
        _check_peer(peer.id)
        addresses = usable_addresses(peer.addrs, peer.id)
        if addresses:
            contacts.append(Contact(peer.id, addresses))
    return contacts
