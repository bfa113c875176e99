"""No node dominates a batch while others can supply it, and one node alone is never waited for in vain."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.rollouts.share import cap, least_cap, pick


@dataclass(frozen=True)
class Of:
    node: str


def groups(**supply: int) -> list[Of]:
    return [Of(node) for node, count in supply.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("count", "share", "nodes", "expected"),
    [
        (16, 0.5, 4, 8),
        (16, 0.5, 2, 8),
        (16, 0.5, 1, 16),
        (16, 0.1, 4, 4),
        (5, 0.5, 9, 3),
        (16, 1.0, 7, 16),
        (16, 0.5, 0, 16),
    ],
)
def test_the_cap_is_the_share_and_never_less_than_an_equal_part(
    count: int, share: float, nodes: int, expected: int
) -> None:
    assert cap(count, share, nodes) == expected


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20), min_size=1), st.integers(1, 60))
def test_the_least_cap_fills_the_batch_and_no_smaller_one_does(supply: dict[str, int], count: int) -> None:
    offered = groups(**supply)
    least = least_cap(offered, count)
    if sum(supply.values()) < count:
        assert least is None
        return
    assert least is not None
    assert len(pick(offered, count, least)) == count
    assert len(pick(offered, count, least - 1)) < count


def test_the_first_ones_are_picked() -> None:
    offered = [Of("a"), Of("a"), Of("b"), Of("a"), Of("b")]
    assert pick(offered, 3, 2) == [Of("a"), Of("a"), Of("b")]
    assert pick(offered, 3, 1) == [Of("a"), Of("b")]
