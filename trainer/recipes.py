"""The losses by name, and what each leaves open: importable without torch, for the configuration. loss.py computes them.

    intellect2  min(min(r, δ)·A, clip(r)·A), mean over tokens            arXiv 2505.07291, section 3.4
    grpo        min(r·A, clip(r)·A), mean over samples of token means    arXiv 2402.03300
    dr_grpo     the same, divided by samples × a constant length         arXiv 2503.20783
    dapo        the same with a higher upper clip, mean over tokens      arXiv 2503.14476
    gspo        r is the geometric mean of a sample's token ratios       arXiv 2507.18071
    cispo       −sg(clip(r))·A·logprob: no token loses its gradient      arXiv 2506.13585

r = exp(logprob − old logprob), clip(r) = clamp(r, 1 − ε_low, 1 + ε_high), sg stops the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Aggregation = Literal["token", "sequence", "constant"]
Correction = Literal["none", "truncate", "mask"]


Name = Literal["intellect2", "grpo", "dr_grpo", "dapo", "gspo", "cispo"]


@dataclass(frozen=True)
class Clip:
    """Ratios are clipped to [1 − low, 1 + high]; delta bounds them from above where the advantage is negative."""

    low: float
    high: float
    delta: float | None = None


@dataclass(frozen=True)
class Recipe:
    objective: Literal["clipped ratio", "clipped sequence ratio", "clipped weight"]
    aggregation: Aggregation
    clip: Clip


RECIPES: dict[Name, Recipe] = {
    "intellect2": Recipe("clipped ratio", "token", Clip(0.2, 0.2, 4.0)),
    "grpo": Recipe("clipped ratio", "sequence", Clip(0.2, 0.2)),
    "dr_grpo": Recipe("clipped ratio", "constant", Clip(0.2, 0.2)),
    "dapo": Recipe("clipped ratio", "token", Clip(0.2, 0.28)),
    "gspo": Recipe("clipped sequence ratio", "sequence", Clip(3e-4, 4e-4)),
    "cispo": Recipe("clipped weight", "token", Clip(1.0, 4.0)),
}
