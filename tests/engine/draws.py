"""What the draw in one kernel (node/engine/fused_draw.py) must show, wherever it runs: in Triton's interpreter, or on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from node.engine import noise, sampler
from protocol import sampling

CUTS: list[dict[str, Any]] = [
    {"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 2.0, "top_k": 50}, {"temperature": 0.8, "top_k": 300, "top_p": 0.7},
    {"temperature": 1.5, "top_p": 0.95},
]  # fmt: skip
VOCABULARIES = [3, 1003, 20_001]
"""One program or two for a row, and vocabularies that end within a block."""
DTYPES = [torch.float32, torch.bfloat16]


def vectors(name: str) -> Any:
    return json.loads((Path(__file__).parent.parent / "vectors" / f"{name}.json").read_text())


DRAWS = vectors("draws")["cases"]


def require_noise(fused: Any, device: torch.device) -> None:
    """The noise is the definition's, within 1e-5 and finite."""
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
    out = torch.empty(4096, device=device)
    gumbel[(1,)](torch.from_numpy(words.view(np.int32)).view(torch.uint32).to(device), out, N=4096)
    expected = sampling.gumbel_of_words(words)
    found = out.cpu().numpy()
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max() < 1e-5


def require_vector(fused: Any, case: dict[str, Any], device: torch.device) -> None:
    given = vectors("draws")
    i = np.arange(given["positions"] * given["vocabulary"])
    logits = ((40503 * i + 9973 * (i // 32)) % 611 / 100).reshape(given["positions"], -1).astype(np.float32)
    keys = torch.full((len(logits),), noise.as_signed(int(given["key"])), device=device)
    cut = {"temperature": float(case["temperature"]), "top_k": case["top_k"], "top_p": float(case["top_p"])}
    tokens, _, _ = fused.draw(
        torch.from_numpy(logits).to(device), keys, torch.arange(len(logits), device=device), **cut
    )
    assert tokens.tolist() == case["tokens"]


def require_same(
    fused: Any, cut: dict[str, Any], vocabulary: int, dtype: torch.dtype, device: torch.device, rounding: float = 1e-5
) -> None:
    """What the sampler draws on the CPU, from ties among rounded logits and rows that are not next to each other; normalisers within
    `rounding`."""
    logits = (4 * torch.randn(5, 2 * vocabulary, generator=torch.Generator().manual_seed(1))).to(dtype)[:, :vocabulary]
    keys = torch.tensor([0, -1, 1 << 62, -(1 << 63), 12345])
    positions = torch.tensor([0, 1, 7, 40_000, 2])
    expected = sampler.draw_anywhere(logits, keys, positions, **cut)
    wide = torch.cat([logits, logits], 1).to(device)[:, :vocabulary]
    tokens, scores, normalisers = (
        part.cpu() for part in fused.draw(wide, keys.to(device), positions.to(device), **cut)
    )
    assert tokens.tolist() == expected.tokens.tolist()
    assert torch.allclose(scores, expected.scores, rtol=0, atol=1e-9)
    assert torch.allclose(normalisers, expected.normalisers, rtol=0, atol=rounding)


def require_odd_rows(fused: Any, device: torch.device) -> None:
    """A row without numbers draws the index of one, and masked tokens are never drawn."""
    logits = torch.zeros(3, 20_000, device=device)
    logits[0, 17_111] = float("nan")
    logits[1, :19_000] = -torch.inf
    keys = positions = torch.arange(3, device=device)
    tokens, _, normalisers = fused.draw(logits, keys, positions, temperature=1.0)
    assert tokens[0] == 17_111
    assert tokens[1] >= 19_000
    assert normalisers[0].isnan()
    assert torch.allclose(normalisers[1:].cpu(), torch.tensor([1000.0, 20_000.0]).log(), atol=1e-5)
