"""The published package toploc 0.1.6 reads our proofs and we read its. It is built into an environment of its own, never imported.

What it once answered is in tests/vectors/toploc.json (`scripts/make-vectors --peer`) and checked in every run by test_vectors.py; here it
answers again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benches import peers
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.proofs import bits
from protocol import toploc
from protocol.constants import TOPLOC_CHUNK, TOPLOC_K
from protocol.errors import PreflightError
from tests.protocol.patterns import competing, drawn

pytestmark = [pytest.mark.peer, pytest.mark.long, pytest.mark.timeout(2400)]  # the first builds the package


class Package:
    """The peer, asked chunk by chunk: it has no short last chunks."""

    def __init__(self, conversation: peers.Conversation, folder: Path) -> None:
        self._conversation, self._file = conversation, folder / "chunk.npy"

    def prove(self, rows: toploc.Bits) -> list[bytes]:
        return [bytes.fromhex(self._ask("build", chunk)) for chunk in chunks(rows)]

    def score(self, rows: toploc.Bits, proofs: list[bytes]) -> list[list[float]]:
        return [
            self._ask("verify", chunk, proofs=[proof.hex()]) for chunk, proof in zip(chunks(rows), proofs, strict=True)
        ]

    def _ask(self, do: str, chunk: toploc.Bits, **more: Any) -> Any:
        np.save(self._file, chunk.reshape(1, -1))
        return self._conversation.ask(do=do, chunks=str(self._file), **more)[0]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    """Skips where it cannot be built, but never in CI."""
    try:
        interpreter = peers.python("toploc")
    except PreflightError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{error}: {error.hint}")
    with peers.Conversation(interpreter, peers.ROOT / "scripts/benches/toploc_peer.py") as conversation:
        yield Package(conversation, tmp_path_factory.mktemp("peer"))


def chunks(rows: toploc.Bits) -> list[toploc.Bits]:
    return [rows[i : i + TOPLOC_CHUNK] for i in range(0, len(rows), TOPLOC_CHUNK)]


def normal(tokens: int, hidden: int, seed: int) -> toploc.Bits:
    torch.manual_seed(seed)
    return bits(torch.randn(tokens, hidden))


def standing_out(tokens: int, hidden: int, seed: int) -> toploc.Bits:
    """Some more than k values of each chunk are larger than all others and differ from each other: no choice among ties."""
    random, rows = np.random.default_rng(seed), normal(tokens, hidden, seed) & 0xBFFF
    for chunk in chunks(rows):
        flat = chunk.reshape(-1)
        where = random.choice(flat.size, min(flat.size, TOPLOC_K + 20), replace=False)
        large = random.choice(np.arange(0x4000, 0x4400), where.size, replace=False)
        flat[where] = large | random.choice([0, 0x8000], where.size)
    return rows


SHAPES = [(1, 1), (1, 64), (1, 5120), (31, 128), (32, 128), (33, 1024), (63, 64), (65, 200), (64, 4096), (32, 5120)]


def require_the_same_score(own: toploc.ChunkScore, theirs: list[float]) -> None:
    never = 2.0**64  # what the package says where no exponent agrees
    assert [own.exponents, *(min(x, never) for x in (own.mantissa_mean, own.mantissa_median))] == theirs


@pytest.mark.parametrize(("tokens", "hidden"), SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_both_build_the_same_bytes_and_score_them_alike(package: Package, tokens: int, hidden: int, seed: int) -> None:
    rows = standing_out(tokens, hidden, seed)
    own, theirs = toploc.prove([rows])[0], package.prove(rows)
    assert own == theirs
    shifted = rows ^ np.where(np.arange(rows.size).reshape(rows.shape) % 3 == 0, 1, 0).astype(np.uint16)
    other = standing_out(tokens, hidden, seed + 100)
    for seen in (rows, shifted, other):
        pairs = zip(toploc.score([seen], [theirs])[0], package.score(seen, own), strict=True)
        for chunk, (found, answer) in zip(chunks(seen), pairs, strict=True):
            magnitudes = np.sort(chunk.reshape(-1) & 0x7FFF)[::-1]
            if magnitudes.size <= TOPLOC_K or magnitudes[TOPLOC_K - 1] > magnitudes[TOPLOC_K]:
                require_the_same_score(found, answer)
            else:
                assert seen is shifted, "only there equal magnitudes may compete for the last places"


@given(
    st.integers(1, 65), st.sampled_from([1, 3, 64, 129, 1024, 4096]), st.integers(1, 0x7F80), st.integers(0, 2**32 - 1)
)
@settings(max_examples=200, deadline=None)
def test_bytes_are_equal_wherever_nothing_ties_for_the_last_place_and_both_read_each_other_everywhere(
    package: Package, tokens: int, hidden: int, levels: int, seed: int
) -> None:
    """Few levels make many ties. Where equal magnitudes compete for the last places the package takes any, ours the lowest indices: so many points may
    differ, and no more."""
    rows = drawn(tokens, hidden, levels, seed)
    own, theirs = toploc.prove([rows])[0], package.prove(rows)
    read, answers = toploc.score([rows], [theirs])[0], package.score(rows, own)
    for i, chunk in enumerate(chunks(rows)):
        if (most := competing(chunk)) == 0:
            assert own[i] == theirs[i]
            assert [read[i].exponents, read[i].signs, *answers[i]] == [0, 0, 0, 0, 0]
        assert max(read[i].exponents, read[i].signs, answers[i][0]) <= most


@pytest.mark.parametrize(("tokens", "hidden"), [(1, 5120), (33, 1024), (32, 4096)])
def test_equal_magnitudes_cost_no_more_points_than_there_are_of_them(
    package: Package, tokens: int, hidden: int
) -> None:
    """Normal numbers in bf16 are full of ties, and among those that compete for the last places the package takes any."""
    rows = normal(tokens, hidden, seed=5)
    read = toploc.score([rows], [package.prove(rows)])[0]
    answers = package.score(rows, toploc.prove([rows])[0])
    for chunk, own, (mismatches, *_) in zip(chunks(rows), read, answers, strict=True):
        assert max(own.exponents, mismatches) <= competing(chunk)
