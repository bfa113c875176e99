"""libp2p's identify and ping: what every implementation asks a peer before it believes anything else of it.

    /ipfs/id/1.0.0         nothing                    → who answers, what it speaks, where it listens, where it sees you
    /ipfs/id/push/1.0.0    the same, when it changes  → nothing
    /ipfs/ping/1.0.0       32 bytes, again and again  → the same bytes

What a peer says of itself here proves nothing: neither that it speaks a protocol nor that it listens anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

import trio
from google.protobuf.message import DecodeError
from libp2p.identity.identify.pb.identify_pb2 import Identify as Message

from protocol.errors import Malformed, Unavailable
from protocol.p2p import negotiation
from protocol.p2p.address import Address, usable_addresses
from protocol.p2p.node import Node, PeerConnection
from protocol.p2p.stream import Stream

IDENTIFY: Final = "/ipfs/id/1.0.0"
PUSH: Final = "/ipfs/id/push/1.0.0"
PING: Final = "/ipfs/ping/1.0.0"

_BYTES_MAX: Final = 64 << 10  # of all that a peer says of itself
_MESSAGES_MAX: Final = 10  # that are one when put together
_PING_BYTES: Final = 32
_PROTOCOL_VERSION: Final = "ipfs/0.1.0"  # what all of libp2p calls itself, of whatever network
_AGENT: Final = f"murmuration/{version('murmuration')}"


@dataclass(frozen=True)
class Identified:
    """What a peer says of itself, and `seen_as`: where it sees who asks."""

    protocols: tuple[str, ...]
    addresses: tuple[Address, ...]
    agent: str
    seen_as: Address | None

    @classmethod
    def decode(cls, data: bytes, peer: bytes) -> Identified:
        """Raises Malformed."""
        message = Message()
        try:
            message.ParseFromString(data)
        except (DecodeError, ValueError) as error:  # the second of text that is no UTF-8
            raise Malformed("what identifies a peer is no protobuf message") from error
        try:
            seen_as = Address.decode(message.observed_addr)
        except Malformed:
            seen_as = None
        places = usable_addresses(message.listen_addrs, peer)
        return cls(tuple(message.protocols), places, message.agent_version, seen_as)


async def identify(node: Node, connection: PeerConnection) -> Identified:
    """What the peer at the other end says of itself. Raises Unavailable or a ProtocolViolation."""
    with trio.move_on_after(node.timing.request):
        async with node.stream(connection, IDENTIFY) as stream:
            data = await _read(stream)
            with suppress(Unavailable):  # all is said
                await stream.finish()
            return Identified.decode(data, connection.peer)
    raise Unavailable(f"it did not say who it is within {node.timing.request:g} s")


class Identify:
    """Answers on `node`. `own` is where this node is to be reached; `pushed` hears what a peer at some IP says of itself when that has
    changed."""

    def __init__(
        self,
        node: Node,
        own: Sequence[Address],
        pushed: Callable[[bytes, str, Identified], None],
    ) -> None:
        self._node = node
        self._own = own
        self._pushed = pushed
        node.handle(IDENTIFY, self._answer)
        node.handle(PUSH, self._note)
        node.handle(PING, _echo)

    async def _answer(self, stream: Stream) -> None:
        here = [place.seen_from(stream.local) if stream.local else place for place in self._own]
        seen = Address("ip6" if ":" in stream.remote else "ip4", stream.remote, stream.port)
        message = Message(
            protocol_version=_PROTOCOL_VERSION,
            agent_version=_AGENT,
            public_key=self._node.identity.public,
            listen_addrs=[place.encode() for place in here if place.is_dialable],
            observed_addr=seen.encode(),
            protocols=self._node.protocols,
        )
        await stream.write_message(message.SerializeToString())

    async def _note(self, stream: Stream) -> None:
        self._pushed(stream.peer, stream.remote, Identified.decode(await _read(stream), stream.peer))


async def _read(stream: Stream) -> bytes:
    """A peer's account of itself; put together, its messages are one."""
    data = b""
    for _ in range(_MESSAGES_MAX):
        data += await stream.read_message(_BYTES_MAX - len(data), "a peer's account of itself")
        if await stream.ended():
            break
    return data


async def _echo(stream: Stream) -> None:
    while not await stream.ended():
        await stream.write(await negotiation.read_exactly(stream, _PING_BYTES))
