"""Attention over rows and over whole sequences is what its formula says, in both ways, for grouped heads, windows and caps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from node.engine import row_attention
from node.engine.kv_cache import Step
from protocol.errors import ConfigError

WAYS = {"sdpa": row_attention._fused, "eager": row_attention._plain}
MODULE: Any = SimpleNamespace()
CASES = [
    {},
    {"sliding_window": 5},
    {"sliding_window": 500},
    {"softcap": 2.0},
    {"sliding_window": 5, "softcap": 2.0},
    {"scaling": 0.7},
]


def by_formula(query: Tensor, key: Tensor, value: Tensor, last: int, how: dict[str, Any]) -> Tensor:
    """One head's query [D] at place `last` over keys and values [T, D]."""
    first = max(0, last + 1 - how.get("sliding_window", 10**6))
    scores = key[first : last + 1] @ query * how.get("scaling", len(query) ** -0.5)
    if cap := how.get("softcap"):
        scores = cap * torch.tanh(scores / cap)
    return scores.softmax(0) @ value[first : last + 1]


@pytest.mark.parametrize("how", CASES, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("heads", [2, 6])
def test_a_step_attends_to_each_rows_own_tokens(heads: int, way: str, how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    lengths = [1, 30, 3, 17, 4, 4, 9, 30, 2, 6, 11]
    query = torch.randn(len(lengths), heads, 1, 8)
    key, value = torch.randn(len(lengths), 2, 30, 8), torch.randn(len(lengths), 2, 30, 4)
    step = Step(lengths, torch.float32, torch.device("cpu"))
    made, _ = WAYS[way](MODULE, query, key, value, None, **{row_attention.STEP: step}, **how)
    assert made.shape == (len(lengths), 1, heads, 4)
    for row, length in enumerate(lengths):
        for head in range(heads):
            of = head * 2 // heads
            expected = by_formula(query[row, head, 0], key[row, of], value[row, of], length - 1, how)
            torch.testing.assert_close(made[row, 0, head], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("how", CASES, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("heads", [2, 6])
def test_a_sequence_attends_to_what_came_before(heads: int, way: str, how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, heads, 13, 8), torch.randn(3, 2, 13, 8), torch.randn(3, 2, 13, 8)
    made, _ = WAYS[way](MODULE, query, key, value, None, **how)
    assert made.shape == (3, 13, heads, 8)
    for row in range(3):
        for head in range(heads):
            for at in range(13):
                of = head * 2 // heads
                expected = by_formula(query[row, head, at], key[row, of], value[row, of], at, how)
                torch.testing.assert_close(made[row, at, head], expected, atol=1e-5, rtol=1e-5)


def test_a_cache_without_a_step_is_an_error_and_no_guess() -> None:
    query, key = torch.randn(2, 2, 1, 8), torch.randn(2, 2, 5, 8)
    with pytest.raises(RuntimeError, match="was not told how far its rows reach"):
        row_attention._fused(MODULE, query, key, key, None)


@pytest.mark.parametrize("name", ["s_aux", "position_bias"])
def test_scores_with_something_added_are_refused(name: str) -> None:
    query = torch.randn(2, 2, 3, 8)
    with pytest.raises(NotImplementedError, match="adds something to its scores"):
        row_attention._fused(MODULE, query, query, query, None, **{name: torch.zeros(2)})


def test_a_way_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="attention 'flex' is not computed here") as told:
        row_attention.install(MODULE, "flex")
    assert told.value.hint == "these ways are: sdpa, eager"
