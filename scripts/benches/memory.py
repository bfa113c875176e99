"""How much memory torch's CPU tensors take at most while something runs, exactly, from the allocator's own record."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes of tensors alive at once during `call`, over those that were there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = torch.tensor([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    return int(live.cumsum(0).max()) if len(live) else 0
