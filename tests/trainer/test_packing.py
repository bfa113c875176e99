"""Packing changes how samples lie in memory and nothing about what is computed for them."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer import small
from trainer.learning.learner import Learner
from trainer.learning.packing import PackedRows, TrainingSample, fit, pack

lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=30)


def samples_of(sizes: list[tuple[int, int]]) -> list[TrainingSample]:
    """Samples whose tokens and advantages are all different."""
    counter = iter(range(1, 10_000))
    return [
        small.sample(
            [next(counter) for _ in range(prompt)], [next(counter) for _ in range(completion)], float(next(counter))
        )
        for prompt, completion in sizes
    ]


def siblings_of(sizes: list[tuple[int, int]], groups: int) -> list[TrainingSample]:
    """The same, in which only `groups` prompts occur."""
    samples = samples_of(sizes)
    return [dataclasses.replace(one, prompt=samples[i % groups].prompt) for i, one in enumerate(samples)]


def contents(rows: PackedRows) -> list[tuple[list[int], list[int], set[float]]]:
    """(ids, targets, advantages) of every sample, as the attention mask and `source` tell: what its last token sees."""
    found, ids = [], rows.ids.flatten()
    width = rows.ids.shape[1]
    for number in range(len(rows.samples)):
        own = rows.sample == number
        last = int(rows.source[own][-1])
        row, column = divmod(last, width)
        seen = torch.nonzero(rows.mask[row, 0, column]).flatten()
        assert rows.positions[row, seen].tolist() == list(range(len(seen)))
        targets = rows.targets[own].tolist()
        predicted_from = [int(ids[i]) for i in rows.source[own]]
        whole = [*rows.ids[row, seen].tolist(), targets[-1]]
        assert predicted_from == whole[-len(targets) - 1 : -1]
        found.append((whole, targets, set(rows.advantages[own].tolist())))
    return found


def unpack(batches: list[PackedRows]) -> list[tuple[list[int], list[int], set[float]]]:
    return [sample for rows in batches for sample in contents(rows)]


@given(lengths, st.integers(1, 30), st.integers(4, 40), st.integers(1, 4))
def test_every_sample_is_packed_exactly_once_and_sees_its_prompt_and_itself_only(
    sizes: list[tuple[int, int]], groups: int, width: int, rows_at_once: int
) -> None:
    samples = siblings_of(sizes, groups)
    expected = [
        ([*s.prompt.tolist(), *s.completion.tolist()], s.completion.tolist(), {float(np.float32(s.advantage))})
        for s in samples
    ]
    assert Counter(map(repr, unpack(pack(samples, width, rows_at_once)))) == Counter(map(repr, expected))


@given(lengths, st.integers(1, 30), st.integers(4, 40), st.integers(1, 4))
def test_rows_keep_their_width_unless_one_sample_alone_is_longer(
    sizes: list[tuple[int, int]], groups: int, width: int, rows_at_once: int
) -> None:
    samples = siblings_of(sizes, groups)
    for rows in pack(samples, width, rows_at_once):
        assert len(rows.ids) <= rows_at_once
        assert rows.mask.any(-1).all()  # a position that attends nowhere would be NaN
        rows_of = [
            int(rows.source[rows.sample == number][0]) // rows.ids.shape[1] for number in range(len(rows.samples))
        ]
        for r in range(len(rows.ids)):
            assert int((rows.unit[r] >= 0).sum()) <= width or rows_of.count(r) == 1


def test_a_prompt_stands_once_in_a_row_however_many_completions_follow_it() -> None:
    prompt = range(1, 9)
    samples = [small.sample(prompt, [20 + i, 40 + i]) for i in range(6)]
    (rows,) = pack(samples, 24, 8)
    assert int((rows.unit >= 0).sum()) == 8 + 6 * 2
    (wide, *_) = pack(samples, 14, 8)
    assert wide.ids.shape == (2, 14)


def test_claimed_logprobs_go_with_their_tokens_or_not_at_all() -> None:
    samples = samples_of([(2, 3), (1, 4), (5, 1)])
    with_claims = [dataclasses.replace(s, logprobs=-s.completion.astype(np.float32)) for s in samples]
    (rows,) = pack(with_claims, 40, 1)
    assert rows.behaviour is not None
    assert rows.behaviour.tolist() == (-rows.targets).tolist()
    (rows,) = pack([*with_claims[:2], samples[2]], 40, 1)
    assert rows.behaviour is None


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(10, 60))
def test_no_two_rows_would_fit_into_one(sizes: list[int], width: int) -> None:
    rows = fit(sizes, width)
    assert sorted(i for row in rows for i in row) == list(range(len(sizes)))
    used = sorted(sum(sizes[i] for i in row) for row in rows)
    assert len(used) == 1 or used[0] + used[1] > width


def test_a_hundred_thousand_samples_are_fitted_within_seconds() -> None:
    """Looking through all rows for each would take hours."""
    sizes = np.random.default_rng(0).integers(1, 1000, 100_000).tolist()
    started = time.process_time()
    assert len(fit(sizes, 1024)) < 1.1 * sum(sizes) / 1024
    assert time.process_time() - started < 5


def test_tokens_are_those_of_completions() -> None:
    batches = pack(samples_of([(3, 5), (2, 1), (7, 7)]), 12, 2)
    assert sum(rows.tokens for rows in batches) == 13


@pytest.mark.parametrize("width", [8, 24, 200])
def test_packed_logprobs_are_those_of_each_sample_alone(new_learner: Callable[..., Learner], width: int) -> None:
    """Also for samples longer than the width, for siblings that share their prompt, and whatever lies beside them."""
    learner = new_learner()
    samples = [one for number in range(6) for one in small.group(number)]
    samples.append(small.sample(range(2, 14), range(3, 20)))
    met = 0
    for rows in pack(samples, width, 3):
        logprobs = learner._frozen(rows, learner.policy)
        for number, one in enumerate(rows.samples):
            met += 1
            alone = small.logprobs(learner, one)
            assert torch.allclose(logprobs[rows.sample == number], alone, atol=1e-5, rtol=0)
    assert met == len(samples)
