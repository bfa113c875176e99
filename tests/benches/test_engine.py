"""What the engine bench compares does the same work: as many tokens, at the lengths given, from logits of one nat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benches.engine import Comparison, Ours, _timed
from benches.engine_peers import as_before, by_continuous_batching, by_generate
from benches.engine_work import LONGEST, Work, entropy, work, write_model

VOCABULARY = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("model")
    yield folder, write_model(folder, VOCABULARY, key_value_heads=2)


def asked() -> Work:
    return Work([[5, 6, 7], [8, 9, 10, 11, 12]], 2, [3, 1, 4, 2])


def test_the_work_is_as_described() -> None:
    made = work(256, VOCABULARY, new=None)
    assert made.lengths == work(256, VOCABULARY, new=None).lengths, "the same every time"
    assert (len(made.prompts), made.samples, len(made.lengths)) == (16, 16, 256)
    assert all(56 <= len(prompt) <= 72 for prompt in made.prompts)
    assert len({len(prompt) for prompt in made.prompts}) > 5
    assert max(made.lengths) == LONGEST
    assert 25 < sorted(made.lengths)[128] < 40
    assert made.bound == pytest.approx(LONGEST * 256 / made.tokens)
    parts = made.batches(64)
    assert [len(part.lengths) for part in parts] == [64] * 4
    assert [n for part in parts for n in part.lengths] == made.lengths
    assert [p for part in parts for p in part.prompts] == made.prompts
    assert set(work(64, VOCABULARY, new=128).lengths) == {128}


def test_logits_are_as_sure_as_a_policys(model: tuple[Path, Any]) -> None:
    with torch.inference_mode():
        ids = torch.randint(3, VOCABULARY, (4, 32))
        assert 0.6 < entropy(model[1](ids).logits.flatten(0, 1)) < 1.6


def of_ours(folder: Path, model: Any) -> Callable[[Work], int]:
    return Ours(folder, 3).make


def of_generate(folder: Path, model: Any) -> Callable[[Work], int]:
    return lambda asked: by_generate(model, 2, asked)


def of_continuous_batching(folder: Path, model: Any) -> Callable[[Work], int]:
    return lambda asked: by_continuous_batching(model, 4, asked)


@pytest.mark.parametrize("of", [of_ours, of_generate, of_continuous_batching])
def test_all_make_the_tokens_that_are_asked_for(
    of: Callable[[Path, Any], Callable[[Work], int]], model: tuple[Path, Any]
) -> None:
    assert of(*model)(asked()) == asked().tokens == 10


def test_the_loop_as_it_was_makes_equal_lengths(model: tuple[Path, Any]) -> None:
    equal = Work(asked().prompts, 2, [3, 3, 3, 3])
    assert as_before(model[1], equal) == equal.tokens


def test_who_makes_other_work_is_not_compared(model: tuple[Path, Any]) -> None:
    ours = _timed(Ours(model[0], 4).make)
    row = Comparison("same", asked(), ours, ours).row(1)
    assert row.ratio == pytest.approx(1.0, rel=10)
    with pytest.raises(AssertionError, match="short: 9 tokens were made, and 10 asked for"):
        Comparison("short", asked(), ours, lambda asked: (asked.tokens - 1, 1.0)).row(1)
