"""Philox, the Gumbel noise, and scoring; the definition in NumPy and the torch form the engine uses."""

from __future__ import annotations

import numpy as np
import torch

from node.engine import noise as torch_noise
from protocol import sampling

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


def test_torch_draws_the_very_same_words() -> None:
    keys = [0, 1, 2**64 - 1, 0x9E3779B97F4A7C15]
    signed = torch.tensor([torch_noise.as_signed(k) for k in keys])
    found = torch_noise.gumbel(signed, torch.tensor([0, 5, 31, 70_000]), 1003).double().numpy()
    for row, (key, position) in enumerate(zip(keys, (0, 5, 31, 70_000), strict=True)):
        assert np.abs(found[row] - sampling.noise(key, np.array([position]), 1003)[0]).max() < 1e-5


def test_noise_is_finite_and_exact_for_extreme_words() -> None:
    edge = np.concatenate([np.arange(4096), np.arange(2**31 - 2048, 2**31 + 2048), np.arange(2**32 - 4096, 2**32)])
    defined = sampling.gumbel_of_words(edge.astype(np.uint64))
    found = torch_noise.gumbel_of_words(torch.tensor(edge)).double().numpy()
    assert np.isfinite(defined).all()
    assert np.isfinite(found).all()
    assert np.abs(defined - found).max() < 1e-5
    assert -3.2 < defined.min() < defined.max() < 22.9


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
