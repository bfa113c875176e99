"""Honest machines, whose floats differ in the last places, agree on a reward."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.reward import STEP, canonical

VECTORS = json.loads((Path(__file__).parent.parent / "vectors/rewards.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["score"])
def test_vectors(vector: dict[str, str]) -> None:
    assert canonical(float(vector["score"])) * 2**20 == int(vector["steps"])


def test_a_sum_of_tenths_is_one() -> None:
    assert sum([0.1] * 10) != 1
    assert canonical(sum([0.1] * 10)) == 1


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(-8, 8))
@settings(deadline=None)
def test_machines_that_differ_in_the_last_places_agree(top: int, bottom: int, places: int) -> None:
    """Every fraction of small numbers; those half-way between two points may come out as neighbours."""
    score = min(top, bottom) / bottom
    other = score
    for _ in range(abs(places)):
        other = math.nextafter(other, math.inf if places > 0 else -math.inf)
    half_way = (score * 2**21) % 2 == 1
    assert abs(canonical(score) - canonical(other)) <= (STEP if half_way else 0)


@given(st.floats())
@settings(deadline=None)
def test_a_rollout_file_holds_it_exactly(score: float) -> None:
    found = canonical(score)
    assert 0 <= found <= 1
    assert float(np.float32(found)) == found == canonical(found)
