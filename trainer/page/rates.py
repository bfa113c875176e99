"""How fast counters grow, from what they were at some looks before."""

from __future__ import annotations

from collections import deque

SECONDS = 60.0
"""Over which a rate is a mean, about."""
_LOOKS_MAX = 64
_COUNTERS_MAX = 1_000


class Rates:
    """Per second, by counter. One that falls has begun anew: its process was started again."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[tuple[float, int]]] = {}

    def of(self, name: str, count: int, now: float) -> float | None:
        """None after the first look."""
        if name not in self._looks and len(self._looks) >= _COUNTERS_MAX:
            self._looks.clear()
        looks = self._looks.setdefault(name, deque(maxlen=_LOOKS_MAX))
        if looks and (count < looks[-1][1] or now < looks[-1][0]):
            looks.clear()
        looks.append((now, count))
        while len(looks) > 2 and looks[1][0] <= now - SECONDS:
            looks.popleft()
        (began, before), (ended, after) = looks[0], looks[-1]
        return round((after - before) / (ended - began), 1) if ended > began else None
