"""Gumbel noise in torch: the same words as protocol/sampling.py, the same noise to 1e-5, finite for every word.

float32 cannot hold the uniform near 1, so each half of the range is computed from the side that float32 holds to full
relative precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF


def _multiply(a: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 × 32 bit product, within signed 64 bits: `a` is split into halves of 16 bits."""
    low, high = (a & 0xFFFF) * m, (a >> 16) * m
    total = low + ((high & 0xFFFF) << 16)
    return (high >> 16) + (total >> 32), total & _LOW


def words(keys_B: Tensor, positions_B: Tensor, vocabulary: int) -> Tensor:
    """Philox4x32-10 words [B, vocabulary] as int64. `keys_B` holds the 64 key bits as int64, whatever their sign."""
    blocks = torch.arange((vocabulary + 3) // 4, device=keys_B.device)[None]
    c0, c1 = torch.broadcast_tensors(blocks, positions_B[:, None])
    c2 = c3 = torch.zeros_like(c0)
    k0, k1 = (keys_B & _LOW)[:, None], ((keys_B >> 32) & _LOW)[:, None]
    for _ in range(10):
        h0, l0 = _multiply(c0, _M0)
        h1, l1 = _multiply(c2, _M1)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return torch.stack([c0, c1, c2, c3], dim=-1).flatten(1)[:, :vocabulary]


def gumbel_of_words(words_: Tensor) -> Tensor:
    """float32 noise of 32-bit words held in int64."""
    small = (words_.to(torch.float32) + 0.5) * 2.0**-32  # v, precise where it is small
    rest = ((_LOW - words_).to(torch.float32) + 0.5) * 2.0**-32  # 1 - v, precise where v is large
    exponential = torch.where(words_ < 1 << 31, -torch.log1p(-small.clamp(max=0.75)), -torch.log(rest))
    return -torch.log(exponential)


def gumbel(keys_B: Tensor, positions_B: Tensor, vocabulary: int) -> Tensor:
    """Noise [B, vocabulary] for one position of each of B samples."""
    return gumbel_of_words(words(keys_B, positions_B, vocabulary))


def as_signed(key: int) -> int:
    """The int64 with the bits of an unsigned 64-bit key."""
    return key - (1 << 64) if key >= 1 << 63 else key
