"""Sums over a seat's work wrong no honest seat: by a recording of several backends' work (scripts/seats), and by some made afresh."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from seats import backends, policies, record, recorded, report, resample
from seats.policies import Policy
from seats.record import sums_row
from seats.recorded import TIGHT, Integers, PairWork, Recording
from swarm.tiny_run import TinyRun

from node.judging.history import CountedReceipt, History, Weighed
from protocol import history
from protocol.model_files import WEIGHTS
from protocol.runspec import HistoryBudget
from protocol.statistics import MARGINS_SOFT
from protocol.verdict import Outcome

RECORDING = Path(__file__).parents[1] / "recordings" / "honest_sums.npz"
DIGEST = "839b0aa30d6c40a0619bf1b6bcc933d2d46e2f297722d1c6fd95cf32d5775633"
"""Of the recording. A new one is a new measurement: docs/measurements.md says what it is of."""
PLAINLY_OTHER = {backend.name for backend in (backends.FUSED, backends.EAGER, backends.HALVES)}
"""What computes otherwise than whatever it checks, and not the same in other pieces."""
BUDGET = HistoryBudget()
SMALL = HistoryBudget(seats=1, days=366, soft="0.05")
"""A bound that noisy seats reach soon."""


@pytest.fixture(scope="module")
def recording() -> Recording:
    return recorded.read(RECORDING)


def honest(recording: Recording) -> list[PairWork]:
    return [pair for pair in recording.pairs() if "noisy" not in pair.made_by]


def noisy(recording: Recording) -> PairWork:
    (found,) = (pair for pair in recording.pairs() if "noisy" in pair.made_by)
    return found


def looked_at(looks: Integers, budget: HistoryBudget = BUDGET) -> list[Weighed]:
    """What a validator makes of one seat [W, L, 3] at each of its submissions."""
    counted: list[CountedReceipt] = []
    found = []
    for number, of in enumerate(np.diff(looks, axis=0, prepend=0)):
        this = recorded.sums_of(of)
        found.append(History(budget, 0, counted).weigh(this))
        counted.append(CountedReceipt(f"{number:064x}", "0x" + "1" * 40, "d" * 64, 1_000, this, True))
    return found


def test_the_recording_is_the_one_that_was_measured_with_the_noise_that_is_shipped(recording: Recording) -> None:
    assert recorded.digest(RECORDING) == DIGEST == recording.about["sha256"]
    limits = record.limits()
    assert (recording.about["noise"]["soft"], recording.about["noise"]["hard"]) == (limits.soft, limits.hard)


def test_every_pair_has_five_thousand_distinct_completions_of_two_backends(recording: Recording) -> None:
    pairs = honest(recording)
    assert len(pairs) == sum(map(len, backends.WITH_VLLM.values()))
    for pair in pairs:
        assert pair.made_by != pair.checked_by
        assert len(pair.tokens) >= 5_000
        assert set(pair.lengths.tolist()) >= {8, 100}
        assert np.count_nonzero(pair.policies == policies.LARGE) >= 300
    said = {(of["made_by"], of["checked_by"]): of["units"] for of in recording.about["pairs"]}
    assert said == {(pair.made_by, pair.checked_by): len(pair.tokens) for pair in recording.pairs()}


def test_seats_weighed_many_at_a_time_are_weighed_as_a_validator_does(recording: Recording) -> None:
    draws = np.random.default_rng(1)
    outcomes = set()
    for pair in (noisy(recording), honest(recording)[0]):
        for looks in resample.drawn(pair, 24, draws):
            many = resample.weighed(looks, SMALL)
            bound = history.bounds(SMALL)
            for seat, of in enumerate(looks):
                for at, one in enumerate(looked_at(of, SMALL)):
                    assert many.soft[seat, at] == pytest.approx(one.after.soft, abs=1e-6)
                    assert many.hard[seat, at] == pytest.approx(one.after.hard, abs=1e-6)
                    assert many.adds[seat, at] == one.adds
                    is_soft = many.adds[seat, at] and many.soft[seat, at] >= bound.soft
                    assert one.outcome == (Outcome.SOFT if is_soft else Outcome.ACCEPT)
                    outcomes.add(one.outcome)
            assert (np.diff(looks, axis=1) >= 0).all()
    assert outcomes == {Outcome.ACCEPT, Outcome.SOFT}


def test_a_seat_is_made_of_whole_completions_of_one_policy_and_length() -> None:
    """Here each of the first adds one, and each of the second two."""
    lengths = np.array([8, 8, 8, 100, 100])
    kinds = np.array([1, 1, 1, 2, 2])
    pair = PairWork("one", "another", kinds, lengths, lengths, np.ones((5, 4, 3), np.int64) * kinds[:, None, None])
    (short, long) = resample.drawn(pair, 20, np.random.default_rng(0))
    for looks, each in ((short, 64), (long, 2 * 16)):
        assert (looks == each * np.arange(1, 9)[:, None, None]).all()
        assert len(looks) == 10


def test_of_a_thousand_seats_of_each_pair_none_is_wronged_and_a_null_below_their_noise_wrongs_many(
    recording: Recording,
) -> None:
    """E-values alone, whatever the budget: at most one seat in a hundred passes 10^2."""
    draws = np.random.default_rng(2)
    for pair in honest(recording):
        found = resample.simulate(pair, 1_000, BUDGET, draws)
        assert (found.seats, found.soft, found.hard) == (1_000, 0, 0), pair.name
        assert found.passed[2] <= 10, pair.name
        if pair.checked_by in PLAINLY_OTHER:  # of the others an eighth of the soft null is still about the noise
            tight = resample.simulate(pair, 200, BUDGET, draws, margins=TIGHT)
            assert tight.passed[2] > 10, pair.name


def test_seats_with_three_times_the_calibrated_noise_are_suspected_and_never_slashed(recording: Recording) -> None:
    found = resample.simulate(noisy(recording), 500, BUDGET, np.random.default_rng(3))
    assert found.passed[4] > 50
    assert found.hard == 0


def test_two_hundred_fresh_completions_of_two_backends_are_as_the_recorded_ones(
    recording: Recording, tiny_run: TinyRun, tmp_path: Path
) -> None:
    model = tmp_path / "policy"
    shutil.copytree(tiny_run.model, model)
    save_file(policies.scaled(load_file(model / WEIGHTS), 1.7), model / WEIGHTS)  # to about one nat
    policy, draws = Policy(model, tiny_run.tokenizer, tiny_run.context.tasks), Random(4)
    maker, checker = backends.FUSED, backends.EAGER
    works, again = maker.engine(model), checker.engine(model)
    rows, counts = [], {8: 170, 100: 30}
    for length, count in counts.items():
        for units in record.made(works, policy, length, count, draws):
            rows += [sums_row(scores, record.limits()) for scores in record.checked(checker, again, units)]
    assert len(rows) == 200
    fresh, order = np.array(rows), np.random.default_rng(5)
    for _ in range(20):
        seat = fresh[order.permutation(200)].reshape(10, 20, *fresh.shape[1:]).sum(1).cumsum(0)
        assert {one.outcome for one in looked_at(seat)} == {Outcome.ACCEPT}
    pair = recording.pair(maker.name, checker.name)
    of = {length: np.flatnonzero(pair.lengths == length) for length in counts}
    picks = [np.concatenate([order.choice(of[n], count) for n, count in counts.items()]) for _ in range(500)]
    usual = [ratio(pair.sums[units]) for units in picks]
    assert ratio(fresh) <= max(usual)


def test_a_recording_is_made_of_every_pair(tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def made(folder: Path, number: int) -> Iterator[Policy]:
        yield Policy(tiny_run.model, tiny_run.tokenizer, tiny_run.context.tasks)

    monkeypatch.setattr(policies, "made", made)
    monkeypatch.setattr(record, "WORK", {record.SHORT: (4, 0, 0)})
    monkeypatch.setattr(record, "NOISY_WORK", {record.SHORT: (2, 0, 0)})
    found = record.record(tmp_path, 0, 1.0, 10.0, [0], lambda _: None)
    pairs = list(found.pairs())
    assert len(pairs) == 12
    assert all(1 <= len(pair.lengths) <= 4 for pair in pairs)  # equal ones are one


def ratio(sums: Integers) -> float:
    """Margins by what the soft null expects of them."""
    total, _, count = sums[:, recorded.STATISTICS.index(MARGINS_SOFT)].sum(0)
    return float(total / count)


@pytest.mark.parametrize(
    ("found", "of", "bound"), [(0, 100_000, 2.9957e-5), (0, 5_000, 5.990e-4), (3, 10, 0.6066), (10, 10, 1.0)]
)
def test_a_probability_is_bounded_as_clopper_and_pearson_have_it(found: int, of: int, bound: float) -> None:
    assert resample.at_most(found, of) == pytest.approx(bound, rel=1e-3)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_of_a_hundred_thousand_seats_of_each_pair_none_is_wronged(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the run's budget; and by e-values alone, of which one seat in a hundred may pass 10^2."""
    draws = np.random.default_rng(6)
    lines = []
    for pair in honest(recording):
        found = resample.simulate(pair, 100_000, BUDGET, draws)
        lines.append(report.line(pair, found))
        assert found.hard == 0, lines[-1]
        assert resample.at_most(found.soft, found.seats) <= 1e-4, lines[-1]
        assert found.passed[2] <= 0.01 * found.seats, lines[-1]
    wide = resample.simulate(noisy(recording), 100_000, BUDGET, draws)
    lines.append(report.line(noisy(recording), wide))
    assert wide.hard == 0
    with capsys.disabled():
        print("", *report.HEAD, *lines, *report.supported(recording), sep="\n")
