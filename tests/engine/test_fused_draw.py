"""The draw in one kernel, in Triton's interpreter on the CPU (scripts/test-vllm has Triton): the vectors, and the sampler's draws."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from node.engine import noise, sampler
from protocol import sampling

pytestmark = [
    pytest.mark.timeout(3600),  # an interpreter in Python, perhaps on a busy machine
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="Triton is not installed: see scripts/test-vllm"
    ),
]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def fused() -> Any:
    os.environ["TRITON_INTERPRET"] = "1"  # read as the kernel is defined
    from node.engine import fused_draw

    return fused_draw


def vectors(name: str) -> Any:
    return json.loads((Path(__file__).parent.parent / "vectors" / f"{name}.json").read_text())


def test_the_noise_is_the_definitions(fused: Any) -> None:
    """Where it decides alone: every token's score is its noise."""
    import triton
    import triton.language as tl

    @triton.jit
    def gumbel(words, out, N: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, N)
        tl.store(out + at, fused_gumbel(tl.load(words + at)))

    fused_gumbel = gumbel.fn.__globals__["fused_gumbel"] = fused._gumbel
    rng = np.random.default_rng(0)
    edges = [case["word"] for case in vectors("gumbel")]
    words = np.concatenate([edges, rng.integers(0, 1 << 32, 4096 - len(edges))]).astype(np.uint32)
    out = torch.empty(4096)
    gumbel[(1,)](torch.from_numpy(words.view(np.int32)).view(torch.uint32), out, N=4096)
    expected = sampling.gumbel_of_words(words)
    assert np.isfinite(out.numpy()).all()
    assert np.abs(out.numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("case", vectors("draws")["cases"], ids=str)
def test_the_draws_are_the_vectors(fused: Any, case: dict[str, Any]) -> None:
    given = vectors("draws")
    i = np.arange(given["positions"] * given["vocabulary"])
    logits = ((40503 * i + 9973 * (i // 32)) % 611 / 100).reshape(given["positions"], -1).astype(np.float32)
    keys = torch.full((len(logits),), noise.as_signed(int(given["key"])))
    cut = {"temperature": float(case["temperature"]), "top_k": case["top_k"], "top_p": float(case["top_p"])}
    tokens, _, _ = fused.draw(torch.from_numpy(logits), keys, torch.arange(len(logits)), **cut)
    assert tokens.tolist() == case["tokens"]


CUTS = [{"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 2.0, "top_k": 50}, {"temperature": 0.8, "top_k": 300, "top_p": 0.7}, {"temperature": 1.5, "top_p": 0.95}]  # fmt: skip


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("vocabulary", [3, 1003, 20_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_draws_what_the_sampler_draws(fused: Any, cut: dict[str, Any], vocabulary: int, dtype: torch.dtype) -> None:
    """One program or two for a row, vocabularies that end within a block, ties among rounded logits, rows that are not next to each other."""
    logits = (4 * torch.randn(5, 2 * vocabulary, generator=torch.Generator().manual_seed(1))).to(dtype)[:, :vocabulary]
    keys = torch.tensor([0, -1, 1 << 62, -(1 << 63), 12345])
    positions = torch.tensor([0, 1, 7, 40_000, 2])
    expected = sampler.draw_anywhere(logits, keys, positions, **cut)
    tokens, scores, normalisers = fused.draw(logits, keys, positions, **cut)
    assert tokens.tolist() == expected.tokens.tolist()
    assert torch.allclose(scores, expected.scores, rtol=0, atol=1e-9)
    assert torch.allclose(normalisers, expected.normalisers, rtol=0, atol=1e-5)


def test_a_row_without_numbers_draws_the_index_of_one_and_masked_tokens_are_never_drawn(fused: Any) -> None:
    logits = torch.zeros(3, 20_000)
    logits[0, 17_111] = float("nan")
    logits[1, :19_000] = -torch.inf
    keys = positions = torch.arange(3)
    tokens, _, normalisers = fused.draw(logits, keys, positions, temperature=1.0)
    assert tokens[0] == 17_111
    assert tokens[1] >= 19_000
    assert normalisers[0].isnan()
    assert torch.allclose(normalisers[1:], torch.tensor([1000.0, 20_000.0]).log(), atol=1e-5)


def test_it_is_used_only_where_it_agrees(fused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fused.agrees.cache_clear()
    assert fused.agrees(CPU, torch.float32)
    fused.agrees.cache_clear()
    right = fused.draw
    monkeypatch.setattr(fused, "draw", lambda logits, keys, *a, **cut: right(logits, keys + 1, *a, **cut))
    assert not fused.agrees(CPU, torch.float32)
    fused.agrees.cache_clear()
    sampler._kernel.cache_clear()
    assert sampler._kernel(CPU, torch.float32) is None
    sampler._kernel.cache_clear()
    fused.agrees.cache_clear()
