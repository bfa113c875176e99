"""Which chunks of a version somebody holds, and which it is fetching: what lets others take them before the rest is there.

    GET /v/<step>/holding?after=<revision>&wait=<milliseconds>
    GET /v/<step>/delta/holding?…         the same of the delta's chunks

is answered as soon as the revision is above `after`, or when the time is over. The body, all integers little-endian:

    u64 revision   u32 chunks   bits held, one per chunk in the manifest's order   bits on their way

each row of bits filled up to whole bytes with zeros, lowest bit first. The revision grows with every chunk that arrives.
A version that is whole has the highest revision, and its answer no bits.
It is a claim like any other: a source that has not what it says fails when it is asked, and is left alone for a while.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Malformed

Bits = NDArray[np.bool_]

REVISION_COMPLETE = (1 << 64) - 1
"""Revision of a version that is whole: nothing more will change."""

WAIT_MS_MAX = 20_000
"""Longest wait for news that a server agrees to, in milliseconds."""

_HEAD = struct.Struct("<QI")

COMPLETE = _HEAD.pack(REVISION_COMPLETE, 0)
"""What is answered of a version that is whole."""


@dataclass(frozen=True)
class Holding:
    """`held` and `coming` have one entry per chunk, in the manifest's order."""

    revision: int
    held: Bits
    coming: Bits

    @property
    def is_complete(self) -> bool:
        return bool(self.held.all())

    def encode(self) -> bytes:
        if self.is_complete:
            return COMPLETE
        rows = (np.packbits(bits, bitorder="little").tobytes() for bits in (self.held, self.coming))
        return _HEAD.pack(self.revision, len(self.held)) + b"".join(rows)

    @classmethod
    def parse(cls, data: bytes, chunks: int) -> Holding:
        """Reads `encode()`'s bytes from a peer, about a version of so many chunks. Raises Malformed."""
        if data == COMPLETE:
            return cls(REVISION_COMPLETE, np.ones(chunks, np.bool_), np.zeros(chunks, np.bool_))
        if len(data) != encoded_bytes(chunks):
            raise Malformed(f"tells of {len(data)} bytes what it holds of {chunks} chunks")
        revision, count = _HEAD.unpack_from(data)
        if count != chunks:
            raise Malformed(f"tells what it holds of {count} chunks, where the version has {chunks}")
        rows = np.frombuffer(data, np.uint8, offset=_HEAD.size).reshape(2, -1)
        bits = np.unpackbits(rows, axis=1, bitorder="little").astype(np.bool_)
        if bits[:, chunks:].any():
            raise Malformed("tells of chunks that the version does not have")
        return cls(revision, bits[0, :chunks], bits[1, :chunks])


def encoded_bytes(chunks: int) -> int:
    return _HEAD.size + 2 * -(-chunks // 8)


def holding_target(step: int, after: int, wait_ms: int) -> str:
    return f"/v/{step}/holding?after={after}&wait={wait_ms}"


def delta_holding_target(step: int, after: int, wait_ms: int) -> str:
    return f"/v/{step}/delta/holding?after={after}&wait={wait_ms}"
