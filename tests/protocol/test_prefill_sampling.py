"""Samples are drawn by secrets that were committed to before, and anyone can check it afterwards."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import pytest

from protocol import prefill_sampling
from protocol.errors import HashMismatch, Malformed, ProtocolViolation
from protocol.verdict import Details, Outcome
from tests.protocol.test_verdict import details

MASTER, WINDOW, BLOCK = b"m" * 32, 86_400, b"\x07" * 32
SAMPLES, SHARE = 64, 0.25
NOW = 1_800_000_000


def accept(time: int = NOW, master: bytes = MASTER, more: int = 0) -> Details:
    """An honest validator's receipt for what it drew at a block time, and for `more` samples besides."""
    secret = prefill_sampling.secret(master, prefill_sampling.period(time, WINDOW))
    drawn = prefill_sampling.rows(secret, bytes.fromhex(details().submission), BLOCK, SAMPLES, SHARE)
    return details(
        outcome=int(Outcome.ACCEPT), rule="", samples=f"{sum(1 << row for row in drawn) | more:064x}", time=time,
        prefill=prefill_sampling.commitment(secret).hex(),
    )  # fmt: skip


def test_the_next_periods_receipts_reveal_the_secret_and_prove_the_draw() -> None:
    made, later = accept(), accept(NOW + WINDOW)
    prefill_sampling.require_chained(made, later, WINDOW)
    prefill_sampling.require_drawn(made, bytes.fromhex(later.prefill), BLOCK, SAMPLES, SHARE)
    prefill_sampling.require_drawn(accept(more=1 << 63), bytes.fromhex(later.prefill), BLOCK, SAMPLES, SHARE)


def test_a_first_receipt_commits_to_all_secrets_that_follow() -> None:
    prefill_sampling.require_chained(accept(), accept(NOW + 300 * WINDOW), WINDOW)
    prefill_sampling.require_chained(accept(NOW + WINDOW), accept(), WINDOW)
    with pytest.raises(HashMismatch):
        prefill_sampling.require_chained(accept(), accept(NOW + 300 * WINDOW, master=b"n" * 32), WINDOW)
    with pytest.raises(HashMismatch):
        prefill_sampling.require_chained(accept(), accept(NOW, master=b"n" * 32), WINDOW)


def test_who_leaves_out_what_it_drew_is_found_out() -> None:
    made, revealed = accept(), bytes.fromhex(accept(NOW + WINDOW).prefill)
    drawn = int(made.samples, 16)
    lazy = replace(made, samples=f"{drawn & (drawn - 1):064x}")
    with pytest.raises(ProtocolViolation, match="drawn and not checked"):
        prefill_sampling.require_drawn(lazy, revealed, BLOCK, SAMPLES, SHARE)
    with pytest.raises(ProtocolViolation, match="drawn and not checked"):
        prefill_sampling.require_drawn(made, revealed, b"\x08" * 32, SAMPLES, SHARE)


def test_only_the_secret_that_was_named_counts() -> None:
    with pytest.raises(HashMismatch):
        prefill_sampling.require_drawn(accept(), b"x" * 32, BLOCK, SAMPLES, SHARE)
    with pytest.raises(Malformed):
        prefill_sampling.require_drawn(details(), bytes(32), BLOCK, SAMPLES, SHARE)
    with pytest.raises(Malformed):
        prefill_sampling.require_chained(details(), accept(), WINDOW)


def test_a_revealed_secret_tells_nothing_of_later_ones() -> None:
    secrets = [prefill_sampling.secret(MASTER, number) for number in range(100, 104)]
    assert len(set(secrets)) == 4
    for earlier, later in pairwise(secrets):
        assert hashlib.sha256(later).digest() == earlier, "backwards only"
        assert hashlib.sha256(earlier).digest() != later


def test_a_share_is_drawn_and_never_nothing() -> None:
    sizes = [len(prefill_sampling.rows(bytes([i]) * 32, b"w" * 32, BLOCK, SAMPLES, SHARE)) for i in range(200)]
    assert 14 < sum(sizes) / len(sizes) < 18
    assert all(len(prefill_sampling.rows(bytes([i]) * 32, b"w" * 32, BLOCK, 4, 0.001)) == 1 for i in range(50))
    assert prefill_sampling.rows(b"s", b"w" * 32, BLOCK, 5, 1.0) == [0, 1, 2, 3, 4]
