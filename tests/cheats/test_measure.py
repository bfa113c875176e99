"""The bench's own arithmetic: tails and how many tokens a small shift needs, against known distributions."""

from __future__ import annotations

import numpy as np
import pytest
from benches.cheats import Margins, tail_above


@pytest.mark.parametrize(("limit", "share"), [(8.0, np.exp(-8.0)), (12.0, np.exp(-12.0))])
def test_an_exponential_tail_is_continued(limit: float, share: float) -> None:
    values = np.random.default_rng(0).exponential(size=100_000)
    assert share / 5 < tail_above(values, limit) < share * 5


def test_a_heavy_tail_is_not_taken_for_a_light_one() -> None:
    values = np.random.default_rng(0).pareto(5.0, size=100_000)
    assert tail_above(values, 30.0) > 31.0**-5 / 10


def test_a_handful_of_equal_values_is_a_tail_too() -> None:
    values = [0.0] * 9_999 + [1 / 128]
    assert 0 < tail_above(values, 0.05) < 1e-6
    assert tail_above([0.0] * 10_000, 0.05) == 0


def test_the_tokens_needed_tell_shifted_means_apart() -> None:
    """Means over so many tokens: none of many honest ones lies where 99 of 100 of the cheat's do."""
    rng, honest = np.random.default_rng(0), Margins(0.01, 0.05)
    cheats = rng.normal(0.015, 0.06, 100_000)
    needed = honest.tokens_needed(cheats)
    assert needed is not None
    apart = 0.01 + 5.9978 * 0.05 / np.sqrt(needed)  # the normal quantile of 1 - 1e-9
    means = rng.choice(cheats, (2_000, int(needed))).mean(1)
    assert 0.98 < (means > apart).mean() < 1
    assert honest.tokens_needed(rng.normal(0.005, 0.01, 1000)) is None
