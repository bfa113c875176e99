"""Attention over rows and over whole sequences is what its formula says, in both ways, for grouped heads, windows and caps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from node.engine import decoding_step, row_attention
from node.engine.decoding_step import Sharing, Step
from node.engine.kv_cache import Held
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


class Filled:
    """A cache in the midst of a step: rows (prompt, tokens of its own), with the keys and values that each has."""

    blocks: ClassVar = [8, 8, 16]

    def __init__(self, prompts: list[int], rows: list[tuple[int, int]], dtype: torch.dtype, value_size: int) -> None:
        sharing = Sharing([prompt for prompt, _ in rows], prompts, dtype, torch.device("cpu"))
        self.current = Step([own for _, own in rows], self.blocks, sharing)
        sizes = [(len(prompts), max(prompts)), *((len(rows), block) for block in self.blocks)]
        pairs = [
            (torch.randn(count, 2, size, 8, dtype=dtype), torch.randn(count, 2, size, value_size, dtype=dtype))
            for count, size in sizes
        ]
        self._stored = Held(pairs[0], pairs[1:])
        self.of_rows = [
            [
                torch.cat(
                    [pairs[0][part][prompt, :, : prompts[prompt]], torch.cat([p[part][row] for p in pairs[1:]], 1)[:, :own]], 1
                ).float()
                for part in (0, 1)
            ]
            for row, (prompt, own) in enumerate(rows)
        ]  # fmt: skip

    def stored(self, *_: Tensor) -> Held:
        return self._stored


ROWS = {
    "unequal": (
        [4, 19, 12],
        [(0, 1), (1, 30), (1, 3), (2, 17), (0, 4), (2, 4), (1, 9), (1, 30), (2, 2), (0, 6), (1, 11)],
    ),
    "groups": ([9, 9], [(row // 5, 13) for row in range(10)]),
    "alone": ([7], [(0, 1)]),
}


@pytest.mark.parametrize("how", CASES, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("of", ["float32", "float32, values of another size", "bfloat16"])
@pytest.mark.parametrize("in_vain", [0, 512])
def test_a_step_attends_to_each_rows_own_tokens_and_its_prompt(
    rows: str, heads: int, way: str, of: str, how: dict[str, Any], in_vain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many calls that takes."""
    monkeypatch.setattr(decoding_step, "_IN_VAIN", in_vain)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if of == "bfloat16" else torch.float32
    size = 4 if "another" in of else 8
    prompts, asked = ROWS[rows]
    cache = Filled(prompts, asked, dtype, size)
    query, new = torch.randn(len(asked), heads, 1, 8, dtype=dtype), torch.randn(len(asked), 2, 1, size, dtype=dtype)
    made, _ = WAYS[way](MODULE, query, new, new, None, **{row_attention.CACHE: cache}, **how)
    assert made.shape == (len(asked), 1, heads, size)
    assert made.dtype == dtype
    near = {"sdpa": 0.02, "eager": 0.05}[way] if dtype == torch.bfloat16 else 1e-5
    for row, (key, value) in enumerate(cache.of_rows):
        for head in range(heads):
            kept = head * 2 // heads
            expected = by_formula(query[row, head, 0].float(), key[kept], value[kept], key.shape[1] - 1, how)
            torch.testing.assert_close(made[row, 0, head].float(), expected, atol=near, rtol=near)


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
