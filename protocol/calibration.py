"""Calibrations: measured honest work, and the limits that follow from it. A run spec names one by its digest.

A calibration is canonical JSON: what was measured (model, devices, counts, tails), by which method, and the limits of the
rules `computation` and `sampling`. Shipped ones lie in protocol/calibrations; `murmur validator calibrate` makes new ones.
No cheat takes part in fitting a limit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from protocol import canonical
from protocol.errors import ConfigError

MAKE = "make one of this run: murmur validator calibrate @run.toml --model policy --out calibration.json"
"""Hint for who has none that fits."""


@dataclass(frozen=True)
class Model:
    """A model whose honest work was measured."""

    name: str
    config: str
    """SHA-256 of its config.json, 64 hex digits."""
    weights: dict[str, str]
    """SHA-256 of each of its files of weights, by name."""


@dataclass(frozen=True)
class Calibration:
    content: dict[str, Any]

    @property
    def digest(self) -> str:
        """64 hex digits."""
        return canonical.digest(self.content).hex()

    @property
    def computation(self) -> dict[str, Any]:
        return self.content["limits"]["computation"]

    @property
    def sampling(self) -> dict[str, Any]:
        return self.content["limits"]["sampling"]

    @property
    def noise(self) -> dict[str, str] | None:
        """Soft and hard, in shares of the range of logits; None where the noise is beyond what sums can be compared with, and of a calibration from before
        there was noise or from when it was in logits: that one does not say over what they ranged."""
        pairs = self.content.get("noise", {}).get("pairs", [])
        return self.content["limits"].get("noise") if pairs and all("range" in pair for pair in pairs) else None

    @property
    def hardware(self) -> list[int]:
        """Hardware classes whose devices were measured. A calibration that names none is of class 0, what a seat has by default."""
        return self.content.get("hardware", [0])

    @property
    def compute_dtype(self) -> str:
        return str(self.content["compute_dtype"])

    @property
    def models(self) -> list[Model]:
        """The models measured; empty for older calibrations, which only tell how many there were."""
        models = self.content["models"]
        return [Model(**model) for model in models] if isinstance(models, list) else []


def load(name: str, beside: Path) -> Calibration:
    """A calibration file, relative to the folder `beside`, or a shipped one by its name."""
    path = beside / name
    if not path.is_file() and not _shipped(name).is_file():
        raise ConfigError(
            f"{name!r} is no calibration: there is no file {path}, and none of that name is shipped", hint=MAKE
        )
    source = path if path.is_file() else _shipped(name)
    try:
        content = json.loads(source.read_text())
        calibration = Calibration(content)
        _ = calibration.digest, calibration.computation, calibration.sampling
        _ = calibration.compute_dtype, calibration.models
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{name!r} is no calibration: {source} cannot be read as one ({error})", hint=MAKE) from error
    return calibration


def _shipped(name: str) -> Traversable:
    return files("protocol") / "calibrations" / f"{name}.json"
