"""Who makes way at the cap of connections, as arithmetic: connections that only look like some."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.p2p.node import Node


class Connections:
    """A host at its cap, with connections from these addresses, the oldest first."""

    def __init__(self, *addresses: str, busy: frozenset[int] = frozenset(), kept: frozenset[int] = frozenset()) -> None:
        self.cut: list[int] = []
        self.all = [self._one(n, address, n in busy, n in kept) for n, address in enumerate(addresses)]
        self.limits = SimpleNamespace(connections=len(addresses) - 1, residents=0.75)
        self.counts: Counter[str] = Counter()

    def connections(self) -> list[Any]:
        return self.all

    def _one(self, number: int, address: str, busy: bool, kept: bool) -> Any:
        muxer = SimpleNamespace(is_dead=False, cut=lambda: self.cut.append(number))
        return SimpleNamespace(
            outbound=False, since=number, used=number, busy=int(busy), kept=kept, remote=address, muxer=muxer
        )

    def thinned(self) -> list[int]:
        Node._thin_out(self, self.all[-1])  # type: ignore[arg-type]
        return self.cut


FLOOD = ("8.8.8.8",) * 4


def test_an_address_whose_connections_all_look_busy_makes_way_before_everybody_else() -> None:
    house = Connections("1.1.1.1", "2.2.2.2", *FLOOD, "3.3.3.3", busy=frozenset({2, 3, 4, 5}))
    assert house.thinned()[0] in (2, 3, 4, 5)


def test_of_one_address_an_idle_connection_makes_way_before_a_busy_one() -> None:
    assert Connections("1.1.1.1", *FLOOD, "3.3.3.3", busy=frozenset({1, 2, 4})).thinned() == [3]


@pytest.mark.parametrize("busy", [frozenset[int](), frozenset({3})])
def test_of_addresses_with_one_each_an_idle_visitor_makes_way(busy: frozenset[int]) -> None:
    house = Connections("1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4", "5.5.5.5", busy=busy)
    assert house.thinned() == [4 if 3 in busy else 3]


def test_what_is_kept_never_makes_way() -> None:
    assert Connections(*FLOOD, "3.3.3.3", kept=frozenset({0, 1, 2, 3})).thinned() == [4]
