"""The draw: whether the fused kernel (node/engine/fused_draw.py) is used on this device, and what a draw takes.

Against softmax and `torch.multinomial`, and on a GPU against the same seeded draw in torch. Logits [B, V] in bfloat16, of one nat,
V = 151,936; that they are drawn rightly is tests/gpu/test_draw.py's.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from benches import Cost, Row
from benches.engine_work import entropy, root
from torch import Tensor

from gpu import Place, Record, clock
from gpu.model import shape_of
from node.engine import sampler

_ROWS = (1, 32, 256)


def run(at: Place, report: Record) -> None:
    vocabulary = shape_of(dry=at.dry)["vocab_size"]
    rows = (4,) if at.dry else _ROWS
    kernel = None if at.dry else _kernel(at, report)
    for count in rows:
        logits = _of_one_nat(count, vocabulary, at.device)
        _row(report, at, logits, kernel)


def _kernel(at: Place, report: Record) -> Any:
    """The fused draw, where it draws what the sampler does; else what is wrong with it goes into the report."""
    if importlib.util.find_spec("triton") is None:
        report.fact(kernel="not used: Triton is not installed")
        return None
    from node.engine import fused_draw

    for dtype in (torch.float32, torch.bfloat16):
        agrees = fused_draw.agrees(torch.device(at.device, 0), dtype)
        report.fact(**{f"kernel_agrees_in_{str(dtype).removeprefix('torch.')}": agrees})
    report.fact(kernel_used=sampler._kernel(torch.device(at.device, 0), torch.bfloat16) is not None)
    return fused_draw.draw


def _row(report: Record, at: Place, logits: Tensor, kernel: Any) -> None:
    count, vocabulary = logits.shape
    keys = torch.randint(-(1 << 63), (1 << 63) - 1, (count,), device=at.device)
    positions = torch.zeros_like(keys)
    calls = 2 if at.dry else 50
    made = {
        "ours": lambda: sampler.draw(logits, keys, positions, temperature=1.0),
        "multinomial": lambda: torch.multinomial(logits.float().softmax(-1), 1),
        "torch": lambda: sampler.draw_anywhere(logits, keys, positions, temperature=1.0),
    }
    if kernel is not None:
        made["kernel"] = lambda: kernel(logits, keys, positions, temperature=1.0)
    micro = {name: 1e6 * clock.each(work, at.device, calls=calls) for name, work in made.items()}
    what = f"drawing {count} rows, vocabulary {vocabulary}"
    peer = micro["multinomial"]
    report.row(Cost(f"{what}: seeded, against multinomial", "µs", micro["ours"], peer, peer / micro["ours"], None))
    if kernel is not None:
        slow = micro["torch"]
        report.row(
            Cost(f"{what}: one kernel, against torch", "µs", micro["kernel"], slow, slow / micro["kernel"], None)
        )
        read = logits.nbytes / micro["kernel"] / 1e3
        report.row(Row(f"{what}: logits that the kernel reads", "GB/s", read, None, None, None))


def _of_one_nat(count: int, vocabulary: int, device: str) -> Tensor:
    generator = torch.Generator(device).manual_seed(0)
    logits = torch.randn(count, vocabulary, generator=generator, device=device)
    return (logits * root(lambda factor: entropy(logits * factor) - 1.0, 1e-2, 1e3)).bfloat16()
