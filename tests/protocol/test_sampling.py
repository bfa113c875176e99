"""Philox, the Gumbel noise, and scoring; the definition in NumPy and the torch form the engine uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from node.engine import noise as torch_noise
from node.judging.calibration.fit import FLOORS
from protocol import sampling
from tests.protocol.scored import scored

FULL = 0xFFFFFFFF
RANDOM123 = [  # known answers of Random123 for philox4x32-10: counter, key, words
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((FULL,) * 4, (FULL,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def test_philox_gives_the_published_known_answers() -> None:
    for counter, key, words in RANDOM123:
        found = sampling.philox(
            tuple(np.array([c], np.uint64) for c in counter),  # type: ignore[arg-type]
            tuple(np.array([k], np.uint64) for k in key),  # type: ignore[arg-type]
        )
        assert tuple(int(w[0]) for w in found) == words

        found = torch_noise.philox(tuple(map(torch.tensor, counter)), (torch.tensor(key[0]), torch.tensor(key[1])))
        assert tuple(map(int, found)) == words


def test_torch_draws_the_very_same_words_on_every_path() -> None:
    """Scattered blocks go through compiled code on the CPU; as a matrix they go through torch, as on a GPU."""
    rng = np.random.default_rng(0)
    blocks = torch.tensor(rng.integers(0, 2**30, 10_007))
    for key, position in ((0, 0), (2**64 - 1, 2**31), (0x9E3779B97F4A7C15, 70_000)):
        signed, at = torch.tensor(torch_noise.as_signed(key)), torch.tensor(position)
        flat = torch_noise.words_at(signed, at, blocks)
        assert torch.equal(flat, torch_noise.words_at(signed, at, blocks[None])[0])
        assert torch.equal(flat, torch_noise.words_at(signed.expand(10_007), at.expand(10_007), blocks))
        none = np.zeros((), np.uint64)
        key_words = (np.uint64(key & FULL), np.uint64(key >> 32))
        defined = sampling.philox((blocks.numpy().astype(np.uint64), np.uint64(position), none, none), key_words)  # type: ignore[arg-type]
        assert (flat.numpy().astype(np.uint64) == np.stack(defined, -1)).all()


def test_torch_draws_the_very_same_noise() -> None:
    keys = [0, 1, 2**64 - 1, 0x9E3779B97F4A7C15]
    signed = torch.tensor([torch_noise.as_signed(k) for k in keys])
    found = torch_noise.gumbel(signed, torch.tensor([0, 5, 31, 70_000]), 1003).double().numpy()
    for row, (key, position) in enumerate(zip(keys, (0, 5, 31, 70_000), strict=True)):
        assert np.abs(found[row] - sampling.noise(key, np.array([position]), 1003)[0]).max() < 1e-5


def test_noise_is_finite_and_exact_for_extreme_words() -> None:
    near = np.arange(-4096, 4096)
    middles = [2**bits + near for bits in range(14, 32)]  # float32 rounds differently beyond each power of two
    sample = np.random.default_rng(0).integers(0, 2**32, 1 << 18)
    edge = np.concatenate([near[near >= 0], *middles, 2**32 + near[near < 0], sample])
    defined = sampling.gumbel_of_words(edge.astype(np.uint64))
    found = torch_noise.gumbel_of_words(torch.tensor(edge)).double().numpy()
    assert np.isfinite(defined).all()
    assert np.isfinite(found).all()
    assert np.abs(defined - found).max() < 1e-5
    assert np.abs(defined - torch_noise.exact(torch.tensor(edge)).numpy()).max() < 1e-12
    assert -3.2 < defined.min() < defined.max() < sampling.NOISE_MAX


def test_noise_has_the_moments_of_a_gumbel_distribution() -> None:
    noise = sampling.noise(7, np.arange(64), 4096)
    assert abs(noise.mean() - 0.5772) < 0.01
    assert abs(noise.var() - 1.6449) < 0.02


def test_the_argmax_is_distributed_as_softmax() -> None:
    logits = np.array([1.0, 0.0, -1.0, 2.0])
    noise = sampling.noise(3, np.arange(40_000), 4)
    share = np.bincount((logits + noise).argmax(1), minlength=4) / 40_000
    assert np.abs(share - np.exp(logits) / np.exp(logits).sum()).max() < 0.01


def test_the_drawn_token_has_no_margin_and_others_do() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((20, 50)).astype(np.float32)
    drawn = (logits + 0.8 * sampling.noise(9, np.arange(20), 50)).argmax(1)
    assert sampling.score(logits, drawn, key=9, temperature=0.8).margins.max() == 0
    wrong = (drawn + 1) % 50
    assert (sampling.score(logits, wrong, key=9, temperature=0.8).margins > 0).all()


def test_logprobs_are_those_of_temperature_one() -> None:
    logits = np.random.default_rng(1).standard_normal((5, 9)).astype(np.float32)
    tokens = np.array([0, 3, 8, 2, 1])
    expected = torch.log_softmax(torch.tensor(logits).double(), -1)[torch.arange(5), torch.tensor(tokens)]
    found = sampling.score(logits, tokens, key=0, temperature=0.5).logprobs
    assert np.allclose(found, expected.numpy())


# ---- the cut -----------------------------------------------------------------------------------------------------------


def drawn_of(logits: list[float], temperature: float, draws: int = 4000, **cut: float) -> set[int]:
    rows = np.tile(np.array(logits), (draws, 1))
    return set(sampling.draw(rows, key=11, temperature=temperature, **cut).tolist())


HALVES = [np.log(share) for share in (0.05, 0.5, 0.3, 0.1, 0.05)]


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 4}, {0, 1, 2, 3}),  # of equals the lower index
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.79}, {1, 2}),
        ({"top_p": 0.85}, {1, 2, 3}),
        ({"top_p": 0.92}, {0, 1, 2, 3}),
        ({"top_p": 0.001}, {1}),
        ({"top_k": 3, "top_p": 0.85}, {1, 2}),  # 0.8 of 0.9 left lie before the third: 0.89
    ],
)
def test_the_cut_keeps_exactly_these(cut: dict[str, float], kept: set[int]) -> None:
    assert drawn_of(HALVES, 1.0, **cut) == kept


def test_the_cut_is_of_the_tempered_distribution() -> None:
    assert drawn_of(HALVES, 0.2, top_p=0.9) == {1}
    assert drawn_of(HALVES, 5.0, top_p=0.9) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.5}])
def test_temperature_0_is_the_first_of_the_best_whatever_else(cut: dict[str, float]) -> None:
    logits = np.array([[0.0, 3.0, 1.0, 3.0]])
    assert sampling.draw(logits, key=1, temperature=0.0, **cut).tolist() == [1]
    margins = [sampling.score(logits, np.array([t]), key=1, temperature=0.0, **cut).margins[0] for t in range(4)]
    assert margins == [3, 0, 2, 0]


def test_what_is_kept_is_distributed_as_the_renormalised_softmax() -> None:
    tokens = sampling.draw(np.tile(np.array(HALVES), (20_000, 1)), key=5, temperature=1.0, top_k=3)
    share = np.bincount(tokens, minlength=5) / 20_000
    assert np.abs(share - np.array([0, 0.5, 0.3, 0.1, 0]) / 0.9).max() < 0.015


@pytest.mark.parametrize(("cut", "bound"), [("none", 2), ("top_k", 2), ("top_p", 2), ("both", 4)])
def test_an_honest_machines_margin_is_bounded_by_how_far_its_logits_are_off(cut: str, bound: int) -> None:
    """Ties, near ties and cuts that fall between them: one rounding is never more than a rounding."""
    rng = np.random.default_rng(7)
    disagreed = 0
    for trial in range(700):
        vocabulary, off = int(rng.integers(2, 50)), float(10 ** rng.uniform(-3, -0.3))
        logits = rng.standard_normal(vocabulary) * rng.uniform(0.1, 4)
        if trial % 2:
            logits = np.round(4 * logits) / 4
        theirs = logits + rng.uniform(-off, off, vocabulary)
        given = {"key": int(rng.integers(2**62)), "temperature": float(rng.uniform(0.3, 2))}
        if cut in ("top_k", "both"):
            given["top_k"] = int(rng.integers(1, vocabulary + 1))
        if cut in ("top_p", "both"):  # often just where a cut falls
            shares = np.sort(np.exp(logits / given["temperature"]))[::-1].cumsum()
            at = float(rng.choice(shares) / shares[-1]) if trial % 3 else float(rng.uniform(0.05, 0.999))
            given["top_p"] = min(max(at, 0.001), 0.999)
        token = sampling.draw(theirs[None], **given)
        assert sampling.score(theirs[None], token, **given).margins[0] == 0
        margin = sampling.score(logits[None], token, **given).margins[0]
        assert margin <= bound * off * (1 + 1e-6) + 1e-9
        disagreed += margin > 0
    assert disagreed > 10


def test_a_token_beyond_the_cut_has_the_margin_of_its_distance() -> None:
    logits = np.array([[5.0, 4.0, 3.0, 1.0]])
    for key in range(200):  # whatever its noise
        assert sampling.score(logits, np.array([3]), key=key, temperature=1.0, top_k=2).margins[0] >= 3
    margins = [
        sampling.score(logits, np.array([2]), key=key, temperature=1.0, top_k=2).margins[0] for key in range(200)
    ]
    assert min(margins) == 1  # where its noise is best


# ---- what is measured of a sequence --------------------------------------------------------------------------------------


LIMITS = {"mismatch_above": 0.01, "margin_clip": 0.5}


def long_submission(length: int) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Logits, honest tokens, and how they were drawn."""
    logits = np.random.default_rng(3).standard_normal((length, 64)).astype(np.float32) * 3
    given = {"key": 77, "temperature": 1.0}
    return logits, sampling.draw(logits, **given), given


