"""E-values of sums: they hold whenever one looks, and they grow where the null is false. Simulated on data whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol import eprocess
from protocol.constants import SCORE_MAX
from protocol.constants import SUM_UNIT as UNIT
from protocol.eprocess import Sums

SEATS, BLOCKS, ALPHA = 1_000, 400, 0.05
SEAT_LIMIT = 67
"""False alarms among the seats that a test of level ALPHA has with probability 1 - 7e-3: 50 expected, deviation 6.9."""


def prefix_sums(scores: np.ndarray, expected: np.ndarray) -> list[tuple[float, float, float]]:
    scores = np.minimum(scores, SCORE_MAX)
    return list(zip(np.cumsum(scores), np.cumsum(scores**2), np.cumsum(expected), strict=True))


def ever(scores: np.ndarray, expected: np.ndarray) -> float:
    """The largest log e-value on the way."""
    return max(
        eprocess.excess(Sums(math.floor(x * UNIT), math.ceil(q * UNIT), math.ceil(m * UNIT)))
        for x, q, m in prefix_sums(scores, expected)[9::10]
    )


@pytest.mark.parametrize("kind", ["none or the most", "all alike", "in habits", "hardly anything expected"])
def test_a_seat_at_the_null_is_seldom_accused_however_often_one_looks(kind: str) -> None:
    """At the very edge of the null, and with blocks that depend on those before."""
    rng = np.random.default_rng(1)
    accused = 0
    for _ in range(SEATS):
        expected = rng.uniform(0, 1, BLOCKS)
        if kind == "none or the most":
            scores = np.where(rng.random(BLOCKS) < 1 / SCORE_MAX, SCORE_MAX * expected, 0.0)
        elif kind == "all alike":
            scores = expected * rng.exponential(1.0, BLOCKS)
        elif kind == "hardly anything expected":
            expected /= 100
            scores = np.where(rng.random(BLOCKS) < expected / SCORE_MAX, SCORE_MAX, 0.0)
        else:  # what follows a large score is large more often, by as much as is expected of it
            habit = np.empty(BLOCKS)
            last = False
            for block in range(BLOCKS):
                chance = 0.5 if last else 1 / SCORE_MAX
                last = bool(rng.random() < chance)
                habit[block] = expected[block] / chance if last else 0.0
            scores = habit
        accused += ever(scores, expected) > math.log(1 / ALPHA)
    assert accused <= SEAT_LIMIT


def test_twice_what_was_expected_is_found_and_sooner_the_more_it_is() -> None:
    rng = np.random.default_rng(2)
    blocks = {}
    for factor in (2, 5):
        scores, expected = factor * rng.exponential(1.0, 2_000), np.ones(2_000)
        found = [
            eprocess.excess(Sums(int(x * UNIT), int(q * UNIT), int(m * UNIT)))
            for x, q, m in prefix_sums(scores, expected)
        ]
        blocks[factor] = int(np.argmax(np.array(found) > math.log(1e9)))
        assert max(found) > math.log(1e9)
    assert blocks[5] < blocks[2] < 1_000


def test_where_nothing_was_expected_each_large_score_is_worth_ten_thousand() -> None:
    """As of margins in float32. Bets below 1 make a factor of 8 of each."""

    def found(scores: int, expected: float) -> float:
        return eprocess.excess(Sums.of_blocks([SCORE_MAX] * scores, [expected])) / math.log(10)

    assert [math.floor(found(scores, 0.0)) for scores in range(1, 6)] == [3, 7, 12, 16, 21]
    assert found(4, 1e-3) > 11
    assert found(4, 0.5) < 4 * math.log10(8)


def test_large_bets_lose_what_was_expected_times_the_bet_and_end_before_they_lose_all() -> None:
    small, large = eprocess._BETS, eprocess._LARGE_BETS
    for expected in (1e-3, 1.0):
        left = [*((1 - bet) ** expected for bet in small), *(max(0.0, 1 - bet * expected) for bet in large)]
        assert eprocess.excess(Sums.of_blocks([], [expected])) == pytest.approx(math.log(np.mean(left)), abs=1e-4)


def test_a_share_at_the_null_is_seldom_accused_however_often_one_looks() -> None:
    rng = np.random.default_rng(3)
    accused = 0
    for _ in range(SEATS):
        successes = np.cumsum(rng.random(BLOCKS) < 0.6)
        accused += any(
            eprocess.share_either(Sums.of_trials(int(successes[n]), n + 1), 0.6) > math.log(1 / ALPHA)
            for n in range(9, BLOCKS, 10)
        )
    assert accused <= SEAT_LIMIT


@pytest.mark.parametrize("sides", [True, False])
def test_one_side_of_a_coin_is_found_and_which_one_makes_no_difference(sides: bool) -> None:
    sums = Sums.of_trials(60 if sides else 0, 60)
    assert eprocess.share_either(sums, 0.5) == pytest.approx(60 * math.log(2 * 31 / 32), abs=4)
    assert eprocess.share(sums, 0.5) > 30 if sides else eprocess.share(sums, 0.5) < 0


def test_an_e_value_is_bounded_by_the_best_bet_on_what_happened() -> None:
    """Whatever the sums: none may claim more than the product that they stand for."""
    rng = np.random.default_rng(4)
    for _ in range(400):
        count, most = int(rng.integers(1, 50)), rng.choice([1, 1e-2, 1e-4])
        scores, expected = rng.exponential(rng.choice([0.1, 1, 20]), count), rng.uniform(0, most, count)
        products = [
            np.log1p(bet * np.minimum(scores, SCORE_MAX)).sum() + np.log1p(-bet * expected).sum()
            for bet in (*np.geomspace(2**-12, 7 / 8, 60), *np.geomspace(1, 2**12, 60))
            if bet <= 7 / 8 or bet * expected.sum() < 1
        ]
        assert eprocess.excess(Sums.of_blocks(scores, expected)) <= max(products) + 1e-9


def test_evidence_adds_up_over_submissions_in_any_order() -> None:
    rng = np.random.default_rng(5)
    parts = [Sums.of_blocks(rng.exponential(1, 5), rng.uniform(0, 1, 5)) for _ in range(10)]
    assert sum(parts, Sums()) == sum(reversed(parts), Sums())


def test_rounding_is_in_the_seats_favour() -> None:
    scores, expected = [0.1 / UNIT, 0.7], [0.3, 0.2 / UNIT]
    sums = Sums.of_blocks(scores, expected)
    assert sums.total <= sum(scores) * UNIT
    assert sums.squares >= sum(score * score for score in scores) * UNIT
    assert sums.count >= sum(expected) * UNIT


def test_statistics_are_combined_by_their_mean_and_never_by_the_largest() -> None:
    assert eprocess.combined([(0.5, 10.0), (0.5, 0.0)]) == pytest.approx(math.log((math.exp(10) + 1) / 2))
    assert eprocess.combined([(0.5, -math.inf), (0.5, -math.inf)]) == -math.inf
    assert eprocess.combined([(0.25, 700.0), (0.75, -700.0)]) == pytest.approx(700 + math.log(0.25))
    with pytest.raises(ValueError, match="add up to at most 1"):
        eprocess.combined([(0.7, 1.0), (0.7, 1.0)])


def test_nothing_is_evidence_of_nothing() -> None:
    assert eprocess.excess(Sums()) == pytest.approx(0)
    assert eprocess.share(Sums(), 0.5) == pytest.approx(0)
