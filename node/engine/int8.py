"""Products of int8 matrices on the device that computes, for challenges (protocol/challenge.py)."""

from __future__ import annotations

import torch

from node.engine import device as devices
from protocol import challenge
from protocol.challenge import Int8, Int32
from protocol.errors import Unavailable


def product(setting: str, left: Int8, right: Int8) -> Int32:
    """Rows of `left` times rows of `right` on the device that `engine.device` means. Raises Unavailable where its memory is taken.

    CUDA multiplies int8 itself; everything else takes the CPU's way.
    """
    on = devices.named(setting)
    return on_device(on, left, right) if on.type == "cuda" else challenge.product(left, right)


@torch.inference_mode()
def on_device(on: torch.device, left: Int8, right: Int8) -> Int32:
    """By `torch._int_mm`, whose sums are int32. `right` goes in as columns, as cuBLASLt has it for int8."""
    try:
        there = [torch.from_numpy(matrix).to(on) for matrix in (left, right)]
        return torch._int_mm(there[0], there[1].t()).cpu().numpy()
    except torch.OutOfMemoryError as error:
        raise Unavailable("the device has no memory free for a challenge") from error
