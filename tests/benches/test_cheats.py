"""The bench of cheats: its parts, what it says of a cheat that is found, and the best bet's arithmetic, by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from benches import Bench, cheats, cheats_catalogue, cheats_seats, cheats_submissions
from benches.cheats_ideal import Looks, submissions
from benches.cheats_submissions import Detection, FirstVerdict, Observed, Quantiles, Seat

from protocol import sampling
from protocol.runspec import HistoryBudget
from protocol.verdict import Outcome

NOISE = 0.01
RANGE = 10.0
SIGMA = NOISE * RANGE


def looks(gap: float, of_alternative: float, took: int = 1, *, follows: bool = False) -> Looks:
    one = np.ones(1)
    return Looks(gap * one, of_alternative * one, RANGE * one, np.array([took], np.int8), follows)


def growth(*given: float, took: int = 1, follows: bool = False) -> float:
    return float(looks(*given, took=took, follows=follows).growth(NOISE)[0])


def phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def test_the_best_bet_is_held_against_honest_work_midway_between_both_looks() -> None:
    bet, even = 0.02 + 0.96 * phi(2), 0.02 + 0.98 / 2
    assert growth(SIGMA, -SIGMA) == pytest.approx(math.log(bet / even), abs=1e-6)
    assert growth(SIGMA, -SIGMA, took=-1) == pytest.approx(math.log((1 - bet) / (1 - even)), abs=1e-6)
    aside = 0.02 + 0.98 * phi(-SIGMA / (math.sqrt(0.75) * SIGMA))
    assert growth(3 * SIGMA, -SIGMA) == pytest.approx(math.log(bet / aside), abs=1e-6)
    assert growth(SIGMA, -SIGMA, took=0) == 0


def test_a_temperature_is_no_look_of_its_own() -> None:
    bet, honest = 0.02 + 0.96 * phi(2), 0.02 + 0.98 * phi(-1)
    assert growth(SIGMA, -SIGMA, follows=True) == pytest.approx(math.log(bet / honest), abs=1e-6)


def test_nothing_is_staked_where_alternative_and_honest_work_would_do_the_same() -> None:
    assert growth(SIGMA, SIGMA) == growth(20 * SIGMA, 20 * SIGMA) == growth(0.0, -20 * SIGMA) == 0


def test_no_wealth_is_to_be_expected_of_honest_work() -> None:
    """Each position's bet is fair: over both tokens, what it multiplies by has the mean 1."""
    for gap, of_alternative in ((SIGMA, -SIGMA), (3 * SIGMA, -2 * SIGMA), (0.1 * SIGMA, -SIGMA)):
        honest = 0.02 + 0.98 * phi(-(gap + of_alternative) / 2 / (math.sqrt(0.75) * SIGMA))
        won, lost = (math.exp(growth(gap, of_alternative, took=took)) for took in (1, -1))
        assert won > 1 > lost
        assert honest * won + (1 - honest) * lost == pytest.approx(1, abs=1e-6)


def test_submissions_follow_from_the_mean_over_all_tokens_and_are_none_where_nothing_grows() -> None:
    won, idle = looks(SIGMA, -SIGMA), looks(SIGMA, SIGMA)
    each = growth(SIGMA, -SIGMA)
    assert submissions([won, idle], NOISE, 20.0, 1000) == pytest.approx(20 / (each / 2 * 1000))
    assert submissions([looks(SIGMA, -SIGMA, took=-1)], NOISE, 20.0, 1000) is None
    assert submissions([idle], NOISE, 20.0, 1000) is None


def test_looks_are_taken_of_the_draw_and_of_what_the_alternative_likes_best_beside_it() -> None:
    logits = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    scores = logits + sampling.noise(5, np.arange(50), 7)
    first, second = np.argsort(-scores, axis=1)[:, :2].T
    raised = logits.copy()
    raised[np.arange(50), second] += 4
    tokens = np.where(np.arange(50) % 2, first, second)
    found = Looks.of(tokens, logits, raised, key=5)
    ordered = -np.sort(-scores, axis=1)
    assert found.gaps == pytest.approx(ordered[:, 0] - ordered[:, 1])
    assert found.gaps_of_alternative == pytest.approx(found.gaps - 4, abs=1e-5)
    assert found.took.tolist() == [1, -1] * 25
    warmer = Looks.of(tokens, logits, logits, key=5, factor=1.1)
    assert warmer.follows and (warmer.gaps >= 0).all() and (warmer.gaps_of_alternative < 0).any()


def test_a_seat_says_after_how_many_submissions_and_tokens_and_by_what_it_was_found() -> None:
    bad = Observed(500, {}, {}, None, Outcome.SOFT, False)
    assert Seat([bad], HistoryBudget(), "", 0).judged_until(Outcome.SOFT) == FirstVerdict(1, 2000, "a single value")
    never = Seat([bad], HistoryBudget(), "", 0).judged_until(Outcome.HARD)
    assert never == FirstVerdict(61, 60 * 2000, "")


def test_a_row_says_tokens_interval_and_statistics_and_no_number_where_no_bet_wins() -> None:
    row = Detection(
        "int8: soft", "submissions", 12.0, 0.0, None, 25.0, found=0.95, low=10.0, high=19.0,
        generated=Quantiles.of([24_000.0] * 3), tenth=60.0, found_by={"int8": 0.9, "margins": 0.05}, alternative="int8",
    )  # fmt: skip
    (found,) = json.loads(json.dumps(Bench("cheats", [row]).as_json(), allow_nan=False))["rows"]
    assert found["generated"] == {"median": 24_000, "low": 24_000, "high": 24_000}
    assert (found["ideal"], found["met"], found["found_by"]) == (None, True, {"int8": 0.9, "margins": 0.05})
    assert "24,000 tokens" in row.remark and "int8 90%, margins 5%" in row.remark and "ideal ∞" in row.remark


def test_a_seat_that_is_not_found_misses_the_goal_and_counts_with_what_was_looked_at() -> None:
    seats = [({Outcome.SOFT: 1_000, Outcome.HARD: 3_000}, 3_000), ({Outcome.SOFT: 2_000}, 15_000), ({}, 14_000)]
    soft, hard = cheats_seats._rows("bfloat16", seats)
    assert (soft.ours, soft.most, soft.found, soft.looked_at, soft.goal) == (2_000, 2_000, 2, 14_000, None)
    assert (hard.ours, hard.found, hard.looked_at, hard.goal, hard.met) == (14_000, 1, 14_500, 4_000, False)
    assert hard.remark == "1 of 3 seats, at most 3000, the others not within 14500"
    (_, alone) = cheats_seats._rows("bfloat16", seats[:1])
    assert alone.met


@pytest.mark.parametrize(("part", "made"), [("catalogue", "c"), ("submissions", "s"), ("seats", "n"), ("all", "csn")])
def test_all_tables_are_printed_or_one_alone(part: str, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def table(name: str) -> list[Detection]:
        asked.append(name)
        return [Detection(name, "submissions", 1.0, None, None, None)]

    monkeypatch.setattr(cheats_catalogue, "rows", lambda only: table("c"))
    monkeypatch.setattr(cheats_submissions, "rows", lambda rows, only: table("s"))
    monkeypatch.setattr(cheats_seats, "rows", lambda seats, only: table("n"))
    assert [row.name for row in cheats.run(part=part).rows] == list(made) == asked
