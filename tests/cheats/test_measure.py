"""The bench's own arithmetic: tails and how many tokens a small shift needs, against known distributions; and that it measures
real candidates."""

from __future__ import annotations

import numpy as np
import pytest
from benches.cheats_catalogue import Margins, _judged_falsely, _margins, _measure, _rate, tail_above
from cheats.catalogue import catalogue
from cheats.scene import Scene
from swarm.tiny_run import TinyRun

from protocol.runspec import ComputationLimits, Limit, SamplingLimits

HONEST = Margins(0.0, 0.001)
WRONG_SEED, NEAR_TIES = (next(c for c in catalogue() if c.name == name) for name in ("wrong seed", "near ties"))


@pytest.fixture(scope="module")
def scene(tiny_run: TinyRun) -> Scene:
    return Scene(tiny_run, {})


@pytest.mark.parametrize(("limit", "share"), [(8.0, np.exp(-8.0)), (12.0, np.exp(-12.0))])
def test_an_exponential_tail_is_continued(limit: float, share: float) -> None:
    values = np.random.default_rng(0).exponential(size=100_000)
    assert share / 5 < tail_above(values, limit) < share * 5


def test_a_heavy_tail_is_not_taken_for_a_light_one() -> None:
    values = np.random.default_rng(0).pareto(5.0, size=100_000)
    assert tail_above(values, 30.0) > 31.0**-5 / 10


def test_a_handful_of_equal_values_is_a_tail_too() -> None:
    values = [0.0] * 9_999 + [1 / 128]
    assert 0 < tail_above(values, 0.05) < 1e-6
    assert tail_above([0.0] * 10_000, 0.05) == 0


def test_the_tokens_needed_tell_shifted_means_apart() -> None:
    """Means over so many tokens: none of many honest ones lies where 99 of 100 of the cheat's do."""
    rng, honest = np.random.default_rng(0), Margins(0.01, 0.05)
    cheats = rng.normal(0.015, 0.06, 100_000)
    needed = honest.tokens_needed(cheats)
    assert needed is not None
    apart = 0.01 + 5.9978 * 0.05 / np.sqrt(needed)  # the normal quantile of 1 - 1e-9
    means = rng.choice(cheats, (2_000, int(needed))).mean(1)
    assert 0.98 < (means > apart).mean() < 1
    assert honest.tokens_needed(rng.normal(0.005, 0.01, 1000)) is None


def test_a_cheat_is_rated_with_its_tokens_and_by_toploc_alone(scene: Scene) -> None:
    found = _rate(WRONG_SEED, scene, "tiny", 1, HONEST)
    assert (found.ours, found.rule, found.hard, found.peer) == (1, "sampling", 1, 0)
    assert (found.tokens > 0, found.needed) == (True, None)
    unseen = _rate(NEAR_TIES, scene, "tiny", 2, HONEST)
    assert unseen.needed is not None, "it is said how many tokens would tell it apart"
    assert (unseen.tokens > 0, unseen.peer) == (True, 0)


def test_equal_honest_proofs_are_counted_once(scene: Scene) -> None:
    found = _judged_falsely((scene, scene), 30)
    files = [scene.run.read(scene.run.honest(sequence=s)) for s in range(found.submissions)]
    assert found.met
    assert 30 <= found.proofs <= len({proof for file in files for sample in file.samples for proof in sample.proofs})
    assert found.judgements > found.proofs, "the second time it was the same submission"


def test_every_quantity_that_has_a_limit_is_measured_as_the_rules_do(scene: Scene) -> None:
    limits = (*ComputationLimits.model_fields.items(), *SamplingLimits.model_fields.items())
    limited = {name for name, field in limits if field.annotation in (Limit, Limit | None)}
    found = _judged_falsely((scene,), 1)
    assert len(limited) == 11
    assert set(found.largest) == limited
    assert set(found.above_soft) == set(found.above_hard) == limited
    measured: dict[str, list[float]] = {name: [] for name in limited}
    candidate = WRONG_SEED.make(scene, 0)
    _measure(candidate, measured)
    clipped = [margins.clip(max=0.5) for margins in _margins(candidate)]
    assert min(map(len, clipped)) < 32
    expected = sorted(margins.sum() / max(len(margins), 32) for margins in clipped)
    assert sorted(measured["mean_margin"]) == pytest.approx(expected), "one token among few is no habit"
    assert expected[-1] > 0
