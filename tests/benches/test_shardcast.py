"""The broadcast bench runs and says what it measured; its figures are for a quiet machine."""

from __future__ import annotations

import pytest
from benches import Bench, shardcast


@pytest.mark.long
def test_a_chain_and_a_fan_out_are_measured() -> None:
    bench = Bench("shardcast")
    shardcast.chains(bench, 8 << 20, longest=1)
    shardcast.fan_out(bench, 8 << 20, serving=True, relays=1, clients=2)
    shown = {row.name: row.ours for row in bench.rows}
    assert shown["one hop"] > 0.9, "a line of limited rate takes at least that long"
    assert 0.9 < shown["1 → 1 → 2, nodes serving: sent by the origin"] < 3.1
