"""The scores of given tokens on a CPU, of logits that are shown a part of the vocabulary at a time and never kept.

The same as sampler.py's `score`, but for the last digits of logprobs, in one pass over what a product with `lm_head` has just left in the
processor's cache (compiled_scan.py). Noise, margins and gaps are computed in float64 for whatever can be the draw or one of its rivals, and
for nothing else.

Does not cover: distributions that are cut, temperature 0, devices other than CPUs; nor batch-invariant work, whose logprobs must be those of the
draw bit by bit.

Shapes: T tokens of one sample, N tokens of a part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from node.engine import noise, output, products, widened
from protocol import sampling
from protocol.sampling import TokenScores

_PART = 2048  # tokens of a vocabulary, of which fewer make no product efficient


def _ordered(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """As compiled_scan.py orders the bits of float32, and back."""
    return np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


_ORDERED_INFINITIES = _ordered(np.array([np.inf, -np.inf], np.float32).view(np.int32))


def covers(device: torch.device, temperature: float, top_k: int, top_p: float) -> bool:
    """Whether a part of the vocabulary after the other can be scored: on a CPU, where nothing is cut and noise decides."""
    return device.type == "cpu" and temperature > 0 and not top_k and top_p >= 1


class Scan:
    """The scores of one sample's tokens, whose logits are shown a part of the vocabulary at a time and never kept (compiled_scan.py)."""

    def __init__(self, tokens_T: Tensor, key: int, first: int, temperature: float) -> None:
        """`tokens_T` stand at positions first, first + 1, …"""
        count = len(tokens_T)
        self._tokens, self._key, self._temperature = tokens_T, noise.as_signed(key), temperature
        self._positions = np.arange(first, first + count)
        self._keys = np.full(count, key, np.uint64)
        self._chosen = torch.full((count,), torch.nan, dtype=torch.float32)
        self._extremes = np.empty((2, count), np.int32)
        self._extremes[:] = _ORDERED_INFINITIES[:, None]
        self._sums, self._best = np.zeros(count), np.full(count, -np.inf)
        self._drawn, self._logits = np.zeros(count, np.int64), np.full(count, -np.inf, np.float32)
        self._rivals = np.full((count, sampling.RIVALS), -np.inf)

    def take(self, start: int, logits_TN: Tensor) -> None:
        """The logits of tokens start, start + 1, …; parts come in order, and each but the last has a multiple of 4."""
        from node.engine import compiled_scan

        if not logits_TN.numel():
            return
        part = logits_TN.float().contiguous()
        within = (self._tokens >= start) & (self._tokens < start + part.shape[1])
        self._chosen[within] = part[within, self._tokens[within] - start]
        compiled_scan.scan(
            part.numpy(), part.view(torch.int32).numpy(), start, self._keys, self._positions, self._temperature,
            sampling.RIVALS_WITHIN, self._extremes, self._sums, self._best, self._drawn, self._logits, self._rivals,
        )  # fmt: skip

    @property
    def is_finite(self) -> bool:
        """Whether every logit was a number."""
        most, least = _ORDERED_INFINITIES
        return bool((self._extremes[0] > least).all() and (self._extremes[1] < most).all())

    def scores(self) -> TokenScores:
        """Once the whole vocabulary was shown."""
        chosen = self._chosen.double().numpy()
        keys = torch.full_like(self._tokens, self._key)
        noised = (
            chosen + self._temperature * noise.exact_at(keys, torch.from_numpy(self._positions), self._tokens).numpy()
        )
        tokens = self._tokens.numpy()
        margins = np.where(self._drawn == tokens, 0.0, np.maximum(self._best - noised, 0))
        gaps = self._best[:, None] - self._rivals
        gaps[~(gaps <= sampling.RIVALS_WITHIN)] = np.inf
        lowest, highest = _ordered(self._extremes).view(np.float32).astype(np.float64)
        logprobs = chosen - (highest + np.log(self._sums))
        return TokenScores(margins, logprobs, self._drawn, chosen - self._logits, gaps, highest - lowest)


def logits_in_parts(model: Any, hidden_TH: Tensor, most: int) -> Iterator[tuple[int, Tensor]]:
    """A model's own logits, as output.py has them, a part of the vocabulary at a time, each with its first token, a multiple of 4: some `most` logits
    at once, where the output layer is a plain one."""
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        yield 0, output.logits(model, hidden_TH)
        return
    bend = output.bend_of(model.config)
    linear = widened.linear if widened.is_meant(layer.weight) else products.linear
    step = max(_PART, most // max(1, len(hidden_TH)) // _PART * _PART)
    for first in range(0, len(layer.weight), step):
        bias = None if layer.bias is None else layer.bias[first : first + step]
        yield first, bend.apply_(linear(hidden_TH, layer.weight[first : first + step], bias))
