"""Whether relays bring a version fast enough for the origin to be left alone.

A relay costs nothing to announce. One that tells of a chunk now and then, and of all others that they are coming, would be waited
for as long as it likes, while the origin is idle.
"""

from __future__ import annotations

from dataclasses import dataclass

_STARVING_SECONDS = 10.0  # without a chunk, after which the origin is asked beside the relays, whatever these promise
_WHOLE_SECONDS = 600.0  # and where at the pace of the last such time the whole version would take longer than this


@dataclass
class Feed:
    """What relays bring of `total` bytes to one fetch, of which the last chunk came at `fed`. `quiet` is for how long a relay may be still."""

    total: int
    fed: float
    _since: float | None = None  # when the pace began to be measured
    _bytes: int = 0
    _is_slow: bool = False

    def brought(self, size: int, now: float) -> None:
        self.fed = now
        self._bytes += size
        if self._since is None:
            self._since, self._bytes = now, 0

    def could_not(self, now: float) -> None:
        """Until now there was nothing that they could have brought."""
        self.fed, self._since, self._is_slow = now, None, False

    def is_enough(self, now: float, quiet: float) -> bool:
        seconds = max(_STARVING_SECONDS, quiet)
        if self._since is not None and now >= self._since + seconds:
            self._is_slow = self._bytes * _WHOLE_SECONDS < self.total * (now - self._since)
            self._since, self._bytes = now, 0
        return now <= self.fed + seconds and not self._is_slow

    def next_look(self, quiet: float) -> float:
        """The moment from which time alone may change the answer."""
        return min(self.fed, self.fed if self._since is None else self._since) + max(_STARVING_SECONDS, quiet)
