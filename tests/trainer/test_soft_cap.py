"""Attention with a soft cap, block by block, is attention with a soft cap."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainer.learning import soft_cap
from trainer.learning.soft_cap import capped

ROWS, HEADS, KEY_HEADS, QUERIES, KEYS, SIZE = 2, 6, 2, 7, 11, 8
SCALE, CAP = 0.4, 0.8


def given() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (ROWS, HEADS, QUERIES, SIZE), (ROWS, KEY_HEADS, KEYS, SIZE), (ROWS, KEY_HEADS, KEYS, SIZE)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, cap: float | None) -> Tensor:
    key, value = (few.repeat_interleave(HEADS // KEY_HEADS, 1) for few in (key, value))
    scores = query @ key.transpose(2, 3) * SCALE
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    return scores.masked_fill(~mask, -1e9).softmax(-1) @ value


def padded() -> Tensor:
    """[ROWS, 1, QUERIES, KEYS]: causal, and of the second row the first three keys are padding."""
    mask = torch.ones(ROWS, 1, QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
    mask[1, :, :, :3] = False
    return mask


@pytest.mark.parametrize("cap", [None, CAP])
@pytest.mark.parametrize("kind", ["bool", "added", "causal"])
@pytest.mark.parametrize("most", [1, 3 * ROWS * HEADS * KEYS, 1 << 25])
def test_blocks_are_the_whole(cap: float | None, kind: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soft_cap, "SCORES_MAX", most)
    mask = padded() if kind != "causal" else torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
    asked = {"bool": mask, "added": torch.zeros(mask.shape).masked_fill(~mask, -1e9), "causal": None}[kind]
    inputs = given()
    found, expected = capped(*inputs, asked, scale=SCALE, cap=cap), plain(*inputs, mask, cap)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(*(torch.autograd.grad(out.square().sum(), inputs) for out in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