def test_one_token_among_ten_thousand_is_seen_though_no_mean_shows_it() -> None:
    logits, tokens, given = long_submission(10_000)
    scores = sampling.score(logits, tokens, **given)
    honest = sampling.measure(scores, scores.logprobs, **LIMITS)
    assert {name: m.value for name, m in honest.items()} == dict.fromkeys(honest, 0.0)
    for place in (0, 4_999, 9_984, 9_999):  # the short last chunk and the last token included
        row, edited = logits[place : place + 1], np.array([logits[place].argmin()])
        margins = scores.margins.copy()
        margins[place] = sampling.score(row, edited, first=place, **given).margins[0]
        found = sampling.measure(scored(margins, scores.logprobs), scores.logprobs, **LIMITS)
        assert found["token_margin"].value > 2
        assert found["token_margin"].place == f"token {place}"
        assert found["chunk_mismatches"] == sampling.Measured(1.0, f"chunk {place // 32}")
        assert found["sequence_mismatches"].value == 1
        assert found["mean_margin"].value < 0.005  # what an average alone would have let pass
        assert found["chunk_mean_margin"] == sampling.Measured(pytest.approx(0.5 / 32), f"chunk {place // 32}")


@pytest.mark.parametrize("length", [1, 2, 8, 33])
def test_one_honest_rounding_in_a_short_answer_is_no_habit(length: int) -> None:
    """0.06 is the largest margin that honest bf16 work was seen with; no mean may make more of it than the token is."""
    margins = np.zeros(length)
    margins[-1] = 0.06
    found = sampling.measure(scored(margins), np.zeros(length), **LIMITS)
    assert found["mean_margin"].value < FLOORS["mean_margin"]
    assert found["chunk_mean_margin"].value < FLOORS["chunk_mean_margin"]
    assert found["token_margin"].value == 0.06


def test_a_run_of_small_margins_shows_in_its_chunk() -> None:
    """Each below any limit of one token, all in one chunk of a long sequence."""
    margins = np.zeros(10_000)
    margins[6400:6432] = 0.1
    found = sampling.measure(scored(margins), np.zeros(10_000), **LIMITS)
    assert found["chunk_mean_margin"].value == pytest.approx(0.1)
    assert found["chunk_mismatches"] == sampling.Measured(32.0, "chunk 200")
    assert found["mean_margin"].value < 0.005


def test_a_logprob_that_is_no_number_is_the_worst_there_is() -> None:
    scores = scored(np.zeros(40), np.full(40, -1.0))
    claimed = np.full(40, -1.0, np.float32)
    claimed[17] = np.nan
    assert np.isnan(sampling.measure(scores, claimed, **LIMITS)["logprob_error"].value)
    claimed[17] = -1.5
    assert sampling.measure(scores, claimed, **LIMITS)["logprob_error"] == sampling.Measured(0.5, "token 17")
