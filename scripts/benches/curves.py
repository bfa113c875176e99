"""Curves over training steps, several seeds each, as a PNG: the mean, and a band of one standard deviation on either side.

Needs matplotlib, as the report of a calibration does (the extra `report`; reasoning-gym brings it too).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import PreflightError


@dataclass(frozen=True)
class Line:
    """`values` [seeds, points] at `steps` [points]; `level`, where there is one, is what the values should come to."""

    label: str
    steps: Sequence[int]
    values: NDArray[np.float64]
    level: float | None = None


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    lines: Sequence[Line]


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Writes one panel beside the other. Raises PreflightError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PreflightError("plots need matplotlib", hint=".venv/bin/pip install -e '.[report]'") from error
    figure = Figure(figsize=(4.5 * len(panels), 3.5), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, line in enumerate(panel.lines):
            color, mean, spread = f"C{number}", line.values.mean(0), line.values.std(0)
            axes.plot(line.steps, mean, color=color, label=line.label)
            axes.fill_between(line.steps, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
            if line.level is not None:
                axes.axhline(line.level, color=color, linestyle=":", linewidth=1)
        axes.set(title=panel.title, xlabel="step", ylabel=panel.unit)
        if len(panel.lines) > 1:
            axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def rows(lists: Iterable[Sequence[float]]) -> NDArray[np.float64]:
    """One row each, as long as the longest: NaN where one has ended, and a mean over rows ends with the first that does."""
    return np.array(list(zip_longest(*lists, fillvalue=np.nan)), np.float64).T


def smooth(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Running mean over the last `width` points of each row (fewer at its beginning), [rows, points]."""
    sums = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    ends = np.arange(1, values.shape[1] + 1)
    starts = np.maximum(0, ends - width)
    return np.asarray((sums[:, ends] - sums[:, starts]) / (ends - starts))
