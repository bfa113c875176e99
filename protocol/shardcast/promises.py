"""What relays say that they hold and will hold of one version, and for how long each is taken at its word.

Nobody checks what a relay says until a chunk is asked of it. Time is passed in, never read; nothing here locks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.shardcast.holding import Bits, Holding


@dataclass
class _Promise:
    """What a relay says it has. `moved` is when that last grew, `until` how long it is waited for although it said nothing yet."""

    held: Bits
    either: Bits
    moved: float
    until: float
    is_complete: bool = False


class Promises:
    """Of the relays that are `watch`ed, about `count` chunks. `quiet` is always the time in seconds for which a relay may bring nothing new."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._of: dict[str, _Promise] = {}
        self._rarity: NDArray[np.int32] = np.zeros(count, np.int32)  # relays that have a chunk or will have it

    def watch(self, relay: str, now: float, patience: float) -> None:
        """Nothing is known of it yet; it is waited for so many seconds."""
        self._of[relay] = _Promise(self._none(), self._none(), now, now + patience)

    def heard(self, relay: str, holding: Holding, now: float, quiet: float) -> None:
        promise = self._of[relay]
        either = holding.held | holding.coming
        self._rarity += either
        self._rarity -= promise.either
        if holding.held.sum() > promise.held.sum() or holding.is_complete:
            promise.moved = now
        promise.held, promise.either, promise.is_complete = holding.held, either, holding.is_complete
        promise.until = max(promise.until, promise.moved + quiet)

    def unheard(self, relay: str, now: float, *, may_come: bool) -> None:
        """It has nothing of the version, or does not answer; whether it may have some soon."""
        promise = self._of[relay]
        self._rarity -= promise.either
        promise.held, promise.either, promise.is_complete = self._none(), self._none(), False
        if not may_come:
            promise.until = now

    def busy(self, relay: str, now: float) -> None:
        """It has no time to answer: what it promised stands, and without that others are asked meanwhile."""
        promise = self._of[relay]
        if not promise.either.any():
            promise.until = now

    def could_not(self, now: float, quiet: float) -> None:
        """Until now there was nothing new that anybody could have brought."""
        for promise in self._of.values():
            if promise.either.any():
                promise.until = max(promise.until, now + quiet)

    def held(self, relay: str) -> Bits | None:
        """The chunks that it says it has; None where it is not watched."""
        promise = self._of.get(relay)
        return None if promise is None else promise.held

    def is_complete(self, relay: str) -> bool:
        """Whether it says that it has all, or is not watched: then it is taken to have all."""
        promise = self._of.get(relay)
        return promise is None or promise.is_complete

    def is_expected(self, relay: str, now: float) -> bool:
        """Whether it has all, or can be expected to bring more soon."""
        promise = self._of.get(relay)
        return promise is not None and (promise.is_complete or now < promise.until)

    @property
    def are_complete(self) -> bool:
        """Whether all of them have all."""
        return all(promise.is_complete for promise in self._of.values())

    def rarest(self, chunks: NDArray[np.intp]) -> NDArray[np.intp]:
        """Of these chunks, those that the fewest relays have or will have."""
        counts = self._rarity[chunks]
        return chunks[counts == counts.min()]

    def ends(self) -> Iterable[float]:
        """The moments from which time alone makes a relay no longer expected."""
        return [promise.until for promise in self._of.values()]

    def _none(self) -> Bits:
        return np.zeros(self._count, np.bool_)
