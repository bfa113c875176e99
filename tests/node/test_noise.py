"""The calibration of noise: on completions whose noise is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from node.judging.calibration import noise
from node.judging.calibration.noise import NoiseMeasurements
from protocol import eprocess, logit_noise
from protocol.constants import NOISE_MAX
from protocol.eprocess import Sums
from tests.node.near_ties import completion

PAIR = ("one", "another")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def bound_of(rng: np.random.Generator, spread: float, completions: int, tokens: int, **how: bool) -> noise.NoiseBound:
    found = NoiseMeasurements()
    for unit in range(completions):
        found.add(PAIR, unit, completion(rng, spread, tokens, **how))
    return found.bounds()[PAIR]


@pytest.mark.parametrize(("spread", "tokens"), [(0.02, 100), (0.2, 8), (0.002, 100)])
@pytest.mark.parametrize("heavy", [False, True])
def test_the_bound_is_hardly_ever_below_the_truth(
    rng: np.random.Generator, spread: float, tokens: int, heavy: bool
) -> None:
    """Of 12 calibrations none, where one in a thousand is allowed to be; of heavy tails, few completions show too few, and one may be."""
    uppers = [bound_of(rng, spread, 60, tokens, heavy=heavy).upper for _ in range(12)]
    assert sum(upper < spread for upper in uppers) <= heavy


def test_the_bound_comes_down_to_the_truth_with_more_completions(rng: np.random.Generator) -> None:
    few, many = (bound_of(rng, 0.05, completions, 100) for completions in (30, 600))
    assert many.estimate == pytest.approx(0.05, rel=0.1)
    assert many.upper < 0.062 < few.upper
    assert many.units == 600
    assert many.tokens == 60_000


def test_work_without_a_mismatch_bounds_the_noise_by_how_much_there_was(rng: np.random.Generator) -> None:
    few, many = (bound_of(rng, 0.0, completions, 100).upper for completions in (10, 400))
    assert many < few / 20
    assert 1e-5 < many < 1e-3


def test_checks_of_one_completion_are_one_unit(rng: np.random.Generator) -> None:
    """What says the same a hundred times over makes nothing surer."""
    once, often = NoiseMeasurements(), NoiseMeasurements()
    for unit in range(30):
        scores = completion(rng, 0.05, 100)
        once.add(PAIR, unit, scores)
        for _ in range(20):
            often.add(PAIR, unit, scores)
    (many,), (one,) = often.bounds().values(), once.bounds().values()
    assert (many.units, many.tokens, many.mismatches) == (one.units, one.tokens, one.mismatches)
    assert (many.estimate, many.upper) == pytest.approx((one.estimate, one.upper))


def test_the_worst_pair_counts_and_too_much_noise_gives_no_limit(rng: np.random.Generator) -> None:
    found = NoiseMeasurements()
    for unit in range(60):
        found.add(("a", "a"), unit, completion(rng, 0.001, 100))
        found.add(("a", "b"), unit, completion(rng, 0.05, 100))
    bounds = found.bounds()
    worst = bounds[("a", "b")].upper
    assert noise.limit(bounds.values()) == (noise.SOFT * worst, noise.HARD * worst)
    assert noise.HARD * worst < NOISE_MAX
    found.add(("b", "b"), 0, completion(rng, 0.5, 10))
    assert noise.limit(found.bounds().values()) is None
    assert noise.limit([]) is None


def test_an_honest_seat_with_thrice_the_noise_may_go_unpaid_and_is_never_slashed(rng: np.random.Generator) -> None:
    """A million tokens, looked at after each completion. A test whose null was a little too tight would convict it with certainty."""
    calibrated = 0.02
    soft, hard, highest = Sums(), Sums(), -math.inf
    for _ in range(1_000):
        scores = completion(rng, 3 * calibrated, 1_000)
        soft += logit_noise.excess_margins(scores, noise.SOFT * calibrated)
        hard += logit_noise.excess_margins(scores, noise.HARD * calibrated)
        highest = max(highest, eprocess.excess(hard))
    assert eprocess.excess(soft) > math.log(1e6)
    assert highest < 1, "not even evidence"


def test_a_seat_with_ten_times_the_noise_is_found_hard(rng: np.random.Generator) -> None:
    hard = Sums()
    for _ in range(10):
        hard += logit_noise.excess_margins(completion(rng, 0.2, 1_000), noise.HARD * 0.02)
    assert eprocess.excess(hard) > math.log(1e9)
