"""What is to be expected of submissions that are on their way: which of them still are, and what submissions have been good for lately.

The trainer tells nodes what it wants beyond that (protocol/hub/need.py). A submission is settled when its groups are known, or when
a validator rejected it, or when it has been on its way for much longer than any lately: else nodes would wait for what never comes, a file
that was never uploaded, say.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean

from protocol.clock import SYSTEM, Clock

_LATELY = 64  # submissions
_PATIENCE = 3  # times the longest way lately
_USABLE_MIN = (
    0.25  # a lower share is not believed: nodes would be asked for ever more of what may be lost for another reason
)


class Outlook:
    """Not safe to share between threads."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._on_the_way: dict[bytes, tuple[int, float]] = {}  # → (step, since), monotonic
        self._settled: dict[bytes, int] = {}  # → step
        self._ways: deque[float] = deque(maxlen=_LATELY)  # seconds
        self._shares: deque[float] = deque(maxlen=_LATELY)

    def committed(self, submission: bytes, step: int) -> None:
        """It is on chain."""
        if submission not in self._settled:
            self._on_the_way.setdefault(submission, (step, self._clock.monotonic()))

    def taken_back(self, submission: bytes) -> None:
        """It is on chain no more."""
        self._on_the_way.pop(submission, None)
        self._settled.pop(submission, None)

    def settle(self, submission: bytes, share: float) -> None:
        """It is known which share of its groups can be trained on. Only the first word counts."""
        found = self._on_the_way.pop(submission, None)
        if found is not None:
            step, since = found
            self._settled[submission] = step
            self._ways.append(self._clock.monotonic() - since)
            self._shares.append(share)

    def settled(self, oldest: int) -> int:
        """Submissions of versions from `oldest` on of which nothing more is expected."""
        before = self._clock.monotonic() - _PATIENCE * max(self._ways, default=float("inf"))
        known = sum(step >= oldest for step in self._settled.values())
        return known + sum(step >= oldest and since < before for step, since in self._on_the_way.values())

    @property
    def usable(self) -> float:
        """Share of submitted groups that can be trained on, lately. The least while none is known: a run begins with whoever is there,
        and a first batch should not wait for verdicts on cheats."""
        share = fmean(self._shares) if self._shares else 0.0
        return max(_USABLE_MIN, share)

    def forget_before(self, step: int) -> None:
        self._on_the_way = {id_: of for id_, of in self._on_the_way.items() if of[0] >= step}
        self._settled = {id_: of for id_, of in self._settled.items() if of >= step}
