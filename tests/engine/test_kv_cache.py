"""Rows of the cache keep what belongs to them, whoever leaves, and a step reads exactly the tokens that it may."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from node.engine import kv_cache
from node.engine.kv_cache import Joining, KeyValueCache, Step

CPU = torch.device("cpu")
WINDOWS = st.one_of(st.none(), st.integers(1, 40))


def seen_by(lengths: list[int], window: int | None) -> torch.Tensor:
    """Which tokens [B, W] each row attends to, as its runs say it; a row has exactly one run."""
    step = Step(lengths, torch.float32, CPU)
    seen = torch.zeros(len(lengths), step.width, dtype=torch.int)
    for run in step.runs(window):
        part = torch.ones(run.last - run.first, run.end - run.start, dtype=torch.int)
        if run.mask is not None:
            assert set(run.mask.unique().tolist()) <= {0.0, -torch.inf}
            part = (run.mask == 0).int().flatten(1)
        seen[run.first : run.last, run.start : run.end] += part
    return seen


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80), window=WINDOWS)
def test_a_row_sees_its_own_tokens_and_no_others(lengths: list[int], window: int | None) -> None:
    at = torch.arange(max(lengths))
    of = torch.tensor(lengths)[:, None]
    expected = at < of
    if window is not None:
        expected &= at >= of - window
    assert torch.equal(seen_by(lengths, window), expected.int())


def test_rows_of_one_length_need_no_mask_and_one_run() -> None:
    (run,) = Step([7] * 64, torch.float32, CPU).runs(None)
    assert (run.first, run.last, run.start, run.end, run.mask) == (0, 64, 0, 7, None)
    (run,) = Step([7] * 64, torch.float32, CPU).runs(3)
    assert (run.start, run.end, run.mask) == (4, 7, None)


def test_a_long_row_makes_its_neighbours_read_more_and_the_others_not() -> None:
    runs = Step([400] + [20] * 127, torch.float32, CPU).runs(None)
    read = sum((run.last - run.first) * run.end for run in runs)
    assert read < 0.25 * 128 * 400


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=150), chosen=st.data())
def test_who_stays_stays_once_and_runs_keep_falling(lengths: list[int], chosen: st.DataObject) -> None:
    lengths.sort(reverse=True)  # as where new rows come last
    leaving = chosen.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True, max_size=12))
    order = kv_cache.without(lengths, leaving)
    assert sorted(order) == [row for row in range(len(lengths)) if row not in leaving]
    size = kv_cache.run_size(len(lengths))
    longest = [max(lengths[row] for row in order[at : at + size]) for at in range(0, len(order), size)]
    assert longest == sorted(longest, reverse=True)
    assert sum(new != old for new, old in enumerate(order)) <= len(leaving) * (kv_cache.RUNS + 1), "few rows move"


def written(cache: KeyValueCache, content: list[list[float]]) -> None:
    """Each row of the cache holds what it should, in both layers."""
    assert cache.lengths == [len(row) for row in content]
    for layer in (0, 3):
        for part, sign in zip(cache._layers[layer], (1, -1), strict=True):
            for row, expected in enumerate(content):
                assert part[row, 1, : len(expected), 2].tolist() == [sign * (layer + value) for value in expected]


def feed(cache: KeyValueCache, values: list[list[float]]) -> None:
    """Keys and values [B, 2, T, 4] of two layers, right-padded."""
    width = max(map(len, values))
    padded = torch.tensor([row + [99.0] * (width - len(row)) for row in values])
    for layer in (0, 3):
        new = (padded + layer)[:, None, :, None].expand(-1, 2, -1, 4)
        cache.update(new, -new, layer)


@given(data=st.data())
def test_rows_keep_what_belongs_to_them(data: st.DataObject) -> None:
    """Against lists: prompts join, with some rows each and one kept, tokens are added, rows leave, in any order."""
    cache, model, stamp = KeyValueCache(20, 40), [], 0.0
    for _ in range(data.draw(st.integers(1, 6))):
        lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
        counts = [data.draw(st.integers(1, 3)) for _ in lengths]
        keep = data.draw(st.booleans())
        if len(model) + sum(counts) + 2 <= 20:
            prompts = [[stamp + 20 * i + k for k in range(length)] for i, length in enumerate(lengths)]
            stamp += 100
            cache.join(Joining(lengths, counts, keep))
            feed(cache, prompts)
            cache.joined()
            model += [list(p) for p, count in zip(prompts, counts, strict=True) for _ in range(count)]
            if keep:
                cache.join_kept(lengths[-1], 2, keep=False)
                model += [list(prompts[-1]), list(prompts[-1])]
        for _ in range(data.draw(st.integers(0, 3))):
            if model and max(map(len, model)) < 40:
                cache.step(torch.float32, CPU)
                new = [stamp + row for row in range(len(model))]
                stamp += 100
                feed(cache, [[value] for value in new])
                model = [[*row, value] for row, value in zip(model, new, strict=True)]
        written(cache, model)
        leaving = data.draw(st.lists(st.sampled_from(range(len(model))), unique=True)) if model else []
        model = [model[row] for row in cache.leave(leaving)]
        written(cache, model)
