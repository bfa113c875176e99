"""Alarms: the three signals that came before every collapse that was seen, while there is still time to stop.

A log-ratio gap, many clipped tokens, and a surge of groups that teach nothing. An alarm changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.config import AlarmSettings

_WEIGHT = 0.1  # of the newest step in the running mean
_STEPS_MIN = 5  # before a surge can be told from a beginning


@dataclass(frozen=True)
class Alarm:
    signal: str
    value: float
    limit: float

    def __str__(self) -> str:
        return f"{self.signal} is {self.value:.3f}, above {self.limit:.3f}: such values came before collapses"


class Alarms:
    """`check` once per step, in order."""

    def __init__(self, settings: AlarmSettings) -> None:
        self._settings = settings
        self._mean = 0.0
        self._steps = 0

    def check(self, metrics: Mapping[str, Any]) -> list[Alarm]:
        """Alarms of one step's metrics: `log_ratio`, `clipped` and `zero_advantage_share`, each None where not known."""
        s = self._settings
        found = [
            Alarm(signal, metrics[signal], limit)
            for signal, limit in (("log_ratio", s.log_ratio), ("clipped", s.clipped))
            if metrics.get(signal) is not None and metrics[signal] > limit
        ]
        share = metrics.get("zero_advantage_share")
        if share is None:
            return found
        limit = self._mean + s.zero_advantage_surge
        if self._steps >= _STEPS_MIN and share > limit:
            found.append(Alarm("zero_advantage_share", share, limit))
        self._mean += (share - self._mean) * (_WEIGHT if self._steps else 1.0)
        self._steps += 1
        return found
