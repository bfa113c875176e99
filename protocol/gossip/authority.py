"""Who may say what in a run, as the chain says: looked up in threads of their own, remembered for a while, read by the host's thread.

`serves` is the stake that a validator has locked, in stakes that the run asks for: 1 and more. One that has served and no longer does is not a
stranger: what it said was valid when it was sent. An endpoint that does not answer leaves everything as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Final

from protocol.chain import Chain
from protocol.chain.types import Role
from protocol.clock import SYSTEM, Clock
from protocol.errors import ChainError

log = logging.getLogger(__name__)

WEIGHT_MOST: Final = 4.0
"""However much somebody has at stake, it counts for no more than so many times what is asked for."""

_MOST = 4096  # addresses that are remembered
_FRESH_SECONDS = 600.0  # for which somebody with a part in the run is remembered …
_NONE_SECONDS = (
    15.0,
    600.0,
)  # … and somebody without: a seat may be taken just now; twice as long after each look, at most


class RunPart(Enum):
    TRAINER = "trainer"
    VALIDATOR = "validator"
    FORMER = "former validator"
    NODE = "node"
    NONE = "none"


@dataclass(frozen=True)
class Stake:
    """Somebody's part in the run, and what it has at stake: 1 is what the run asks for."""

    part: RunPart
    weight: float = 0.0


@dataclass(frozen=True)
class _Known:
    stake: Stake
    fresh: float
    """Seconds for which it counts, …"""
    until: float
    """… and when they end."""


class Authority:
    """Safe to share between threads."""

    def __init__(self, chain: Chain, run: int, max_lag: Callable[[], int], clock: Clock = SYSTEM) -> None:
        self._chain, self._run, self._max_lag, self._clock = chain, run, max_lag, clock
        self._policy = chain.policy(run)
        self._looks = chain.turns()
        self.trainer = str(chain.trainer(run))
        """As of the last look."""
        self.head: int | None = None
        """Newest step on chain, as of the last look; None before the first publication."""
        self.now = 0
        """Block time of the last look."""
        self._known: dict[str, _Known] = {}
        self._lock = Lock()

    @property
    def oldest(self) -> int:
        """The oldest step that messages may still be about."""
        return max(0, (self.head or 0) - self._max_lag() - 1)

    def refresh(self) -> None:
        try:
            with self._looks.turn():
                head, now = self._chain.head(self._run), self._chain.block().time
                trainer = self._chain.trainer(self._run)
        except ChainError as error:
            log.debug("how far the run is remains unknown: %s", error)
            return
        self.head = None if head is None else head.step
        self.now = now
        self.trainer = str(trainer)

    def stake(self, address: str) -> Stake | None:
        """None where it must be looked up."""
        if address == self.trainer:
            return Stake(RunPart.TRAINER, WEIGHT_MOST)
        known = self._known.get(address)
        return known.stake if known and known.until > self._clock.monotonic() else None

    def weight(self, address: str) -> float:
        """As of the last look, however long ago; 0 before the first."""
        if address == self.trainer:
            return WEIGHT_MOST
        known = self._known.get(address)
        return known.stake.weight if known else 0.0

    def look_up(self, address: str) -> bool:
        """Whether the chain answered."""
        try:
            found = self._read(address)
        except ChainError as error:
            log.debug("what %s has at stake remains unknown: %s", address, error)
            return False
        first, most = _NONE_SECONDS
        with self._lock:
            before = self._known.pop(address, None)
            fresh = _FRESH_SECONDS
            if found.part is RunPart.NONE:
                again = before is not None and before.stake.part is RunPart.NONE
                fresh = min(2 * before.fresh, most) if before and again else first
            self._known[address] = _Known(found, fresh, self._clock.monotonic() + fresh)
            while len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return True

    def _read(self, address: str) -> Stake:
        seat = self._chain.validator(self._run, address)
        if seat.since:
            serves = seat.serves(self._chain.block().time)
            return (
                Stake(RunPart.VALIDATOR, _weight(seat.locked, self._policy.validator_stake))
                if serves
                else Stake(RunPart.FORMER)
            )
        node = self._chain.seat(self._run, address)
        if node.role == Role.ACTIVE:
            return Stake(RunPart.NODE, _weight(node.locked, self._policy.node_stake))
        return Stake(RunPart.NONE)


def _weight(locked: int, asked: int) -> float:
    return min(WEIGHT_MOST, max(1.0, locked / asked)) if asked else 1.0
