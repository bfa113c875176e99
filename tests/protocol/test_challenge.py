"""A challenge's product is exact and the same everywhere, and what opens to a root is that product and nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol import challenge, seeds
from protocol.challenge import ROWS, SIDES, Tree, matrix, opening_bytes, product, require_opened, require_side, rows_of
from protocol.errors import HashMismatch, Malformed
from protocol.hub import challenges as wire

SEED = hashlib.sha256(b"a challenge").digest()
CASES = json.loads((Path(__file__).parent.parent / "vectors/challenge.json").read_text())
PICKED = [0, 3, 7, 31, 32, 40, 62, 63]


def tree_of(seed: bytes, side: int) -> Tree:
    return Tree(product(matrix(seed, "left", side), matrix(seed, "right", side)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"side{case['side']}")
def test_the_vectors_hold(case: dict[str, Any]) -> None:
    seed = challenge.seed(
        chain_id=case["chain_id"], contract=bytes.fromhex(case["contract"][2:]), run=case["run"],
        node=bytes.fromhex(case["node"][2:]), nonce=bytes.fromhex(case["nonce"]),
    )  # fmt: skip
    side = case["side"]
    left, right = (matrix(seed, name, side) for name in ("left", "right"))
    made = product(left, right)
    tree = Tree(made)
    assert seed.hex() == case["seed"]
    assert left[0, :16].tolist() == case["left_begins"]
    assert right[-1, -16:].tolist() == case["right_ends"]
    assert made[-1, -4:].tolist() == case["product_ends"]
    assert tree.root.hex() == case["root"]
    opening = tree.opening(case["rows"])
    assert hashlib.sha256(opening).hexdigest() == case["opening_sha256"]
    require_opened(seed, side, tree.root, case["rows"], opening)


def test_matrices_are_the_words_of_philox_as_its_paper_has_it() -> None:
    """Philox4x64-10 (Salmon et al., SC 2011), written out: another language needs no numpy to answer."""
    mask, key = 2**64 - 1, int.from_bytes(seeds.derive(SEED, "left")[:16], "little")

    def words(counter: int) -> list[int]:
        c0, c1, c2, c3 = (counter >> 64 * i & mask for i in range(4))
        k0, k1 = key & mask, key >> 64
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
            c0, c1, c2, c3 = b >> 64 ^ c1 ^ k0, b & mask, a >> 64 ^ c3 ^ k1, a & mask
            k0, k1 = k0 + 0x9E3779B97F4A7C15 & mask, k1 + 0xBB67AE8584CAA73B & mask
        return [c0, c1, c2, c3]

    expected = b"".join(word.to_bytes(8, "little") for counter in range(1, 9) for word in words(counter))
    assert matrix(SEED, "left", 64)[:4].tobytes() == expected


@pytest.mark.parametrize("side", [64, 256, 2048])
def test_products_are_exact_also_of_the_largest_values(side: int) -> None:
    """The sums of -128 · -128 are the largest there are: a block more and float32 would round them."""
    rng = np.random.default_rng(1)
    left, right = (rng.integers(-128, 128, (8, side)).astype(np.int8) for _ in range(2))
    left[0] = right[0] = -128
    left[1], right[1] = 127, -128
    left[2], right[2] = 127, 127
    right[2, 0] = 126  # the sum is odd: beyond 2²⁴ float32 has no such number
    assert (product(left, right) == left.astype(np.int64) @ right.astype(np.int64).T).all()


def test_a_row_is_drawn_alone_as_with_all_others() -> None:
    assert (rows_of(SEED, "left", 128, [127, 0, 5]) == matrix(SEED, "left", 128)[[127, 0, 5]]).all()


def test_an_honest_opening_passes() -> None:
    for side in (64, 512):
        tree, rows = tree_of(SEED, side), list(range(0, side, side // 8))
        assert len(tree.opening(rows)) == opening_bytes(side, 8)
        require_opened(SEED, side, tree.root, rows, tree.opening(rows))


def test_a_product_that_differs_in_one_row_is_found_where_that_row_is_opened() -> None:
    made = product(matrix(SEED, "left", 64), matrix(SEED, "right", 64))
    made[40, 63] += 1
    tree = Tree(made)
    require_opened(SEED, 64, tree.root, [0, 41], tree.opening([0, 41]))
    with pytest.raises(HashMismatch, match="row 40 is not the product's"):
        require_opened(SEED, 64, tree.root, [0, 40], tree.opening([0, 40]))


def test_the_root_of_another_challenge_is_worth_nothing() -> None:
    other = tree_of(bytes(32), 64)
    with pytest.raises(HashMismatch, match="not the product's"):
        require_opened(SEED, 64, other.root, PICKED, other.opening(PICKED))


@pytest.mark.parametrize("at", range(0, opening_bytes(64, 1), 29))
def test_no_byte_of_an_opening_can_be_changed(at: int) -> None:
    tree = tree_of(SEED, 64)
    opening = bytearray(tree.opening([5]))
    opening[at] ^= 1
    with pytest.raises(HashMismatch, match="not of the root"):
        require_opened(SEED, 64, tree.root, [5], bytes(opening))


def test_rows_computed_after_the_commitment_do_not_fit_it() -> None:
    """Whoever commits to nothing and computes the rows that are asked for has no path for them."""
    honest = tree_of(SEED, 64)
    with pytest.raises(HashMismatch, match="not of the root"):
        require_opened(SEED, 64, bytes(32), PICKED, honest.opening(PICKED))


def test_rows_in_another_order_are_refused() -> None:
    tree = tree_of(SEED, 64)
    with pytest.raises(HashMismatch):
        require_opened(SEED, 64, tree.root, [1, 2], tree.opening([2, 1]))


@pytest.mark.parametrize("size", [0, 1, opening_bytes(64, 8) - 1, opening_bytes(64, 8) + 1, opening_bytes(128, 8)])
def test_an_opening_of_another_size_is_refused_before_anything_is_computed(size: int) -> None:
    with pytest.raises(Malformed, match="bytes"):
        require_opened(SEED, 64, bytes(32), PICKED, bytes(size))


@pytest.mark.parametrize("side", [0, -64, 65, 8192, 2**40, 64.0, "64", True, None])
def test_only_the_sides_of_the_protocol_are_made(side: object) -> None:
    with pytest.raises(Malformed):
        require_side(side)


def test_the_largest_opening_fits_a_message() -> None:
    size = len(wire.opening_text(bytes(opening_bytes(SIDES[-1], ROWS))))
    assert size + wire.SHORT_BYTES_MAX < wire.MESSAGE_BYTES_MAX


NAME = "ab" * 32
WRONG = {
    "nothing": b"", "no JSON": b"\xff\xfe", "a list": b"[]", "no kind": b"{}",
    "not canonical": b'{"say": "ready", "challenge": "' + NAME.encode() + b'"}',
    "another kind": b'{"challenge":"' + NAME.encode() + b'","say":"slash"}',
    "a kind that is a list": b'{"challenge":"' + NAME.encode() + b'","say":[]}',
    "a field too many": b'{"challenge":"' + NAME.encode() + b'","say":"ready","side":64}',
    "a field too few": b'{"challenge":"' + NAME.encode() + b'","say":"ask"}',
    "no name": b'{"challenge":"abc","say":"ready"}',
    "a name that is a number": b'{"challenge":7,"say":"ready"}',
    "a long root": b'{"challenge":"' + NAME.encode() + b'","root":"' + b"0" * 2000 + b'","say":"root"}',
    "brackets": b"[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_garbage_is_no_message(data: bytes) -> None:
    with pytest.raises(Malformed):
        wire.read(data)


@pytest.mark.parametrize(
    "rows", [None, [], list(range(7)), list(range(9)), [*range(7), 64], [*range(7), -1], [*range(7), "1"], [*range(7), True]]
)  # fmt: skip
def test_only_rows_that_exist_are_opened_and_only_so_many(rows: object) -> None:
    with pytest.raises(Malformed):
        wire.rows_of({"rows": rows}, 64)


@pytest.mark.parametrize("text", [None, 7, "", "A", "!" * 4 * -(-opening_bytes(64, ROWS) // 3), "é" * 9])
def test_an_opening_is_base64_of_its_length(text: object) -> None:
    with pytest.raises(Malformed):
        wire.opening_of({"opening": text}, 64)
