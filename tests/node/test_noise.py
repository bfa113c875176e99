"""The calibration of noise: on completions whose noise is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from swarm.tiny_run import TinyRun

from node.engine.torch_engine import TorchEngine
from node.judging.calibration import noise
from node.judging.calibration.noise import NoiseMeasurements
from protocol import eprocess, logit_noise, sampling
from protocol.constants import NOISE_MAX, SPREAD_MAX
from protocol.eprocess import Sums
from protocol.sampling import TokenScores
from tests.node.near_ties import completion

PAIR = ("one", "another")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def add(found: NoiseMeasurements, pair: noise.Pair, unit: int, scores: TokenScores) -> None:
    """Of tokens that were certain: their logprobs say nothing."""
    found.add(pair, unit, scores, scores.logprobs)


def bound_of(rng: np.random.Generator, level: float, completions: int, tokens: int, **how: bool) -> noise.NoiseBound:
    found = NoiseMeasurements()
    for unit in range(completions):
        add(found, PAIR, unit, completion(rng, level, tokens, **how))
    return found.bounds()[PAIR]


@pytest.mark.parametrize(("level", "tokens"), [(0.002, 100), (0.02, 8), (0.0002, 100)])
@pytest.mark.parametrize("heavy", [False, True])
def test_the_bound_is_hardly_ever_below_the_truth(
    rng: np.random.Generator, level: float, tokens: int, heavy: bool
) -> None:
    """Of 12 calibrations none, where one in a thousand is allowed to be; of heavy tails, few completions show too few, and one may be."""
    uppers = [bound_of(rng, level, 60, tokens, heavy=heavy).upper for _ in range(12)]
    assert sum(upper < level for upper in uppers) <= heavy


def test_the_bound_comes_down_to_the_truth_with_more_completions(rng: np.random.Generator) -> None:
    few, many = (bound_of(rng, 0.005, completions, 100) for completions in (30, 600))
    assert many.estimate == pytest.approx(0.005, rel=0.1)
    assert many.upper < 0.0062 < few.upper
    assert many.units == 600
    assert many.tokens == 60_000


def test_work_without_a_mismatch_bounds_the_noise_by_how_much_there_was(rng: np.random.Generator) -> None:
    few, many = (bound_of(rng, 0.0, completions, 100).upper for completions in (10, 400))
    assert many < few / 20
    assert 1e-6 < many < 1e-4


def test_checks_of_one_completion_are_one_unit(rng: np.random.Generator) -> None:
    """What says the same a hundred times over makes nothing surer."""
    once, often = NoiseMeasurements(), NoiseMeasurements()
    for unit in range(30):
        scores = completion(rng, 0.005, 100)
        add(once, PAIR, unit, scores)
        for _ in range(20):
            add(often, PAIR, unit, scores)
    (many,), (one,) = often.bounds().values(), once.bounds().values()
    assert (many.units, many.tokens, many.mismatches) == (one.units, one.tokens, one.mismatches)
    assert (many.estimate, many.upper) == pytest.approx((one.estimate, one.upper))


def test_the_worst_pair_counts_and_too_much_noise_gives_no_limit(rng: np.random.Generator) -> None:
    found = NoiseMeasurements()
    for unit in range(60):
        add(found, ("a", "a"), unit, completion(rng, 0.0001, 100))
        add(found, ("a", "b"), unit, completion(rng, 0.005, 100))
    bounds = found.bounds()
    worst = bounds[("a", "b")].upper
    assert noise.limit(bounds.values()) == (noise.SOFT * worst, noise.HARD * worst)
    assert 10 * noise.HARD * worst < SPREAD_MAX  # logits range over ten
    add(found, ("b", "b"), 0, completion(rng, 0.05, 10))
    assert noise.limit(found.bounds().values()) is None
    assert noise.limit([]) is None


def test_the_noise_of_one_model_is_not_hidden_among_others(rng: np.random.Generator) -> None:
    """A seat works on one policy at a time."""
    found = NoiseMeasurements()
    for unit in range(60):
        add(found, ("a", "b", "calm"), unit, completion(rng, 0.001, 100))
        add(found, ("a", "b", "noisy"), 60 + unit, completion(rng, 0.005, 100))
    bounds = found.bounds()
    assert bounds[("a", "b", "calm")].upper < 0.003 < 0.005 < bounds[("a", "b", "noisy")].upper
    assert noise.limit(bounds.values()) == pytest.approx(
        tuple(times * bounds[("a", "b", "noisy")].upper for times in (noise.SOFT, noise.HARD))
    )


def test_where_all_logits_are_equal_nothing_is_measured(rng: np.random.Generator) -> None:
    scores = replace(completion(rng, 0.0, 100), ranges=np.zeros(100))
    found = NoiseMeasurements()
    add(found, PAIR, 0, scores)
    assert noise.limit(found.bounds().values()) is None
    assert logit_noise.excess_margins(scores, 0.01) == Sums()


# ---- claimed logprobs ------------------------------------------------------------------------------------------------------

VOCABULARY = 40
SMALL = 1e-6
"""Share of the range: of no token drawn here is the draw another."""


def errors(rng: np.random.Generator, kind: str, tokens: int) -> np.ndarray:
    """Of a maker's logits [T, V], in shares of their range: two of them differ by SMALL."""
    shape, spread = (tokens, VOCABULARY), SMALL / math.sqrt(2)
    match kind:
        case "independent":
            return rng.normal(size=shape) * spread
        case "heavy":
            return rng.standard_t(4, shape) / math.sqrt(2) * spread
        case "common":
            return (rng.normal(size=shape) + 1000 * rng.normal(size=(tokens, 1))) * spread
        case "of hidden states":
            directions = rng.normal(size=(VOCABULARY, 16))
            directions /= np.linalg.norm(directions, axis=1, keepdims=True)
            return rng.normal(size=(tokens, 16)) @ directions.T * spread
        case "of one completion":
            return rng.normal(size=shape) * spread * 2 * (rng.random() < 0.25)
    raise ValueError(kind)


