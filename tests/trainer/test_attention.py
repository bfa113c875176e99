"""Rows too wide for a mask are attended piece by piece, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer import small
from trainer.learning import scorer
from trainer.learning.attention import MASK_ENTRIES_MAX, attend
from trainer.learning.learner import Learner
from trainer.learning.packing import PackedRows, TrainingSample, pack

HEADS, KEY_HEADS, DIMENSIONS = 4, 2, 8
MODULE = SimpleNamespace(num_key_value_groups=HEADS // KEY_HEADS, is_causal=True)


def samples_of(sizes: list[tuple[int, int, int]]) -> list[TrainingSample]:
    """(number of the prompt, its length, the completion's)"""
    rng = np.random.default_rng(0)
    return [
        small.sample(
            np.random.default_rng((which, length)).integers(2, small.VOCABULARY, length),
            rng.integers(2, small.VOCABULARY, completion),
        )
        for which, length, completion in sizes
    ]


def attended(rows: PackedRows, **how: Any) -> tuple[Tensor, Tensor]:
    """What attention gives, and the gradient of a sum of it by the values."""
    generator = torch.Generator().manual_seed(0)
    r, w = rows.ids.shape
    query = torch.randn(r, HEADS, w, DIMENSIONS, generator=generator)
    key, value = (torch.randn(r, KEY_HEADS, w, DIMENSIONS, generator=generator) for _ in range(2))
    weight = torch.randn(r, w, HEADS, DIMENSIONS, generator=generator) * (rows.unit >= 0)[:, :, None, None]
    out, _ = attend(MODULE, query, key, value.requires_grad_(), scaling=0.3, **how)
    weighed = out * weight  # padding counts for nothing
    weighed.sum().backward()
    assert value.grad is not None
    return weighed.detach(), value.grad


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=12),
    width=st.integers(8, 60),
)
def test_pieces_are_the_mask(sizes: list[tuple[int, int, int]], width: int) -> None:
    for rows in pack(samples_of(sizes), width, 3):
        masked = attended(rows, attention_mask=rows.mask)
        pieces = attended(rows, attention_mask=None, layout=rows.layout)
        for one, other in zip(masked, pieces, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_learner_computes_the_same_of_wide_rows(
    new_learner: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    groups = [small.group(number) for number in range(6)]
    masked = new_learner(small.settings(activation_checkpointing=checkpointing, lr=1e-3))
    seen = masked.learn(groups, 0)
    monkeypatch.setattr(scorer, "MASK_ENTRIES_MAX", 0)
    pieces = new_learner(small.settings(activation_checkpointing=checkpointing, lr=1e-3))
    monkeypatch.setattr(PackedRows, "mask", property(lambda self: pytest.fail("a mask was made")))
    found = pieces.learn(groups, 0)
    assert found.loss == pytest.approx(seen.loss, rel=1e-4, abs=1e-6)
    assert found.gradient_norm == pytest.approx(seen.gradient_norm, rel=1e-4)
    assert found.entropy == pytest.approx(seen.entropy, rel=1e-5)


def test_a_row_too_wide_for_a_mask_gets_none(
    new_learner: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    (rows,) = pack(samples_of([(0, 100, 5_700)]), 5_800, 1)
    assert rows.mask_entries > MASK_ENTRIES_MAX
    monkeypatch.setattr(PackedRows, "mask", property(lambda self: pytest.fail("a mask was made")))
    with torch.no_grad():
        logprobs, _ = new_learner(small.settings()).policy(rows)
    assert torch.isfinite(logprobs).all()
