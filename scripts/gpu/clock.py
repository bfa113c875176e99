"""Time on a device: seconds between two moments at which it has nothing left to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch


def wait(device: str) -> None:
    """Until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str) -> float:
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def each(work: Callable[[], object], device: str, *, calls: int, rounds: int = 5) -> float:
    """Seconds of one of many calls in a row: the median round of some, after one that warms up."""

    def many() -> None:
        for _ in range(calls):
            work()

    seconds(many, device)
    return statistics.median(seconds(many, device) for _ in range(rounds)) / calls


def in_turns(works: Sequence[Callable[[], object]], device: str, *, rounds: int) -> list[float]:
    """Seconds of each: the best of some rounds in which they take turns, after one that counts for nobody."""
    best = [float("inf")] * len(works)
    for turn in range(rounds + 1):
        for i, work in enumerate(works):
            took = seconds(work, device)
            if turn:
                best[i] = min(best[i], took)
    return best
