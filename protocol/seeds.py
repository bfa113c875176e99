"""Named seeds: all randomness that others must be able to repeat comes from here, per index, never from a stream.

    submission seed = SHA-256("murmuration/submission/1" ‖ chain id u64 ‖ contract 20 ‖ run u64 ‖ beacon 32
                              ‖ node 20 ‖ step u32 ‖ sequence u32)
    derived seed    = SHA-256(seed 32 ‖ label ‖ 0x00 ‖ index u32 …)

Integers are big-endian. A beacon mixes in a block hash, so nobody knows a seed before the weights are published.
Vectors: tests/vectors/seeds.json.
"""

from __future__ import annotations

import hashlib
import struct


def submission_seed(
    *, chain_id: int, contract: bytes, run: int, beacon: bytes, node: bytes, step: int, sequence: int
) -> bytes:
    """Seed of one submission, 32 bytes. `contract` and `node` are 20-byte addresses, `beacon` 32 bytes."""
    if (len(contract), len(beacon), len(node)) != (20, 32, 20):
        raise ValueError("an address has 20 bytes and a beacon 32")
    text = b"murmuration/submission/1"
    text += struct.pack(">Q20sQ32s20sII", chain_id, contract, run, beacon, node, step, sequence)
    return hashlib.sha256(text).digest()


def derive(seed: bytes, label: str, *indices: int) -> bytes:
    """A named child of `seed`, 32 bytes; each index below 2**32."""
    return hashlib.sha256(seed + label.encode() + b"\0" + struct.pack(f">{len(indices)}I", *indices)).digest()


def below(seed: bytes, bound: int) -> int:
    """Uniform integer in [0, bound) from a 32-byte seed; the bias is below bound / 2**256."""
    if bound <= 0:
        raise ValueError("bound must be positive")
    return int.from_bytes(seed, "big") % bound


def sampling_key(seed: bytes) -> int:
    """Philox key of a sample: the first 8 bytes of its seed, little-endian, as an unsigned 64-bit integer."""
    return int.from_bytes(seed[:8], "little")
