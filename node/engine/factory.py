"""The factory: the one place that knows engines by name.

"torch" is built in; an installed package adds others under the entry-point group `murmuration.engines`, each a callable of
(compute dtype, settings) that gives an Engine. Its `require`, where it has one, takes the settings and raises what says that none could
be made with them. What is asked for is imported, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from node.engine.interface import Engine
from node.engine.settings import EngineSettings
from protocol.errors import ConfigError

if TYPE_CHECKING:
    import torch

GROUP = "murmuration.engines"
ENGINES = {
    "torch": EntryPoint("torch", "node.engine.torch_engine:TorchEngine", GROUP),
    "vllm": EntryPoint("vllm", "node.engine.vllm_engine:VllmEngine", GROUP),
}
"""Those that are built in; a package cannot take their names."""
BATCH_INVARIANT = ("torch", "vllm")
"""Those that can compute so that results do not depend on the batch, where the device can."""
ATTENTION = ("torch",)
"""Those whose attention can be chosen."""
TENSOR_PARALLEL = ("vllm",)
"""Those that can split a model over several devices."""


def make_engine(settings: EngineSettings, compute_dtype: str) -> Engine:
    """The engine of these settings for a run that computes in `compute_dtype`; it holds no weights yet. Raises what `require` raises."""
    made: Engine = require(settings, compute_dtype)(compute_dtype, settings)
    return made


def require(settings: EngineSettings, compute_dtype: str) -> Callable[[str, EngineSettings], Engine]:
    """What makes an engine of these settings; nothing is made yet, nor a device taken.

    Raises ConfigError for a name that nobody registered, a package that cannot be imported, batch invariance of an engine that has none,
    a device that is not there or cannot do what is asked (PreflightError), and another dtype than the run's:
    limits were calibrated for the rounding of one type, so that honest work in another looks like cheating, and a validator in
    another accuses the honest.
    """
    if settings.dtype not in ("auto", compute_dtype):
        raise ConfigError(
            f"engine.dtype is {settings.dtype}, and the run computes in {compute_dtype}",
            hint='leave it "auto", or join a run that computes in it',
        )
    if settings.batch_invariant and settings.name not in BATCH_INVARIANT:
        raise ConfigError(
            f"batch-invariant computation is asked for, by the run or by engine.batch_invariant, and the engine {settings.name!r}"
            " has none",
            hint=f"engine.name must be one of: {', '.join(BATCH_INVARIANT)}",
        )
    if settings.tensor_parallel > 1 and settings.name not in TENSOR_PARALLEL:
        raise ConfigError(
            f"engine.tensor_parallel is {settings.tensor_parallel}, and the engine {settings.name!r} computes on one device",
            hint=f"engine.name must be one of: {', '.join(TENSOR_PARALLEL)}",
        )
    if settings.attention != "auto" and settings.name not in ATTENTION:
        raise ConfigError(
            f"engine.attention is {settings.attention}, and the engine {settings.name!r} has its own attention",
            hint='leave it "auto"',
        )
    make = maker(settings.name)
    if (check := getattr(make, "require", None)) is not None:
        check(settings)
    return make


def devices(settings: EngineSettings) -> list[torch.device]:
    """Those that the engine of these settings computes on: more than one where it splits a model. Raises PreflightError where one of them is
    not there."""
    from node.engine import device

    return device.group(settings.device, settings.tensor_parallel if settings.name in TENSOR_PARALLEL else 1)


def maker(name: str) -> Callable[[str, EngineSettings], Engine]:
    """Imports the engine of this name, and makes none yet. Raises ConfigError where there is none, or it cannot be imported."""
    found = {point.name: point for point in entry_points(group=GROUP)} | ENGINES
    if name not in found:
        known = ", ".join(sorted(found))
        raise ConfigError(f"there is no engine {name!r}", hint=f"engine.name is one of: {known}")
    try:
        make: Callable[[str, EngineSettings], Engine] = found[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"engine {name!r} cannot be imported: {error}") from error
    return make
