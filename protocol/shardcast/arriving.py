"""A version on its way, as those see it who ask for its chunks before the rest is here (protocol.shardcast.store.Growing)."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event

from protocol.shardcast.holding import Bits, Holding
from protocol.shardcast.partial import Partial
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.store import DELTA_FOLDER


@dataclass(frozen=True)
class Arriving:
    """Answers out of `partial` for what `schedule` has; `signed` is the version's manifest."""

    signed: bytes
    partial: Partial
    schedule: Schedule
    chunks: dict[tuple[str, int], int]  # number of the chunk of a file that begins at an offset
    chunk_bytes: int
    delta: Arriving | None = None
    """What it was made with."""
    nothing: Bits | None = None
    """Where this is the delta itself: that no chunk of the version is here."""

    @property
    def has_delta(self) -> bool:
        return self.delta is not None or self.nothing is not None

    def open_range(self, name: str, first: int, last: int) -> int | None:
        if name.startswith(f"{DELTA_FOLDER}/"):
            of = self if self.nothing is not None else self.delta
            return None if of is None else of._open(name.removeprefix(f"{DELTA_FOLDER}/"), first, last)
        return None if self.nothing is not None else self._open(name, first, last)

    def delta_holding(self, after: int, seconds: float) -> Holding | None:
        of = self if self.nothing is not None else self.delta
        return None if of is None else of.schedule.stock.holding(after, seconds)

    def _open(self, name: str, first: int, last: int) -> int | None:
        begins, ends = (self.chunks.get((name, byte - byte % self.chunk_bytes)) for byte in (first, last))
        if begins is None or ends is None or first > last or not self.schedule.stock.has(range(begins, ends + 1)):
            return None
        return self.partial.reopen(name)

    def holding(self, after: int, seconds: float) -> Holding:
        if self.nothing is None:
            return self.schedule.stock.holding(after, seconds)
        if after:
            Event().wait(seconds)  # there is no news before it is made
        return Holding(1, self.nothing, ~self.nothing)
