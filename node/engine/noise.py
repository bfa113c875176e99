"""Gumbel noise in torch: the same words as protocol/sampling.py, finite for every word, on any device.

`gumbel` is the noise of whole rows in float32, within 1e-5 of the definition: float32 cannot hold the uniform near 1, so each
half of the range is computed from the side that float32 holds to full relative precision. `words_at` and `exact` give
scattered places, in float64, to whoever needs few of them (node/engine/sampler.py).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

M0, M1, W0, W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
"""Of Philox4x32-10: what is multiplied with, and what is added to the key in each round."""
_LOW = 0xFFFFFFFF


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10: four 32-bit words per counter, all held in int64 tensors that broadcast.

    Products of two 32-bit words wrap around in int64. Only what is multiplied has to be free of higher bits, so that one mask
    takes off the copies of the sign that the arithmetic shift leaves, and what the words of the last round carry along.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * M0, c2 * M1
        c0, c1 = ((p1 >> 32) ^ (c1 ^ k0)).bitwise_and_(_LOW), p1
        c2, c3 = ((p0 >> 32) ^ (c3 ^ k1)).bitwise_and_(_LOW), p0
        k0, k1 = (k0 + W0) & _LOW, (k1 + W1) & _LOW
    return c0, c1 & _LOW, c2, c3 & _LOW


def words_at(keys: Tensor, positions: Tensor, blocks: Tensor) -> Tensor:
    """The four words [..., 4] of vocabulary indices 4·block … 4·block + 3; the arguments broadcast.

    `keys` holds the 64 key bits as int64, whatever their sign.
    """
    if blocks.device.type == "cpu" and blocks.ndim == 1:
        return _words_on_cpu(keys, positions, blocks)
    none = torch.zeros((), dtype=torch.int64, device=blocks.device)
    words = philox((blocks, positions, none, none), (keys & _LOW, (keys >> 32) & _LOW))
    return torch.stack(torch.broadcast_tensors(*words), dim=-1)


def _words_on_cpu(keys: Tensor, positions: Tensor, blocks_N: Tensor) -> Tensor:
    from node.engine import compiled_draw  # which takes the constants from here

    made = torch.empty(len(blocks_N), 4, dtype=torch.int64)
    keys, positions = (part.expand(len(blocks_N)).contiguous() for part in (keys, positions))
    compiled_draw.words(keys.numpy().view(np.uint64), positions.numpy(), blocks_N.contiguous().numpy(), made.numpy())
    return made


def gumbel_of_words(words: Tensor) -> Tensor:
    """float32 noise of 32-bit words held in int64."""
    small = (words.to(torch.float32) + 0.5) * 2.0**-32  # v, precise where it is small
    rest = ((_LOW - words).to(torch.float32) + 0.5) * 2.0**-32  # 1 - v, precise where v is large
    exponential = torch.where(words < 1 << 31, -torch.log1p(-small.clamp(max=0.75)), -torch.log(rest))
    return -torch.log(exponential)


def exact(words: Tensor) -> Tensor:
    """float64 noise of 32-bit words held in int64: the definition."""
    return words.to(torch.float64).add_(0.5).mul_(-(2.0**-32)).log1p_().neg_().log_().neg_()


def exact_at(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """float64 noise of one vocabulary index each."""
    words = words_at(keys, positions, tokens // 4)
    return exact(words.gather(-1, (tokens % 4)[..., None]).squeeze(-1))


def gumbel(keys_B: Tensor, positions_B: Tensor, vocabulary: int) -> Tensor:
    """float32 noise [B, vocabulary] for one position of each of B samples."""
    blocks = torch.arange((vocabulary + 3) // 4, device=keys_B.device)
    words = words_at(keys_B[:, None], positions_B[:, None], blocks[None])
    return gumbel_of_words(words.flatten(1)[:, :vocabulary])


def as_signed(key: int) -> int:
    """The int64 with the bits of an unsigned 64-bit key."""
    return key - (1 << 64) if key >= 1 << 63 else key
