"""A version that is still being written, as those see it who ask for what is finished of it (protocol.shardcast.store.StillWritten)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from protocol.shardcast.holding import REVISION_COMPLETE, Holding
from protocol.shardcast.opening import ChunkList
from protocol.shardcast.schedule import Schedule


@dataclass
class OpenedVersion:
    """Answers out of files that `reopen` gives descriptors of: for every chunk that is listed, or of those that `schedule` has."""

    listing: ChunkList
    reopen: Callable[[str], int | None]
    schedule: Schedule | None = None

    @property
    def id(self) -> str:
        return self.listing.opening.id

    def has_news(self, of: str, after: int, seconds: float) -> bool:
        return of != self.id or self.listing.wait(after, seconds)

    def tell(self, of: str, after: int) -> bytes:
        return self.listing.tell(of, after)

    def size_of(self, name: str) -> int | None:
        return dict(self.listing.opening.files).get(name)

    def open_range(self, name: str, first: int, last: int) -> int | None:
        grain = self.listing.opening.chunk_bytes
        begins, ends = (self._numbers.get((name, byte - byte % grain)) for byte in (first, last))
        if begins is None or ends is None or first > last or last >= (self.size_of(name) or 0):
            return None
        if ends >= self.listing.count or (self.schedule and not self.schedule.stock.has(range(begins, ends + 1))):
            return None
        return self.reopen(name)

    def holding(self, after: int, seconds: float) -> Holding:
        if self.schedule is not None:
            return self.schedule.stock.holding(after, seconds)
        self.listing.wait(after, seconds)
        held = np.arange(self.listing.chunks) < self.listing.count
        return Holding(REVISION_COMPLETE if held.all() else self.listing.count, held, ~held)

    @cached_property
    def _numbers(self) -> dict[tuple[str, int], int]:
        return self.listing.opening.outline().numbers
