"""Whose groups make a batch: no single contributor should dominate a step.

A cap holds per node key, which costs a stake; it does not see that two nodes belong to one operator.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Supplied(Protocol):
    @property
    def node(self) -> str: ...


G = TypeVar("G", bound=Supplied)


def cap(count: int, share: float, nodes: int) -> int:
    """Groups that one of `nodes` may supply to a batch of `count`: never fewer than an equal part."""
    return math.ceil(count * max(share, 1 / max(1, nodes)))


def least_cap(groups: Sequence[Supplied], count: int) -> int | None:
    """The smallest cap per node with which `groups` fill a batch of `count`; None where there are too few."""
    if len(groups) < count:
        return None
    supply = sorted(Counter(group.node for group in groups).values())
    missing = count
    for position, size in enumerate(supply):
        left = len(supply) - position
        if size * left >= missing:
            return math.ceil(missing / left)
        missing -= size
    return None


def pick(groups: Sequence[G], count: int, cap: int) -> list[G]:
    """The first `count` of `groups`, at most `cap` of each node."""
    taken: Counter[str] = Counter()
    batch: list[G] = []
    for group in groups:
        if len(batch) < count and taken[group.node] < cap:
            taken[group.node] += 1
            batch.append(group)
    return batch
