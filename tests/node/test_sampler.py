"""The engine's sampler: the very tokens and scores of the definition, whatever it leaves out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from node.engine import noise, sampler
from protocol import sampling

VOCABULARY = 151_936  # Qwen3's


def normal(rows: int, vocabulary: int) -> Tensor:
    return torch.randn(rows, vocabulary) * 6


def flat(rows: int, vocabulary: int) -> Tensor:
    """Nothing can be ruled out beforehand."""
    return torch.rand(rows, vocabulary) * 1e-3


def peaked(rows: int, vocabulary: int) -> Tensor:
    logits = torch.randn(rows, vocabulary)
    logits[torch.arange(rows), torch.randint(vocabulary, (rows,))] += 40
    return logits


def tied(rows: int, vocabulary: int) -> Tensor:
    """Hardly any logit occurs only once, the highest included."""
    return torch.randint(-3, 2, (rows, vocabulary)).float()


KINDS = (normal, flat, peaked, tied)
CUTS = ({}, {"top_k": 1}, {"top_k": 20}, {"top_p": 0.9}, {"top_p": 0.05}, {"top_k": 50, "top_p": 0.8}, {"top_k": 10**6})


def keys_of(rows: int) -> tuple[list[int], Tensor]:
    """Unsigned keys, and their int64 bits."""
    keys = np.random.default_rng(int(torch.randint(1 << 30, ()))).integers(0, 2**64, rows, np.uint64).tolist()
    return keys, torch.tensor([noise.as_signed(key) for key in keys])


def require_same(logits: Tensor, temperature: float, **cut: float) -> None:
    keys, signed = keys_of(len(logits))
    positions = torch.randint(0, 40_000, (len(logits),))
    drawn = sampler.draw(logits, signed, positions, temperature=temperature, **cut)
    looked_for = sampler.draw_anywhere(logits, signed, positions, temperature=temperature, **cut)
    assert torch.equal(drawn.tokens, looked_for.tokens)
    assert torch.allclose(drawn.scores, looked_for.scores, rtol=1e-12, atol=1e-12)
    assert torch.allclose(drawn.normalisers, looked_for.normalisers, rtol=0, atol=1e-5)
    for row, key in enumerate(keys):
        of_row = logits[row : row + 1].float().numpy()
        given = {"key": key, "temperature": temperature, "first": int(positions[row]), **cut}
        token = int(drawn.tokens[row])
        assert [token] == sampling.draw(of_row, **given).tolist()
        for claimed in {token, int(torch.randint(logits.shape[1], ())), int(logits[row].argmax())}:
            expected = sampling.score(of_row, np.array([claimed]), **given)
            found = sampler.score(
                logits[row : row + 1], torch.tensor([claimed]), key, int(positions[row]), temperature=temperature, **cut
            )
            assert found.margins[0] == pytest.approx(expected.margins[0], abs=1e-9)
            assert found.logprobs[0] == pytest.approx(expected.logprobs[0], abs=1e-4)
            assert claimed != token or found.margins[0] == 0
            assert found.drawn[0] == token
            assert found.leads[0] == pytest.approx(expected.leads[0], abs=1e-9)
            assert found.ranges[0] == expected.ranges[0]
            assert same_gaps(found.gaps, expected.gaps)
            if not cut:
                anywhere = sampler.draw_anywhere(
                    logits[row : row + 1], signed[row : row + 1], positions[row : row + 1], temperature=temperature,
                    rivals=sampling.RIVALS,
                )  # fmt: skip
                assert same_gaps((anywhere.scores[:, None] - anywhere.rivals).numpy(), expected.gaps)


def same_gaps(found: Any, expected: Any) -> bool:
    """Where either lies within reach; at its very edge rounding decides."""
    edge = sampling.RIVALS_WITHIN * (1 - 1e-6)
    near = (found < edge) | (expected < edge)
    return bool(np.allclose(found[near], expected[near], rtol=0, atol=1e-9))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.7, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_and_margins_are_those_of_the_definition(
    kind: Callable[[int, int], Tensor], temperature: float, dtype: torch.dtype
) -> None:
    for vocabulary in (1, 4, 1003):
        require_same(kind(2, vocabulary).to(dtype), temperature)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", CUTS[1:], ids=str)
def test_so_they_are_where_the_distribution_is_cut(kind: Callable[[int, int], Tensor], cut: dict[str, float]) -> None:
    for vocabulary, temperature in ((1, 1.0), (5, 0.3), (700, 1.0), (700, 4.0)):
        require_same(kind(2, vocabulary).bfloat16(), temperature, **cut)


@pytest.mark.parametrize("kind", KINDS)
def test_so_they_are_for_a_whole_vocabulary(kind: Callable[[int, int], Tensor]) -> None:
    logits = kind(2, VOCABULARY).bfloat16()
    require_same(logits, 1.0)
    require_same(logits[:1], 1.0, top_k=40, top_p=0.95)


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("vocabulary", [95, 96, 5000, sampler._CACHED, 40_000])
@pytest.mark.parametrize("cut", [{}, {"top_k": 9, "top_p": 0.9}], ids=str)
def test_a_row_is_drawn_alike_in_any_batch(vocabulary: int, more: int, cut: dict[str, float]) -> None:
    """However many rows are looked at together, and however many are left over."""
    rows = 3 * max(1, sampler._CACHED // vocabulary) + more
    logits = normal(rows, vocabulary).bfloat16()
    _, keys = keys_of(rows)
    positions = torch.arange(rows) * 17
    together = sampler.draw(logits, keys, positions, temperature=1.0, **cut)
    order = torch.randperm(rows)
    turned = sampler.draw(logits[order], keys[order], positions[order], temperature=1.0, **cut)
    assert torch.equal(turned.tokens, together.tokens[order])
    assert torch.equal(turned.scores, together.scores[order])
    for row in {0, rows // 2, rows - 1}:
        one = slice(row, row + 1)
        alone = sampler.draw(logits[one], keys[one], positions[one], temperature=1.0, **cut)
        assert int(alone.tokens) == int(together.tokens[row])
        assert float(alone.normalisers) == pytest.approx(float(together.normalisers[row]), abs=1e-5)


@pytest.mark.parametrize("cut", [{}, {"top_k": 9, "top_p": 0.9}], ids=str)
def test_a_whole_sequence_is_scored_as_the_definition_does(cut: dict[str, float]) -> None:
    logits, given = normal(20, 300), {"temperature": 1.0, **cut}
    tokens = sampling.draw(logits.numpy(), key=3, first=64, **given)
    tokens[5::4] = (tokens[5::4] + 1) % 300
    expected = sampling.score(logits.numpy(), tokens, key=3, first=64, **given).margins
    found = sampler.score(logits, torch.tensor(tokens), 3, 64, **given).margins
    assert np.abs(found - expected).max() < 1e-9
    assert ((found > 0).nonzero()[0] == np.arange(5, 20, 4)).all()


def test_a_masked_token_is_never_drawn() -> None:
    logits = torch.randn(3, 1003)
    logits[:, ::2] = -torch.inf
    keys, signed = keys_of(3)
    drawn = sampler.draw(logits, signed, torch.zeros_like(signed), temperature=1.0)
    for row, key in enumerate(keys):
        assert int(drawn.tokens[row]) % 2 == 1
        assert [int(drawn.tokens[row])] == sampling.draw(
            logits[row : row + 1].numpy(), key=key, temperature=1.0
        ).tolist()


def test_the_largest_noise_there_is_wins_from_far_below() -> None:
    """Word 0 gives 22.87: of a token so far below the best nothing may be left out."""
    key, position, vocabulary = 5, 0, 1 << 20
    words = noise.words_at(torch.tensor(key), torch.tensor(position), torch.arange(vocabulary // 4)).flatten()
    lucky = int(words.argmin())
    reach = float(noise.exact(words[lucky])) - 3
    assert reach > 10
    others = torch.full((1, vocabulary), -1e9)
    others[0, 7] = 3.0 - float(noise.exact(words[7]))  # its score is 3
    for below, winner in ((1e-3, 7), (-1e-3, lucky)):
        others[0, lucky] = -reach - below
        for draw in (sampler.draw, sampler.draw_anywhere):
            drawn = draw(others, torch.tensor([key]), torch.tensor([position]), temperature=1.0)
            assert int(drawn.tokens) == winner


@pytest.mark.parametrize("cut", [{}, {"top_k": 9}], ids=str)
def test_of_no_rows_nothing_is_drawn_or_scored(cut: dict[str, Any]) -> None:
    none = torch.empty(0, dtype=torch.int64)
    drawn = sampler.draw(torch.empty(0, 100), none, none, temperature=1.0, **cut)
    assert (len(drawn.tokens), len(drawn.scores), len(drawn.normalisers)) == (0, 0, 0)
    scores = sampler.score(torch.empty(0, 100), none, 3, 0, temperature=1.0, **cut)
    assert (len(scores.margins), len(scores.logprobs)) == (0, 0)


def test_no_token_beyond_the_vocabulary_is_drawn() -> None:
    """Rows are gone through in pieces, of which the last is shorter; what lies behind it is another row."""
    logits = torch.zeros(2, 2048 + 3)
    logits[:, 3:8] = 40
    logits[1, :5] = 80
    keys, signed = keys_of(2)
    drawn = sampler.draw(logits, signed, torch.zeros_like(signed), temperature=1.0)
    for row, key in enumerate(keys):
        of_row = logits[row : row + 1].numpy()
        assert [int(drawn.tokens[row])] == sampling.draw(of_row, key=key, temperature=1.0).tolist()


@pytest.mark.parametrize("cut", [{}, {"top_k": 9}, {"top_p": 0.9}], ids=str)
def test_what_is_no_number_draws_no_other_token(cut: dict[str, float]) -> None:
    logits = torch.randn(2, 100)
    logits[0, 31] = torch.nan
    for draw in (sampler.draw, sampler.draw_anywhere):
        drawn = draw(logits, torch.tensor([1, 2]), torch.tensor([0, 0]), temperature=1.0, **cut)
        assert int(drawn.tokens[0]) == 31
        assert torch.isnan(drawn.normalisers[0])
        assert int(drawn.tokens[1]) == int(sampling.draw(logits[1:].numpy(), key=2, temperature=1.0, **cut)[0])


def test_few_tokens_need_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is compiled."""
    made = []
    original = noise.words_at

    def counted(keys: Tensor, positions: Tensor, blocks: Tensor) -> Tensor:
        made.append(4 * blocks.numel())
        return original(keys, positions, blocks)

    monkeypatch.setattr(noise, "words_at", counted)
    sampler.draw_anywhere(torch.randn(1, VOCABULARY) * 12, torch.tensor([1]), torch.tensor([0]), temperature=1.0)
    assert sum(made) < VOCABULARY / 10


