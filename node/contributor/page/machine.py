"""This machine and what the running node says of it. Nothing is measured and no device is taken: that is `node hardware`'s."""

from __future__ import annotations

import resource
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from node.engine import EngineSettings
from protocol import resources
from protocol.metrics import REGISTRY, Counter, Gauge
from protocol.shardcast.store import version_folder
from protocol.shell.home import REPORT, read_json

_PEERS = 30
_VERSIONS = 20


def machine(settings: EngineSettings, folder: Path, *, is_own: bool) -> dict[str, Any]:
    """`is_own`: whether the node runs in this very process, whose memory and counters are then its own."""
    usage = shutil.disk_usage(folder)
    found: dict[str, Any] = {
        "engine": settings.name, "device": settings.device, "cores": resources.cores(), "memory": resources.memory_bytes(),
        "memory_free": _rough(resources.free_bytes()), "disk": usage.total, "disk_free": _rough(usage.free), "own": is_own,
    }  # fmt: skip
    if is_own:
        found |= {"process_memory": _rough(_resident()), "seconds": _counts("murmur_node_seconds_total")}
        found |= {"tokens": sum(_counts("murmur_node_generated_tokens_total").values())}
        with suppress(Exception):  # a page is no reason to stumble over a driver
            found |= _devices(settings)
    return found


def weights(folder: Path, *, is_own: bool) -> dict[str, Any]:
    """The version that is loaded, where that is known, and those that lie on the disk, newest first."""
    loaded = _counts("murmur_node_step") if is_own else {}
    complete = version_folder(folder, 0).parent
    names = [path.name for path in complete.iterdir()] if complete.is_dir() else []
    steps = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
    held = [{"step": step, "bytes": _size(complete / str(step))} for step in steps[:_VERSIONS]]
    return {"loaded": next((int(step) for step in loaded.values()), None), "held": held}


def network(data: Path) -> dict[str, Any] | None:
    """What the node's host said of itself last; None before its first start."""
    said = read_json(data / REPORT)
    if not isinstance(said, dict):
        return None
    wanted = (
        "at",
        "state",
        "peer",
        "listen",
        "announced",
        "joined",
        "reason",
        "bootnodes",
        "known",
        "inbound",
        "outbound",
        "provides",
    )
    return {name: said.get(name) for name in wanted} | {"peers": said.get("peers", [])[:_PEERS]}


def _devices(settings: EngineSettings) -> dict[str, Any]:
    """As torch names them, where this process has them in use already: to ask a GPU would take memory of it."""
    import torch

    from node.engine import device, factory

    on = [one for one in factory.devices(settings) if one.type != "cuda" or torch.cuda.is_initialized()]
    if not on:
        return {}
    return {
        "device": ", ".join(map(device.describe, on)), "device_memory": sum(map(device.memory_bytes, on)),
        "device_free": _rough(sum(map(device.free_bytes, on))), "is_gpu": on[0].type != "cpu",
    }  # fmt: skip


def _counts(name: str) -> dict[str, float]:
    metric = next((one for one in REGISTRY if one.name == name), None)
    return (
        {" ".join(labels): value for labels, value in metric.values().items()}
        if isinstance(metric, Counter | Gauge)
        else {}
    )


def _resident() -> int:
    """0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def _rough(size: int) -> int:
    """To 16 MiB: what moves all the time would have every turn of the page sent."""
    return size >> 24 << 24


def _size(folder: Path) -> int:
    with suppress(OSError):  # it may be gone at any time
        return sum(path.stat().st_size for path in folder.iterdir())
    return 0
