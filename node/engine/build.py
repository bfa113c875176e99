"""The build of an engine: what two machines must share for bits to be compared, as one line of text.

It names the versions of torch, transformers and the form (fixed_rows.py), the type and the size of a block, the CPU as torch dispatches for
it, and a digest of what else decides which kernel multiplies: the libraries that torch was built with, what the processor is and can do,
its caches (products are cut to their sizes), and the variables that redirect libraries. It errs on the side of telling machines apart:
those are then compared by the run's limits, as all others.

Does not cover: GPUs, vLLM. It is a claim like any other; who claims another machine's build is compared with it.
"""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from node.engine.fixed_rows import FORM
from protocol import canonical

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_NAMED = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "CPU implementer",
    "CPU architecture",
    "CPU part",
    "CPU variant",
)
_INSTRUCTIONS = ("sse", "avx", "fma", "f16c", "amx", "asimd", "fp", "sve", "bf16", "i8mm")
_REDIRECTING = ("MKL_", "DNNL_", "ONEDNN_", "ATEN_", "OPENBLAS_", "ARM_COMPUTE_", "TORCH_", "KMP_", "OMP_")
_HARMLESS = frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_HOME", "TORCH_LOGS"})
"""Variables that change nothing where one thread computes."""


def of_fixed_rows(rows: int, dtype: torch.dtype) -> str:
    """Of an engine that computes blocks of so many tokens in this type."""
    name = str(dtype).removeprefix("torch.")
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"torch {torch.__version__}, transformers {version('transformers')}, rows {FORM}/{rows}, {name},"
        f" {platform.machine()} {capability}, {_digest()[:16]}"
    )


@cache
def _digest() -> str:
    return hashlib.sha256(canonical.encode(_what_decides())).hexdigest()


def _what_decides() -> dict[str, object]:
    return {
        "libraries": torch.__config__.show(),
        "source": str(torch.version.git_version),
        "onednn": torch.backends.mkldnn.is_available(),
        "system": platform.system(),
        "processor": _processor(),
        "caches": _caches(),
        "variables": {
            name: text
            for name, text in sorted(os.environ.items())
            if name.startswith(_REDIRECTING) and name not in _HARMLESS
        },
    }


def _processor() -> dict[str, str]:
    """What the first core says of itself, without what changes from boot to boot."""
    try:
        lines = _CPUINFO.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {"name": platform.processor()}
    said = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    found = {name: said[name] for name in _NAMED if name in said}
    flags = said.get("flags", said.get("Features", "")).split()
    return found | {"instructions": " ".join(sorted(flag for flag in flags if flag.startswith(_INSTRUCTIONS)))}


def _caches() -> list[str]:
    return [path.read_text().strip() for path in sorted(_CACHES.glob("index*/size"))]
