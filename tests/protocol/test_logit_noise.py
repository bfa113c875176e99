"""What margins rounding explains: on logits whose noise is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol import eprocess, logit_noise, sampling
from protocol.constants import SCORE_MAX, SPREAD_MAX
from protocol.constants import SUM_UNIT as UNIT
from tests.protocol.scored import scored

VOCABULARY, TOKENS = 96, 400


def policy(rng: np.random.Generator, entropy: str) -> np.ndarray:
    """Logits of a policy that knows nearly always what comes next, or hardly ever."""
    scale = {"low": 9.0, "middle": 4.0, "high": 2.0}[entropy]
    return rng.normal(0, scale, (TOKENS, VOCABULARY))


def honest(
    rng: np.random.Generator, logits: np.ndarray, noise: float, temperature: float = 1.0
) -> sampling.TokenScores:
    """A completion drawn where each logit is off by `noise`/√2 of its position's range, scored without it: differences are off by `noise`."""
    key = int(rng.integers(1 << 62))
    spread = noise * np.ptp(logits, axis=1, keepdims=True)
    drawn = sampling.draw(
        logits + rng.normal(size=logits.shape) * spread / math.sqrt(2), key=key, temperature=temperature
    )
    return sampling.score(logits, drawn, key=key, temperature=temperature)


@pytest.mark.parametrize("entropy", ["low", "middle", "high"])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_what_is_expected_is_what_honest_margins_are_whatever_the_entropy(entropy: str, temperature: float) -> None:
    rng = np.random.default_rng(0)
    margins = expected = 0.0
    mismatches = 0
    for _ in range(60):
        scores = honest(rng, policy(rng, entropy), 0.004, temperature)
        margins += scores.margins.sum()
        mismatches += int((scores.margins > 0).sum())
        expected += logit_noise.expected_margins(scores.gaps, logit_noise.spread(scores, 0.004)).sum()
    assert mismatches > 100
    # A margin's deviation is about its mean; the bound is four deviations of the sum.
    assert margins == pytest.approx(expected, rel=4 / math.sqrt(mismatches))


def test_honest_work_of_the_calibrated_noise_is_no_evidence_and_of_thrice_the_noise_is() -> None:
    rng = np.random.default_rng(1)
    found = {}
    for noise in (0.0025, 0.0075):
        sums = eprocess.Sums()
        for _ in range(50):
            sums += logit_noise.excess_margins(honest(rng, policy(rng, "middle"), noise), 0.0025)
        found[noise] = eprocess.excess(sums)
    assert found[0.0025] < 2
    assert found[0.0075] > math.log(1e9)


def test_a_policy_that_becomes_surer_by_larger_logits_is_no_evidence_against_honest_work() -> None:
    """Noise in logits would be: three times as much is evidence, above."""
    rng = np.random.default_rng(4)
    sums = eprocess.Sums()
    for times in (1, 3):
        for _ in range(50):
            sums += logit_noise.excess_margins(honest(rng, times * policy(rng, "high"), 0.0025), 0.0025)
    assert sums.count > 0
    assert eprocess.excess(sums) < 2


def test_positions_where_rounding_reaches_beyond_the_rivals_say_nothing() -> None:
    rng = np.random.default_rng(5)
    logits = policy(rng, "middle")
    scores = honest(rng, logits, 0.02)
    wide = logit_noise.spread(scores, 0.02) > SPREAD_MAX
    assert 0 < wide.sum() < TOKENS
    noise = float(0.99 * SPREAD_MAX / scores.ranges.max())
    assert logit_noise.excess_margins(scores, 0.02) != logit_noise.excess_margins(scores, noise)
    assert logit_noise.excess_margins(scores, float(1.01 * SPREAD_MAX / scores.ranges.min())) == eprocess.Sums()
    narrow = sampling.TokenScores(*(getattr(scores, name)[~wide] for name in scores.__dataclass_fields__))
    assert logit_noise.excess_margins(scores, 0.02) == logit_noise.excess_margins(narrow, 0.02)


def test_a_block_expects_no_more_than_one_noise_and_nothing_is_lost_between_blocks() -> None:
    rng = np.random.default_rng(2)
    scores = honest(rng, policy(rng, "high"), 0.02)
    sums, spread = logit_noise.excess_margins(scores, 0.02), logit_noise.spread(scores, 0.02)
    assert spread.max() < SPREAD_MAX
    assert sums.total == pytest.approx((scores.margins / spread).sum() * UNIT, abs=2)
    assert sums.count == pytest.approx((logit_noise.expected_margins(scores.gaps, spread) / spread).sum() * UNIT, abs=2)
    alone = logit_noise.expected_margins(np.full((1, sampling.RIVALS), 0.75 * 0.3), np.array([0.3]))
    assert alone[0] < 0.3  # so one token is never more than a block may be


def test_the_chance_of_a_rival_is_that_of_a_normal_deviate() -> None:
    gaps = np.linspace(0, 0.7, 500)
    expected = [math.erfc(gap / 0.1 / math.sqrt(2)) / 2 for gap in gaps]
    assert logit_noise.chances_of_rivals(gaps, np.array(0.1)) == pytest.approx(np.array(expected), rel=2e-7)


def test_a_completion_without_near_ties_expects_nothing_and_shows_all() -> None:
    margins = np.zeros(40)
    margins[3] = 0.2
    sums = logit_noise.excess_margins(scored(margins), 0.02)
    assert sums.count == 0
    assert sums.total == SCORE_MAX * UNIT  # ten times the noise, of which so much counts