def claimed(rng: np.random.Generator, kind: str, tokens: int, sharpness: float) -> tuple[TokenScores, np.ndarray]:
    """A completion that was drawn from logits with such errors, as the checker scores it without; and what it claims, in float32."""
    logits, key = sharpness * rng.normal(size=(tokens, VOCABULARY)), int(rng.integers(1 << 63))
    made = logits + errors(rng, kind, tokens) * np.ptp(logits, axis=1, keepdims=True)
    drawn = sampling.draw(made, key=key, temperature=1.0)
    logprobs = made[np.arange(tokens), drawn] - np.log(np.exp(made).sum(1))
    scores = sampling.score(logits, drawn, key=key, temperature=1.0)
    return scores, logprobs.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("kind", ["independent", "heavy", "common", "of hidden states", "of one completion"])
@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_where_nothing_is_mismatched_claimed_logprobs_bound_the_noise_closely(
    rng: np.random.Generator, kind: str, sharpness: float
) -> None:
    """The number of mismatches would say more than a hundred times as much."""
    for _ in range(3):
        found = NoiseMeasurements()
        for unit in range(150):
            found.add(PAIR, unit, *claimed(rng, kind, 8, sharpness))
        bound = found.bounds()[PAIR]
        assert (bound.source, bound.mismatches) == ("logprobs", 0)
        assert SMALL <= bound.upper < (2.5 if kind == "of one completion" else 1.8) * SMALL
        assert bound.estimate < bound.upper


def test_claims_that_are_far_off_make_no_bound_wider_and_few_completions_make_none(rng: np.random.Generator) -> None:
    wild, right, few = NoiseMeasurements(), NoiseMeasurements(), NoiseMeasurements()
    for unit in range(150):
        scores, logprobs = claimed(rng, "independent", 8, 1.0)
        wild.add(PAIR, unit, scores, logprobs + 1)
        right.add(PAIR, unit, scores, logprobs)
        if unit < 9:
            few.add(PAIR, unit, scores, logprobs)
    assert wild.bounds()[PAIR].source == "number"
    assert 100 * right.bounds()[PAIR].upper < wild.bounds()[PAIR].upper < NOISE_MAX
    assert few.bounds()[PAIR].source != "logprobs"
    assert few.bounds()[PAIR].upper == pytest.approx(NOISE_MAX)


def test_where_many_are_mismatched_claims_are_not_asked(rng: np.random.Generator) -> None:
    """A maker whose claims are better than its tokens has the noise of its tokens."""
    found = NoiseMeasurements()
    for unit in range(60):
        scores = replace(completion(rng, 0.005, 100), logprobs=np.full(100, -1.0))
        found.add(PAIR, unit, scores, scores.logprobs)
    bound = found.bounds()[PAIR]
    assert bound.source != "logprobs"
    assert bound.upper > 0.005


def test_the_bound_by_logprobs_covers_what_rivals_of_a_real_policy_show(tiny_run: TinyRun) -> None:
    """Two attention implementations in float32: how far the logits of each draw and its rivals lie apart, and the bound that only knows logprobs."""
    run, found, apart = tiny_run, NoiseMeasurements(), []
    engine = TorchEngine("float32")
    engine.load(run.model)
    made = [run.read(run.honest(sequence=sequence)) for sequence in range(2)]
    for unit, sample in enumerate(sample for file in made for sample in file.samples):
        logits = []
        for attention in ("sdpa", "eager"):
            engine.adjust(attention=attention, threads=1)
            [hidden] = engine.prefill([(sample.prompt.tolist(), sample.completion.tolist())])
            logits.append(engine.logits(hidden).astype(np.float64))
        by_one, by_other = logits
        at, key = np.arange(len(by_one)), unit
        noised = by_other + sampling.noise(key, at, by_other.shape[1])
        tokens, rival = np.argsort(-noised, axis=1)[:, :2].T
        difference = by_one - by_other
        near = noised[at, tokens] - noised[at, rival] < 1
        apart.append(((difference[at, tokens] - difference[at, rival]) / np.ptp(by_other, axis=1))[near])
        logprobs = by_one[at, tokens] - np.log(np.exp(by_one).sum(1))
        found.add(PAIR, unit, sampling.score(by_other, tokens, key=key, temperature=1.0), logprobs)
    bound, seen = found.bounds()[PAIR], math.sqrt(np.mean(np.concatenate(apart) ** 2))  # shares of the range
    assert bound.source == "logprobs"
    assert 0 < seen < bound.upper < 4 * seen


def test_no_null_is_below_what_devices_and_policies_that_nobody_measured_need() -> None:
    tiny = noise.NoiseBound(1e-7, 2e-7, 100, 1000, 0.0, "logprobs", 10.0)
    assert noise.limit([tiny]) == pytest.approx((noise.FLOOR, noise.FLOOR * noise.HARD / noise.SOFT))


def test_an_honest_seat_with_thrice_the_noise_may_go_unpaid_and_is_never_slashed(rng: np.random.Generator) -> None:
    """A million tokens, looked at after each completion. A test whose null was a little too tight would convict it with certainty."""
    calibrated = 0.002
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
        hard += logit_noise.excess_margins(completion(rng, 0.02, 1_000), noise.HARD * 0.002)
    assert eprocess.excess(hard) > math.log(1e9)
