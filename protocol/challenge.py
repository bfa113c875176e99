"""A matrix challenge (not that of a submission, which is a case on chain): the product of two seeded int8 matrices, committed to by a Merkle root before anybody says which rows are looked at.

    seed    = SHA-256("murmuration/challenge/1" ‖ chain id u64 ‖ contract 20 ‖ run u64 ‖ node 20 ‖ nonce 32)
    X       = the raw 64-bit words of Philox4x64-10 from counter 1 on, little-endian, as int8, row after row; its 128-bit key is the
              first 16 bytes of SHA-256(seed ‖ "left" or "right" ‖ 0x00), little-endian
    C[i, j] = Σ_k left[i, k] · right[j, k]          int32, exact: at most 4096 · 2¹⁴ = 2²⁶
    leaf    = SHA-256(0x00 ‖ i u32 ‖ row i of C as little-endian int32),  node = SHA-256(0x01 ‖ left ‖ right)
    opening = for each row that was asked for: the row, then its siblings from the leaf upwards

Integers are big-endian where nothing else is said. Who checks draws all of `right` and k rows of `left`: k · n² operations against 2 · n³.
A share f of false rows is missed with probability (1 − f)^k. Shown in `status` only: whoever answers may have asked another machine, so
that nothing follows from it for a seat. How it is asked: protocol/hub/challenges.py. Vectors: tests/vectors/challenge.json.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol import seeds
from protocol.errors import HashMismatch, Malformed

SIDES = (64, 128, 256, 512, 1024, 2048, 4096)
"""Rows and columns of the matrices. At 4096 they take 32 MiB and their product 64."""
ROWS = 8
"""Rows that are opened."""

_BLOCK = 1024
"""Longest sum of products of int8 that float32 holds exactly in any order: 2¹⁴ · 2¹⁰ = 2²⁴."""
_SLAB = 512  # rows at once: what is between float32 and int32 stays small
_WORDS = 4  # that one step of Philox's counter gives, of 8 bytes

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]


def seed(*, chain_id: int, contract: bytes, run: int, node: bytes, nonce: bytes) -> bytes:
    """Seed of one challenge, 32 bytes. `contract` and `node` are 20-byte addresses, `nonce` 32 bytes."""
    if (len(contract), len(node), len(nonce)) != (20, 20, 32):
        raise ValueError("an address has 20 bytes and a nonce 32")
    text = b"murmuration/challenge/1" + struct.pack(">Q20sQ20s32s", chain_id, contract, run, node, nonce)
    return hashlib.sha256(text).digest()


def matrix(seed: bytes, name: str, side: int) -> Int8:
    """The matrix `name` ("left" or "right"), int8 [side, side]."""
    return _drawn(seed, name, side, 0, side)


def rows_of(seed: bytes, name: str, side: int, rows: Sequence[int]) -> Int8:
    """Some of its rows, int8 [len(rows), side]."""
    return np.concatenate([_drawn(seed, name, side, row, 1) for row in rows])


def _drawn(seed: bytes, name: str, side: int, first: int, count: int) -> Int8:
    key = int.from_bytes(seeds.derive(seed, name)[:16], "little")
    steps = side // (8 * _WORDS)  # of the counter, for each row; numpy counts on before it draws
    words = np.random.Philox(key=key, counter=first * steps).random_raw(count * steps * _WORDS)
    return words.astype("<u8", copy=False).view(np.int8).reshape(count, side)


def product(left: Int8, right: Int8) -> Int32:
    """Rows of `left` times rows of `right`, [m, n] and [l, n] → int32 [m, l], exactly, by float32 products that round nothing."""
    made = np.zeros((len(left), len(right)), np.int32)
    for column in range(0, left.shape[1], _BLOCK):
        columns = slice(column, column + _BLOCK)
        across = right[:, columns].astype(np.float32).T
        for row in range(0, len(left), _SLAB):
            slab = slice(row, row + _SLAB)
            made[slab] += (left[slab, columns].astype(np.float32) @ across).astype(np.int32)
    return made


class Tree:
    """The Merkle tree over the rows of a product, int32 [side, side]."""

    def __init__(self, product: Int32) -> None:
        require_side(len(product))
        self._rows = np.ascontiguousarray(product, "<i4")
        self._levels = [[_leaf(number, row.tobytes()) for number, row in enumerate(self._rows)]]
        while len(below := self._levels[-1]) > 1:
            self._levels.append([_node(*below[i : i + 2]) for i in range(0, len(below), 2)])

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def opening(self, rows: Sequence[int]) -> bytes:
        """What shows these rows to be of the root."""
        parts = []
        for row in rows:
            parts.append(self._rows[row].tobytes())
            parts += [level[row >> height ^ 1] for height, level in enumerate(self._levels[:-1])]
        return b"".join(parts)


def opening_bytes(side: int, rows: int) -> int:
    """Length of an opening of so many rows."""
    return rows * (4 * side + 32 * _height(side))


def require_opened(seed: bytes, side: int, root: bytes, rows: Sequence[int], opening: bytes) -> None:
    """Raises Malformed for an opening of another size, HashMismatch where a row is not the root's or not the product's."""
    if len(opening) != opening_bytes(side, len(rows)):
        raise Malformed(f"an opening of {len(opening)} bytes, not {opening_bytes(side, len(rows))}")
    right = product(rows_of(seed, "left", side, rows), matrix(seed, "right", side)).astype("<i4", copy=False)
    size = opening_bytes(side, 1)
    for number, row, expected in zip(range(len(rows)), rows, right, strict=True):
        part = opening[number * size : (number + 1) * size]
        data, path = part[: 4 * side], part[4 * side :]
        if _climbed(row, data, path) != root:
            raise HashMismatch(f"row {row} is not of the root that was committed to")
        if data != expected.tobytes():
            raise HashMismatch(f"row {row} is not the product's")


def require_side(side: object) -> int:
    """Raises Malformed for what is no side. Before anything of that size is made."""
    if not isinstance(side, int) or isinstance(side, bool) or side not in SIDES:
        raise Malformed(f"the side of a challenge's matrices is one of {SIDES}")
    return side


def operations(side: int) -> int:
    """Multiplications and additions of a product."""
    return 2 * side**3


def _height(side: int) -> int:
    return side.bit_length() - 1


def _climbed(row: int, data: bytes, path: bytes) -> bytes:
    found = _leaf(row, data)
    for height in range(len(path) // 32):
        sibling = path[32 * height : 32 * height + 32]
        found = _node(sibling, found) if row >> height & 1 else _node(found, sibling)
    return found


def _leaf(row: int, data: bytes) -> bytes:
    return hashlib.sha256(b"\0" + row.to_bytes(4, "big") + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
