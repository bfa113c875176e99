"""What the device that computes can do: memory, matrix products in bf16 and fp32, and what its memory moves.

It asks what the machine can do, not what is left of it, and the best of several short rounds stands. On a CPU one thread is measured, by
the CPU time that it took, and counts for each core that may be used: other programs hardly matter, and threads that wait for each other
not at all. What the memory moves is what one core moves of it there. On a GPU the time is the device's own.
Where an engine splits a model over several GPUs each is measured, and the least of them counts as often as there are: a step ends with
the last. Does not cover: what goes from one to another meanwhile, what an engine makes of it (tokens per second are `scripts/bench
engine`'s), sparsity and tensor formats below 16 bits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from node.engine import device as devices
from node.engine import factory
from node.engine.settings import EngineSettings
from protocol import resources

DTYPES = ("bfloat16", "float32")
"""Those that a run may compute in."""

_ROUNDS = 5
_ROUND_SECONDS = 0.02  # a round is as long at least: what starts a kernel is then a small part of it
_SIDES = (256, 512, 1024, 2048, 4096, 8192)  # of the square matrices
_COPIED_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}  # beyond all caches
_SHARE_OF_FREE = 8  # no more than this part of the free memory is used


@dataclass(frozen=True)
class Measurement:
    """Bytes, and rates per second."""

    device: str
    memory: int
    """Of the device or all of them, used or not; of a container as much as it may use."""
    free: int
    matrix: dict[str, float]
    """Floating-point operations per second of matrix products, by dtype."""
    bandwidth: float
    """Bytes that the memory reads and writes together."""

    def told(self) -> str:
        """In a line."""
        rates = ", ".join(f"{rate / 1e12:.2g} TFLOPS {dtype}" for dtype, rate in self.matrix.items())
        return f"{self.device}: {resources.size(self.free)} of {resources.size(self.memory)} free, {rates}"

    def best(self, other: Measurement) -> Measurement:
        """The better of each rate, of two measurements of one device; `other` is the newer one."""
        matrix = {name: max(rate, other.matrix.get(name, 0.0)) for name, rate in self.matrix.items()}
        return Measurement(other.device, other.memory, other.free, matrix, max(self.bandwidth, other.bandwidth))


def measure_of(settings: EngineSettings) -> Measurement:
    """The device of these settings, or all those together that their engine splits a model over. Raises PreflightError where one is not
    there."""
    allowed = resources.cores()
    cores = allowed if settings.threads == "auto" else min(settings.threads, allowed)
    return together([measure(on, cores) for on in factory.devices(settings)])


def together(found: Sequence[Measurement]) -> Measurement:
    """Of devices that a model is split over evenly: as often as there are, what the least of them has and does."""
    if len(found) == 1:
        return found[0]
    count, names = len(found), Counter(one.device for one in found)
    return Measurement(
        device=", ".join(f"{times} × {name}" for name, times in names.items()),
        memory=count * min(one.memory for one in found),
        free=count * min(one.free for one in found),
        matrix={dtype: count * min(one.matrix[dtype] for one in found) for dtype in found[0].matrix},
        bandwidth=count * min(one.bandwidth for one in found),
    )


@torch.inference_mode()
def measure(on: torch.device, cores: int, dtypes: tuple[str, ...] = DTYPES) -> Measurement:
    """Takes about a second. `cores` are those of a CPU that are to compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured(on, cores if on.type == "cpu" else 1, dtypes)
    finally:
        torch.set_num_threads(threads)


def _measured(on: torch.device, times: int, dtypes: tuple[str, ...]) -> Measurement:
    free = devices.free_bytes(on)
    return Measurement(
        device=devices.describe(on),
        memory=devices.memory_bytes(on),
        free=free,
        matrix={name: times * _matrix_rate(on, getattr(torch, name), free) for name in dtypes},
        bandwidth=_bandwidth(on, free),
    )


def _matrix_rate(on: torch.device, dtype: torch.dtype, free: int) -> float:
    """Of the smallest product that takes as long as a round, or the largest that there is memory for."""
    best = 0.0
    for side in _SIDES:
        if 3 * side**2 * dtype.itemsize > free // _SHARE_OF_FREE and best:
            break
        left, right = (torch.randn(side, side, device=on).to(dtype) for _ in range(2))
        out = torch.empty(side, side, device=on, dtype=dtype)
        seconds = _best_of(lambda a=left, b=right, c=out: torch.mm(a, b, out=c), on)  # type: ignore[misc]
        best = max(best, 2 * side**3 / seconds)
        if seconds >= _ROUND_SECONDS:
            break
    return best


def _bandwidth(on: torch.device, free: int) -> float:
    size = max(1 << 20, min(_COPIED_BYTES.get(on.type, 256 << 20), free // _SHARE_OF_FREE))
    source, target = (torch.ones(size, dtype=torch.uint8, device=on) for _ in range(2))
    return 2 * size / _best_of(lambda: target.copy_(source), on)


def _best_of(work: Callable[[], object], on: torch.device) -> float:
    """Seconds of the quickest of some rounds, after one that warms up."""
    _seconds(work, on)
    return min(_seconds(work, on) for _ in range(_ROUNDS))


def _seconds(work: Callable[[], object], on: torch.device) -> float:
    if on.type == "cuda":
        with torch.cuda.device(on):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            work()
            ended.record()
            ended.synchronize()
            return max(began.elapsed_time(ended) / 1000, 1e-9)
    if on.type != "cpu":
        torch.accelerator.synchronize()
        start = time.perf_counter()
        work()
        torch.accelerator.synchronize()
        return max(time.perf_counter() - start, 1e-9)
    start = time.thread_time()
    work()
    return max(time.thread_time() - start, 1e-9)