# ---- the same vectors as every other implementation ------------------------------------------------------------------------


def vectors(name: str) -> Any:
    return json.loads((Path(__file__).parent.parent / "vectors" / f"{name}.json").read_text())


def test_noise_of_the_committed_words() -> None:
    cases = vectors("gumbel")
    words, defined = torch.tensor([case["word"] for case in cases]), np.array([float(case["noise"]) for case in cases])
    assert np.abs(noise.gumbel_of_words(words).double().numpy() - defined).max() < 1e-5
    assert np.abs(noise.exact(words).numpy() - defined).max() < 2e-9


@pytest.mark.parametrize("case", vectors("draws")["cases"], ids=str)
def test_the_committed_draws(case: dict[str, Any]) -> None:
    given = vectors("draws")
    i = torch.arange(given["positions"] * given["vocabulary"])
    logits = ((i * 40503 + (i >> 5) * 9973) % 611 / 100).reshape(given["positions"], -1)
    positions = torch.arange(given["positions"])
    keys = torch.full_like(positions, noise.as_signed(int(given["key"])))
    cut = {"temperature": float(case["temperature"]), "top_k": case["top_k"], "top_p": float(case["top_p"])}
    assert sampler.draw(logits, keys, positions, **cut).tokens.tolist() == case["tokens"]


@pytest.mark.parametrize("vocabulary", [512, 500])
def test_the_highest_is_the_first_of_equals_wherever_it_lies(vocabulary: int) -> None:
    made = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 4, (40, vocabulary), generator=made).float()
    logits[1, 300] = torch.nan
    logits[2] = -torch.inf
    keys, positions = torch.zeros(2, 40, dtype=torch.long)
    drawn = sampler.draw_anywhere(logits, keys, positions, temperature=0)
    for row in range(40):
        numbers = logits[row].tolist()
        assert drawn.tokens[row] == (300 if row == 1 else numbers.index(max(numbers)))
