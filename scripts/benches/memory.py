"""How much memory torch's CPU tensors take at most while something runs, exactly, from the allocator's own record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes of tensors alive at once during `call`, over those that were there before.

    What another thread lets go, as gloo's do, is often missing from the record. It is let go when its address is given out again.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    live: dict[int, int] = {}  # bytes by address
    now = most = 0
    for address, size in _allocations(recorded):
        if size > 0:
            now += size - live.get(address, 0)
            live[address] = size
        else:
            now -= live.pop(address, -size)
        most = max(most, now)
    return most


def _allocations(recorded: profile) -> list[tuple[int, int]]:
    """Address and bytes of each, in the order of time; bytes are negative where they were given back."""
    profiler: Any = recorded.profiler
    events, found = list(profiler.kineto_results.experimental_event_tree()), []
    while events:
        event = events.pop()
        events += event.children
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    return [(address, size) for _, address, size in sorted(found, key=lambda allocation: allocation[0])]
