"""What gossiping peers say to each other: libp2p's GossipSub 1.1, its protobuf messages and its protocol name.

    subscriptions   that a peer is here for a topic
    publish         messages
    IHAVE, IWANT    names of messages that a peer holds, and of those it would like to be sent
    GRAFT, PRUNE    that messages are to be pushed from now on; that they no longer are, and for how many seconds not to ask again

A message is its data and nothing else: whose word it is stands in there. A sender, a number and a signature of libp2p's own are passed over
and never handed on. A message's name is the first 20 bytes of the SHA-256 of its data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from google.protobuf.message import DecodeError
from libp2p.pubsub.pb.rpc_pb2 import RPC

from protocol.errors import Malformed, Oversized
from protocol.p2p.subject import MESSAGE_BYTES_MAX

PROTOCOL: Final = "/meshsub/1.1.0"
FRAME_BYTES_MAX: Final = 64 << 10
MESSAGES_MAX: Final = 14
"""Messages of one frame: more of the largest would not go into one."""
NAMES_MAX: Final = 256
"""Of messages, in one frame."""

_SUBSCRIPTIONS_MAX: Final = 64
_BACKOFF_MAX: Final = 3600
_NAME_BYTES: Final = 20


def name_of(data: bytes) -> bytes:
    return sha256(data).digest()[:_NAME_BYTES]


@dataclass(frozen=True)
class Frame:
    """What is said about one topic. `subscribes` is None where nothing is said of it; `prune` gives seconds."""

    subscribes: bool | None = None
    messages: tuple[bytes, ...] = ()
    have: tuple[bytes, ...] = ()
    want: tuple[bytes, ...] = ()
    graft: bool = False
    prune: int | None = None

    def encode(self, topic: str) -> bytes:
        rpc = RPC()
        if self.subscribes is not None:
            rpc.subscriptions.add(subscribe=self.subscribes, topicid=topic)
        for data in self.messages:
            rpc.publish.add(data=data, topicIDs=[topic])
        if self.have:
            rpc.control.ihave.add(topicID=topic, messageIDs=self.have)
        if self.want:
            rpc.control.iwant.add(messageIDs=self.want)
        if self.graft:
            rpc.control.graft.add(topicID=topic)
        if self.prune is not None:
            rpc.control.prune.add(topicID=topic, backoff=self.prune)
        return bytes(rpc.SerializeToString())

    @classmethod
    def decode(cls, data: bytes, topic: str) -> Frame:
        """What `data` says about `topic`; of other topics nothing. Raises Oversized or Malformed."""
        if len(data) > FRAME_BYTES_MAX:
            raise Oversized(f"gossip frame of {len(data)} bytes, more than {FRAME_BYTES_MAX}")
        rpc = RPC()
        try:
            rpc.ParseFromString(data)
            return _read(rpc, topic)
        except (DecodeError, UnicodeDecodeError) as error:
            raise Malformed("gossip frame is no protobuf message") from error


def _read(rpc: RPC, topic: str) -> Frame:
    control = rpc.control
    if max(len(rpc.subscriptions), len(control.graft), len(control.prune)) > _SUBSCRIPTIONS_MAX:
        raise Oversized("gossip frame about more topics than anybody is here for")
    if len(rpc.publish) > MESSAGES_MAX:
        raise Oversized(f"gossip frame of {len(rpc.publish)} messages, more than {MESSAGES_MAX}")
    said = [each.subscribe for each in rpc.subscriptions if each.topicid == topic]
    messages = [bytes(each.data) for each in rpc.publish if list(each.topicIDs) == [topic]]
    largest = max(map(len, messages), default=0)
    if largest > MESSAGE_BYTES_MAX:
        raise Oversized(f"gossip message of {largest} bytes, more than {MESSAGE_BYTES_MAX}")
    pruned = [each.backoff for each in control.prune if each.topicID == topic]
    return Frame(
        subscribes=said[-1] if said else None,
        messages=tuple(messages),
        have=_names(name for each in control.ihave if each.topicID == topic for name in each.messageIDs),
        want=_names(name for each in control.iwant for name in each.messageIDs),
        graft=any(each.topicID == topic for each in control.graft),
        prune=min(pruned[-1], _BACKOFF_MAX) if pruned else None,
    )


def _names(given: Iterable[bytes]) -> tuple[bytes, ...]:
    names = tuple(dict.fromkeys(given))
    if len(names) > NAMES_MAX:
        raise Oversized(f"gossip frame that names {len(names)} messages, more than {NAMES_MAX}")
    return tuple(name for name in names if len(name) == _NAME_BYTES)  # others' names are of none that is here
