"""Rows and prompts of the cache keep what belongs to them, whoever leaves, and a step reads exactly the tokens that it may."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from node.engine import decoding_step
from node.engine.decoding_step import Sharing, Step
from node.engine.kv_cache import Joining, KeyValueCache

CPU = torch.device("cpu")
WINDOWS = st.one_of(st.none(), st.integers(1, 40))
BLOCKS = [8, 8, 16, 32]


def step_of(rows: list[tuple[int, int]], prompts: list[int], blocks: list[int] = BLOCKS) -> Step:
    """Of rows (prompt, tokens of its own)."""
    sharing = Sharing([prompt for prompt, _ in rows], prompts, torch.float32, CPU)
    return Step([own for _, own in rows], blocks, sharing)


def own_seen(step: Step, window: int | None) -> tuple[Tensor, Tensor]:
    """Which of its own tokens [B, W] each row attends to, as its runs say it, and whether to its prompt [B]; a row has exactly one run."""
    seen = torch.zeros(len(step.own), sum(BLOCKS), dtype=torch.int)
    prompt = torch.zeros(len(step.own), dtype=torch.int)
    for run in step.runs(window):
        start = sum(BLOCKS[: run.blocks.start])
        assert run.width == sum(BLOCKS[block] for block in run.blocks)
        part = torch.zeros(run.last - run.first, 1 + run.width, dtype=torch.int)
        if run.mask is None:
            part[:, : run.seen] = 1
        else:
            assert set(run.mask.unique().tolist()) <= {0.0, -torch.inf}
            part = (run.mask == 0).int().flatten(1)
        prompt[run.first : run.last] += part[:, 0]
        seen[run.first : run.last, start : start + run.width] += part[:, 1:]
    return seen, prompt


def prompts_seen(step: Step, prompts: list[int], window: int | None) -> Tensor:
    """Which tokens of its prompt [B, T] each row attends to."""
    places: list[Tensor] = []
    for part in step.shared(window):
        seen = torch.zeros(part.last - part.first, part.group, max(prompts), dtype=torch.int)
        within = torch.ones(part.last - part.first, part.group, part.end - part.start, dtype=torch.int)
        seen[..., part.start : part.end] = within if part.mask is None else (part.mask == 0).int().expand_as(within)
        places += list(seen.flatten(0, 1))
    found = step.sharing.found
    return torch.stack([places[row if found is None else int(found[row])] for row in range(len(step.own))])


ROWS = st.lists(st.integers(1, 30), min_size=1, max_size=20).flatmap(
    lambda prompts: st.tuples(
        st.just(prompts),
        st.lists(st.tuples(st.integers(0, len(prompts) - 1), st.integers(1, sum(BLOCKS))), min_size=1, max_size=80),
    )
)


@given(of=ROWS, window=WINDOWS)
def test_a_row_sees_its_own_tokens_and_its_prompt_and_no_others(
    of: tuple[list[int], list[tuple[int, int]]], window: int | None
) -> None:
    prompts, rows = of
    step = step_of(rows, prompts)
    own = torch.tensor([own for _, own in rows])[:, None]
    length = torch.tensor([prompts[prompt] for prompt, _ in rows])[:, None]
    reach = window or 10**6
    assert step.places.tolist() == (own + length - 1).flatten().tolist()
    at = torch.arange(sum(BLOCKS))
    seen, prompt = own_seen(step, window)
    assert torch.equal(seen, ((at < own) & (at >= own - reach)).int())
    assert torch.equal(prompt, (own < reach).int().flatten()), "who has it within reach sees its prompt"
    if min(own) >= reach:
        assert not step.shared(window), "what nobody sees is not read"
        return
    at = torch.arange(max(prompts))
    expected = (at < length) & (at >= length + own - reach)
    sees = prompt.bool()
    assert torch.equal(prompts_seen(step, prompts, window)[sees], expected.int()[sees])


def test_rows_of_one_length_need_no_mask_and_one_run() -> None:
    step = step_of([(row // 16, 7) for row in range(64)], [12] * 4)
    (run,) = step.runs(None)
    assert (run.first, run.last, run.blocks, run.width, run.seen, run.mask) == (0, 64, range(1), 8, 8, None)
    (shared,) = step.shared(None)
    assert (shared.first, shared.last, shared.group, shared.start, shared.end) == (0, 4, 16, 0, 12)
    assert shared.mask is None
    assert step.sharing.asked is None, "rows in order are taken as they are"
    assert step.writes == [(0, None, 6)]


def test_a_window_reads_no_more_of_prompts_and_blocks_than_it_reaches() -> None:
    (shared,) = step_of([(0, 3), (0, 5)], [30]).shared(10)
    assert (shared.start, shared.end) == (23, 30)
    (run,) = step_of([(0, 30), (0, 31)], [30]).runs(10)
    assert run.blocks == range(2, 3)


def test_a_long_row_makes_its_neighbours_read_more_and_the_others_not() -> None:
    step = step_of([(0, 400)] + [(0, 20)] * 127, [5], [32] * 13)
    read = sum((run.last - run.first) * run.width for run in step.runs(None))
    assert read < 0.25 * 128 * 400


def test_prompts_of_one_row_are_not_asked_as_often_as_one_of_sixteen() -> None:
    rows = [(0, 5)] * 16 + [(prompt, 5) for prompt in range(1, 17)]
    asked = step_of(rows, [40] * 17, [32]).shared(None)
    assert [(part.first, part.last, part.group) for part in asked] == [(0, 1, 16), (1, 17, 1)]


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=150), chosen=st.data())
def test_who_stays_stays_once_and_runs_keep_falling(lengths: list[int], chosen: st.DataObject) -> None:
    lengths.sort(reverse=True)  # as where new rows come last
    leaving = chosen.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True, max_size=12))
    order = decoding_step.without(lengths, leaving)
    assert sorted(order) == [row for row in range(len(lengths)) if row not in leaving]
    size = decoding_step.run_size(len(lengths))
    longest = [max(lengths[row] for row in order[at : at + size]) for at in range(0, len(order), size)]
    assert longest == sorted(longest, reverse=True)
    assert sum(new != old for new, old in enumerate(order)) <= len(leaving) * (decoding_step.RUNS + 1), "few rows move"


def written(cache: KeyValueCache, content: list[list[float]]) -> None:
    """Each row of the cache and its prompt hold what they should, in both layers."""
    assert cache.lengths == [len(row) for row in content]
    for layer in (0, 3):
        stored = cache._layers[layer]
        for part, sign in enumerate((1, -1)):
            for row, expected in enumerate(content):
                prompt = cache._prompt_of[row]
                held = stored.prompts[part][prompt, 1, : cache._lengths[prompt], 2].tolist()
                own = torch.cat([block[part][row, 1, :, 2] for block in stored.blocks] or [torch.empty(0)])
                held += own[: cache._own[row]].tolist()
                assert held == [sign * (layer + value) for value in expected]


def feed(cache: KeyValueCache, values: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Keys and values [B, 2, T, 4] of two layers, right-padded."""
    width = max(map(len, values))
    padded = torch.tensor([row + [99.0] * (width - len(row)) for row in values])
    for layer in (0, 3):
        new = (padded + layer)[:, None, :, None].expand(-1, 2, -1, 4)
        given_back = cache.update(new, -new, layer)
        cache._is_unread = False  # as when the layer has attended
    return given_back


