"""Rows too wide for a mask are attended piece by piece, with the same result."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer import small
from trainer.learning import attention, scorer
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


def attended(rows: PackedRows, **how: Any) -> tuple[Tensor, ...]:
    """What attention gives, and the gradients of a sum of it by queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    r, w = rows.ids.shape
    given = [torch.randn(r, heads, w, DIMENSIONS, generator=generator) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    weight = torch.randn(r, w, HEADS, DIMENSIONS, generator=generator) * (rows.unit >= 0)[:, :, None, None]
    out, _ = attend(MODULE, *(tensor.requires_grad_() for tensor in given), scaling=0.3, **how)
    weighed = out * weight  # padding counts for nothing
    return weighed.detach(), *torch.autograd.grad(weighed.sum(), given)


def exactly(rows: PackedRows, window: int | None, cap: float | None) -> tuple[Tensor, ...]:
    """The same in so many words: a token sees its unit's prompt and its own completion up to itself, the last `window` of them."""

    def eager(module: Any, query: Tensor, key: Tensor, value: Tensor, *, scaling: float) -> tuple[Tensor, None]:
        key, value = (few.repeat_interleave(HEADS // KEY_HEADS, 1) for few in (key, value))
        scores = query @ key.transpose(2, 3) * scaling
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        unit, branch, position = rows.unit, rows.branch, rows.positions
        r, w = unit.shape
        for row, at, seen in itertools.product(range(r), range(w), range(w)):
            alike = unit[row, at] == unit[row, seen] and branch[row, seen] in (0, branch[row, at])
            near = window is None or position[row, at] - position[row, seen] < window
            if not (alike and near and seen <= at):
                scores[row, :, at, seen] = -1e9
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    with mock.patch.dict(globals(), attend=eager):
        return attended(rows)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=8),
    width=st.integers(8, 60),
    window=st.sampled_from([None, 1, 3, 8]),
    cap=st.sampled_from([None, 0.5]),
)
def test_pieces_are_the_mask(
    sizes: list[tuple[int, int, int]], width: int, window: int | None, cap: float | None
) -> None:
    how = {"sliding_window": window, "softcap": cap}
    for rows in pack(samples_of(sizes), width, 3):
        windowed = {} if window is None else {"windowed": {window: rows.within(window)}}
        masked = attended(rows, attention_mask=rows.mask, **windowed, **how)
        with mock.patch.object(attention, "_BLOCK", 5):
            pieces = attended(rows, attention_mask=None, layout=rows.layout, **how)
        for one, other in zip(masked, pieces, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("cap", [None, 0.5])
def test_masks_windows_and_caps_are_what_they_say(window: int | None, cap: float | None) -> None:
    (rows,) = pack(samples_of([(0, 6, 7), (0, 6, 3), (1, 2, 9), (2, 9, 1)]), 20, 3)
    windowed = {} if window is None else {"windowed": {window: rows.within(window)}}
    found = attended(rows, attention_mask=rows.mask, sliding_window=window, softcap=cap, **windowed)
    for one, other in zip(found, exactly(rows, window, cap), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("others", [None, {5: torch.ones(1, 1, 13, 13, dtype=torch.bool)}])
def test_a_window_without_its_mask_is_an_error(others: dict[int, Tensor] | None) -> None:
    (rows,) = pack(samples_of([(0, 6, 7)]), 20, 1)
    with pytest.raises(ValueError, match="a layer has a window of 4 tokens"):
        attended(rows, attention_mask=rows.mask, sliding_window=4, windowed=others)


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
