"""The calibration of noise: on completions whose noise is known."""

from __future__ import annotations

import numpy as np
import pytest

from node.judging.calibration import noise
from node.judging.calibration.noise import NoiseMeasurements
from protocol.constants import NOISE_MAX, RIVALS
from protocol.sampling import TokenScores

RNG = np.random.default_rng(11)
PAIR = ("one", "another")


def completion(spread: float, tokens: int, *, heavy: bool = False) -> TokenScores:
    """Near ties as dense as a policy's are; the rival wins where rounding is worth more than the gap."""
    gaps = np.full((tokens, RIVALS), np.inf)
    gaps[:, 0] = RNG.exponential(2.0, tokens)
    gaps[gaps > 1] = np.inf
    deviates = RNG.standard_t(4, tokens) / np.sqrt(2) if heavy else RNG.normal(size=tokens)
    is_beaten = spread * deviates > gaps[:, 0]
    margins = np.where(is_beaten, gaps[:, 0], 0.0)
    none = np.zeros(tokens)
    return TokenScores(margins, none, none.astype(np.int64), none, gaps)


def bound_of(spread: float, completions: int, tokens: int, **how: bool) -> noise.NoiseBound:
    found = NoiseMeasurements()
    for unit in range(completions):
        found.add(PAIR, unit, completion(spread, tokens, **how), 0.5)
    return found.bounds()[PAIR]


@pytest.mark.parametrize(("spread", "tokens"), [(0.02, 100), (0.2, 8), (0.002, 100)])
@pytest.mark.parametrize("heavy", [False, True])
def test_the_bound_is_hardly_ever_below_the_truth(spread: float, tokens: int, heavy: bool) -> None:
    """Of 12 calibrations none, where one in a thousand is allowed to be; of heavy tails, few completions show too few, and one may be."""
    uppers = [bound_of(spread, 60, tokens, heavy=heavy).upper for _ in range(12)]
    assert sum(upper < spread for upper in uppers) <= heavy


def test_the_bound_comes_down_to_the_truth_with_more_completions() -> None:
    few, many = (bound_of(0.05, completions, 100) for completions in (30, 600))
    assert many.estimate == pytest.approx(0.05, rel=0.1)
    assert many.upper < 0.062 < few.upper
    assert many.units == 600
    assert many.tokens == 60_000


def test_work_without_a_mismatch_bounds_the_noise_by_how_much_there_was() -> None:
    few, many = (bound_of(0.0, completions, 100).upper for completions in (10, 400))
    assert many < few / 20
    assert 1e-5 < many < 1e-3


def test_checks_of_one_completion_are_one_unit() -> None:
    """What says the same a hundred times over makes nothing surer."""
    once, often = NoiseMeasurements(), NoiseMeasurements()
    for unit in range(30):
        scores = completion(0.05, 100)
        once.add(PAIR, unit, scores, 0.5)
        for _ in range(20):
            often.add(PAIR, unit, scores, 0.5)
    assert often.bounds() == once.bounds()


def test_the_worst_pair_counts_and_too_much_noise_gives_no_limit() -> None:
    found = NoiseMeasurements()
    for unit in range(60):
        found.add(("a", "a"), unit, completion(0.001, 100), 0.5)
        found.add(("a", "b"), unit, completion(0.05, 100), 0.5)
    bounds = found.bounds()
    worst = bounds[("a", "b")].upper
    assert noise.limit(bounds.values()) == (noise.SOFT * worst, noise.HARD * worst)
    assert noise.HARD * worst < NOISE_MAX
    found.add(("b", "b"), 0, completion(0.5, 10), 0.5)
    assert noise.limit(found.bounds().values()) is None
    assert noise.limit([]) is None