@given(data=st.data())
def test_rows_keep_what_belongs_to_them(data: st.DataObject) -> None:
    """Against lists: prompts join, with some rows each and one kept, tokens are added, rows leave, in any order."""
    cache, model, stamp = KeyValueCache(20, 20, 12, 60), [], 0.0
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
                cache.join_kept(2, keep=False)
                model += [list(prompts[-1]), list(prompts[-1])]
        for _ in range(data.draw(st.sampled_from([0, 1, 3, 20]))):
            if model and max(cache._own) < 60:
                cache.step(torch.float32, CPU)
                new = [stamp + row for row in range(len(model))]
                stamp += 100
                feed(cache, [[value] for value in new])
                model = [[*row, value] for row, value in zip(model, new, strict=True)]
        if model:
            written(cache, model)
        leaving = data.draw(st.lists(st.sampled_from(range(len(model))), unique=True)) if model else []
        model = [model[row] for row in cache.leave(leaving)]
        if model:
            written(cache, model)


@pytest.mark.parametrize("samples", [1, 16])
def test_prompts_are_stored_once_and_blocks_as_they_are_reached(samples: int) -> None:
    cache = KeyValueCache(32, 32 // samples, 10, 100)
    cache.join(Joining([10] * (32 // samples), [samples] * (32 // samples), keep=False))
    feed(cache, [[1.0] * 10] * (32 // samples))
    cache.joined()
    token = 2 * 2 * 2 * 4 * 4  # two layers, keys and values, heads × size, float32
    assert cache.nbytes == 32 // samples * 10 * token
    for _ in range(40):
        cache.step(torch.float32, CPU)
        feed(cache, [[1.0]] * 32)
    assert cache.nbytes == (32 // samples * 10 + 32 * 64) * token


def test_latents_come_back_packed_and_what_is_made_of_them_is_found() -> None:
    cache = KeyValueCache(4, 2, 5, 60, latent=True)
    cache.join(Joining([5, 3], [2, 1], keep=False))
    feed(cache, [[1.0, 2, 3, 4, 5], [6, 7, 8]])
    cache.joined()
    for turn in range(40):
        cache.step(torch.float32, CPU)
        keys, values = feed(cache, [[100.0 + turn], [200 + turn], [300 + turn]])
    assert keys.shape == values.shape == (1, 2, 2 * 5 + 3 * 60, 4)
    found = cache.stored(keys * 2, values * 2)
    held = cache._layers[3]
    for made, of in zip(found.pairs, held.pairs, strict=True):
        for part, whole in zip(made, of, strict=True):
            assert torch.equal(part, 2 * whole[: len(part)])


def test_a_layer_that_attends_past_the_cache_is_not_computed() -> None:
    """What `update` gives back in a step is one token: attention that takes it for all of them would be wrong in silence."""
    cache = KeyValueCache(4, 4, 12, 60)
    cache.join(Joining([3], [1], False))
    feed(cache, [[1.0, 2.0, 3.0]])
    cache.joined()
    cache.step(torch.float32, torch.device("cpu"))
    new = torch.ones(1, 2, 1, 4)
    cache.update(new, new, 0)
    with pytest.raises(RuntimeError, match="past the cache"):
        cache.update(new, new, 3)
