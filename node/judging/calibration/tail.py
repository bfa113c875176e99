"""How far the tail of measured honest values reaches: peaks over threshold, in NumPy.

Values above a high quantile of all exceed it by a generalised Pareto distribution (Pickands–Balkema–de Haan). Its scale and
shape are fitted by probability-weighted moments (Hosking and Wallis, 1987). The shape is never taken below 0, the
exponential tail: a shorter one would promise an end of the tail that nobody saw. It is taken above 0 only where the
estimate lies two standard errors above it, for a shape by chance makes a limit that judges nothing. A quantity that hardly
ever differs from its usual value has no tail to fit, and then nothing is fitted: the floors stand for what was not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SHARE = 0.02
"""Of the values that count as the tail."""
FEWEST = 30
"""Excesses without which there is nothing to fit."""
DISTINCT = 5
"""Different excesses without which it is a step and no tail."""


@dataclass(frozen=True)
class Tail:
    """P(value > x) = share · (1 + shape · (x − threshold) / scale)^(−1/shape), for x above `threshold`."""

    threshold: float
    share: float
    scale: float
    shape: float
    excesses: int

    def quantile(self, probability: float) -> float:
        """The value that is exceeded with this probability, which must be below `share`."""
        rarer = self.share / probability
        if self.shape == 0:
            return self.threshold + self.scale * float(np.log(rarer))
        return self.threshold + self.scale / self.shape * (rarer**self.shape - 1)


def fit(values: Sequence[float]) -> Tail | None:
    """None where the values have no tail that could be fitted."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if not len(ordered):
        return None
    threshold = float(np.quantile(ordered, 1 - SHARE))
    excesses = ordered[ordered > threshold] - threshold
    if len(excesses) < FEWEST or len(np.unique(excesses)) < DISTINCT:
        return None
    mean = float(excesses.mean())
    count = len(excesses)
    below = np.arange(count - 1, -1, -1) / (count - 1)  # of the others, the share that is larger
    weighted = float((excesses * below).mean())
    shape = 2 - mean / (mean - 2 * weighted)  # mean > 2 * weighted, as the excesses differ
    if shape < 2 * (1 + abs(shape)) / np.sqrt(count):
        return Tail(threshold, count / len(ordered), mean, 0.0, count)
    scale = 2 * mean * weighted / (mean - 2 * weighted)
    return Tail(threshold, count / len(ordered), scale, shape, count)
