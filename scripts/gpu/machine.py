"""Software, driver, and what the device can do, measured as `node hardware` does."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from benches import Row

from gpu import Place, Record
from node.engine import EngineSettings, hardware
from node.engine import device as devices

_PACKAGES = ("torch", "triton", "transformers", "safetensors", "numpy", "vllm", "liger-kernel", "nvidia-nccl-cu13")
_ASKED = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,pcie.link.gen.max"


def run(at: Place, report: Record) -> None:
    report.fact(python=platform.python_version(), kernel=platform.release(), cores=os.cpu_count(), packages=_packages())
    report.fact(driver=devices.driver_state(), cuda=torch.version.cuda)
    found = hardware.measure_of(EngineSettings(device=at.device))
    report.fact(device=found.device, memory=found.memory, free=found.free)
    for dtype, rate in found.matrix.items():
        report.row(Row(f"matrix products in {dtype}", "TFLOP/s", rate / 1e12, None, None, None))
    report.row(Row("memory bandwidth, read and written", "GB/s", found.bandwidth / 1e9, None, None, None))
    if not at.dry:
        on = torch.device(at.device)
        of = torch.cuda.get_device_properties(on)
        report.fact(capability=list(torch.cuda.get_device_capability(on)), multiprocessors=of.multi_processor_count)
        report.fact(tf32_in_matrix_products=torch.backends.cuda.matmul.allow_tf32)
        report.fact(nvidia_smi=_nvidia_smi())


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _nvidia_smi() -> Any:
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv"], capture_output=True, text=True, timeout=30, check=True)  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return f"{error}"
    return done.stdout.splitlines()
