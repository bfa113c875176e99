"""When units can be claimed: Ring.sol as a reader needs it.

A seat's units lie in six buckets by age, in one word. Those of epoch k mature at the start of epoch k + 6, 1.0 to 1.2 windows after they were
committed.
"""

from __future__ import annotations

_BUCKETS = 6
_BUCKET = (1 << 32) - 1
_EPOCH = (1 << 64) - 1


def epoch_seconds(window: int) -> int:
    return (window + 4) // 5


def matures_at(time: int, window: int) -> int:
    """Block time from which on what was committed at `time` can be claimed."""
    seconds = epoch_seconds(window)
    return (time // seconds + _BUCKETS) * seconds


def waiting(ring: int, now: int, window: int) -> list[tuple[int, int]]:
    """(block time, units) of what matures after `now`, soonest first."""
    seconds, newest = epoch_seconds(window), ring & _EPOCH
    epochs = range(max(0, newest - _BUCKETS + 1), newest + 1)
    found = [((epoch + _BUCKETS) * seconds, ring >> (64 + 32 * (epoch % _BUCKETS)) & _BUCKET) for epoch in epochs]
    return [(at, units) for at, units in found if units and at > now]
