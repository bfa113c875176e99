"""Packing changes how samples lie in memory and nothing about what is computed for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer import small
from trainer.learner import Learner
from trainer.packing import PackedRows, TrainingSample, pack

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


def unpack(batches: list[PackedRows]) -> list[tuple[list[int], list[int], set[float]]]:
    """(ids, completion, advantages) of every sample found in packed rows, by positions alone."""
    found = []
    for rows in batches:
        for r in range(len(rows.ids)):
            starts = [i for i in range(rows.ids.shape[1]) if rows.positions[r, i] == 0 and rows.ids[r, i] != 0]
            for start, end in zip(starts, [*starts[1:], rows.ids.shape[1]], strict=True):
                ids = [i for i in rows.ids[r, start:end].tolist() if i]
                predicting = rows.predicts[r, start : start + len(ids)]
                targets = rows.targets[r, start : start + len(ids)][predicting].tolist()
                advantages = rows.advantages[r, start : start + len(ids)][predicting]
                found.append((ids, targets, set(advantages.tolist())))
    return found


@given(lengths, st.integers(4, 40), st.integers(1, 4))
def test_every_sample_is_packed_exactly_once(sizes: list[tuple[int, int]], width: int, rows_at_once: int) -> None:
    samples = samples_of(sizes)
    found = unpack(pack(samples, width, rows_at_once))
    expected = [
        ([*s.prompt.tolist(), *s.completion.tolist()], s.completion.tolist(), {float(np.float32(s.advantage))})
        for s in samples
    ]
    assert Counter(map(repr, found)) == Counter(map(repr, expected))


@given(lengths, st.integers(4, 40), st.integers(1, 4))
def test_rows_keep_their_width_unless_one_sample_alone_is_longer(
    sizes: list[tuple[int, int]], width: int, rows_at_once: int
) -> None:
    samples = samples_of(sizes)
    for rows in pack(samples, width, rows_at_once):
        assert len(rows.ids) <= rows_at_once
        assert rows.ids.shape[1] <= max(width, *(len(s) for s in samples))
        for r in range(len(rows.ids)):
            used = int((rows.ids[r] != 0).sum())
            alone = int(((rows.positions[r] == 0) & (rows.ids[r] != 0)).sum()) == 1
            assert used <= width or alone


@given(lengths, st.integers(4, 40))
def test_a_position_attends_to_its_own_sample_up_to_itself_and_to_nothing_else(
    sizes: list[tuple[int, int]], width: int
) -> None:
    for rows in pack(samples_of(sizes), width, 4):
        for r in range(len(rows.ids)):
            segment = ((rows.positions[r] == 0) & (rows.ids[r] != 0)).cumsum(0)
            segment[rows.ids[r] == 0] = -1
            for i in torch.nonzero(rows.ids[r]).flatten().tolist():
                allowed = torch.nonzero(rows.mask[r, 0, i]).flatten().tolist()
                assert allowed == [j for j in range(i + 1) if segment[j] == segment[i]]
            assert rows.mask[r, 0].any(-1).all()  # a row that attends nowhere would be NaN


def test_tokens_are_those_of_completions() -> None:
    batches = pack(samples_of([(3, 5), (2, 1), (7, 7)]), 12, 2)
    assert sum(rows.tokens for rows in batches) == 13


@pytest.mark.parametrize("width", [8, 24, 200])
def test_packed_logprobs_are_those_of_each_sample_alone(new_learner: Callable[..., Learner], width: int) -> None:
    """Also for samples longer than the width, and whatever lies beside them."""
    learner = new_learner()
    samples = [one for number in range(6) for one in small.group(number)]
    samples.append(small.sample(range(2, 14), range(3, 20)))
    by_target: dict[tuple[int, ...], torch.Tensor] = {}
    for rows in pack(samples, width, 3):
        with torch.no_grad():
            logprobs, _ = learner._logprobs(rows)
        flat = torch.full(rows.ids.shape, float("nan"))
        flat[rows.predicts] = logprobs
        for r in range(len(rows.ids)):
            starts = torch.nonzero((rows.positions[r] == 0) & (rows.ids[r] != 0)).flatten().tolist()
            for start, end in zip(starts, [*starts[1:], rows.ids.shape[1]], strict=True):
                ids = tuple(i for i in rows.ids[r, start:end].tolist() if i)
                of = flat[r, start : start + len(ids)]
                by_target[ids] = of[~of.isnan()]
    for one in samples:
        packed = by_target[(*one.prompt.tolist(), *one.completion.tolist())]
        assert torch.allclose(packed, small.logprobs(learner, one), atol=1e-5, rtol=0)
