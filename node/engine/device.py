"""The device that computes: which one a setting means, how much of it is free, and what it is called."""

from __future__ import annotations

import logging
import os
import platform
from functools import cache
from pathlib import Path

import torch

from protocol import resources
from protocol.errors import PreflightError

log = logging.getLogger(__name__)

_DRIVER = Path("/proc/driver/nvidia/version")
WITH_CUDA = "run scripts/setup where nvidia-smi is in the PATH: it installs torch with CUDA"


def named(setting: str) -> torch.device:
    """The device that `engine.device` means. Raises PreflightError where it is not there."""
    if setting == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        _warn_of_an_idle_gpu()
        return torch.device("cpu")
    found = torch.device(setting)
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        seen, lacks = torch.cuda.device_count(), torch.version.cuda is None and _driver() is not None
        raise PreflightError(
            f"engine.device is {setting}, and torch sees {seen} NVIDIA GPUs: {driver_state()}",
            hint=WITH_CUDA if lacks else 'set it to "auto"',
        )
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise PreflightError("engine.device is mps, and torch sees no GPU of Apple's here", hint='set it to "auto"')
    return found


def group(setting: str, count: int) -> list[torch.device]:
    """The device that `engine.device` means and those after it, `count` in all, that a model is split over. Raises PreflightError where one
    of them is not there."""
    first = named(setting)
    if count == 1:
        return [first]
    seen = torch.cuda.device_count() if first.type == "cuda" else 0
    if (first.index or 0) + count > seen:
        raise PreflightError(
            f"engine.tensor_parallel is {count}, from {first} on, and torch sees {seen} NVIDIA GPUs: {driver_state()}"
        )
    return [torch.device("cuda", (first.index or 0) + i) for i in range(count)]


def driver_state() -> str:
    """What there is of NVIDIA's driver, in words: why no GPU is seen, or which driver serves those that are."""
    driver = _driver()
    if torch.version.cuda is None:
        loaded = "no NVIDIA driver is loaded" if driver is None else f"the driver {driver} is loaded"
        return f"torch {torch.__version__} is built without CUDA, and {loaded}"
    if driver is None:
        return f"no NVIDIA driver is loaded ({_DRIVER} is not there)"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f", CUDA_VISIBLE_DEVICES is {visible!r}"
    return f"the driver is {driver}{hidden}"


def _driver() -> str | None:
    """NVIDIA's, where one is loaded."""
    try:
        return _DRIVER.read_text().splitlines()[0].partition(":")[2].strip()
    except (OSError, IndexError):
        return None


@cache
def _warn_of_an_idle_gpu() -> None:
    if torch.version.cuda is None and _driver() is not None:
        log.warning("there is an NVIDIA GPU, and %s: the CPU computes; %s", driver_state(), WITH_CUDA)


def exact(device: torch.device) -> torch.device:
    """Where numbers of 64 bits are computed, which a draw needs: on the device itself, but for Apple's, which have none."""
    return torch.device("cpu") if device.type == "mps" else device


def release(device: torch.device) -> None:
    """Gives back what torch keeps of the device's memory for later."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if device.type == "mps":
        torch.mps.empty_cache()


def memory_bytes(device: torch.device) -> int:
    """Bytes of its memory, in use or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return resources.memory_bytes()


def free_bytes(device: torch.device) -> int:
    """Bytes of its memory that nobody uses now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return memory_bytes(device) - int(torch.mps.driver_allocated_memory())
    return resources.free_bytes()


def describe(device: torch.device) -> str:
    """The device as its maker names it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type == "mps":
        return f"GPU of {_cpu()}"
    return f"{platform.machine()} CPU, {_cpu()}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or "of unknown name"
