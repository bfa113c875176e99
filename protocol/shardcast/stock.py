"""Which chunks of a version are here, which are on their way, and which nobody was asked for yet.

Whoever asks what is here (`holding`, `has`) does so from threads of its own and is woken by news alone. Everything else is called under
the lock that the stock was made with: schedule.py, which decides what is asked of whom, holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Event, RLock

import numpy as np

from protocol.shardcast.holding import REVISION_COMPLETE, Holding

_CROWD = 16  # who ask at once, and are told of every chunk at once; of a larger one
_ANSWERS_A_SECOND = 1000  # all together get so many: each costs a quarter of a millisecond


class Stock:
    """Of chunks with these `sizes` in bytes. `present` are here, and of all others only the first `known` can be asked for, if that is given,
    until they are `reveal`ed."""

    def __init__(
        self, sizes: Sequence[int], lock: RLock, present: Iterable[int] = (), known: int | None = None
    ) -> None:
        self.sizes = sizes
        self.largest = max(sizes, default=0)
        self.have = np.zeros(len(sizes), np.bool_)
        self.have[list(present)] = True
        self.bytes_present = sum(size for size, have in zip(sizes, self.have, strict=True) if have)
        self._unknown = np.arange(len(sizes)) >= (len(sizes) if known is None else known)
        self.free = ~(self.have | self._unknown)
        """Neither here nor asked for."""
        self._revision = 1
        self._closed = Event()
        self._askers = 0
        self._news = Condition(lock)

    @property
    def is_whole(self) -> bool:
        return bool(self.have.all())

    def reveal(self, chunks: Sequence[int], present: Sequence[int]) -> None:
        """These can be asked for from now on; those `present` need not be."""
        self.have[list(present)] = True
        self.bytes_present += sum(self.sizes[chunk] for chunk in present)
        self._unknown[list(chunks)] = False
        self.free[list(chunks)] = ~self.have[list(chunks)]
        self._tell()

    def arrived(self, chunk: int) -> bool:
        """It is here from now on; whether it was not before."""
        is_new = not self.have[chunk]
        if is_new:
            self.bytes_present += self.sizes[chunk]
        self.have[chunk] = True
        self.free[chunk] = False
        self._tell()
        return is_new

    def close(self) -> None:
        """Nothing more will come: nobody waits for news any longer."""
        self._closed.set()
        self._news.notify_all()

    # ---- from any thread

    def holding(self, after: int, seconds: float) -> Holding:
        """What is here and what is asked for, once that is of a later revision than `after` or so many seconds have passed."""
        with self._asking():
            with self._news:
                self._news.wait_for(lambda: self._revision > after or self._closed.is_set(), seconds)
                crowd = self._askers - _CROWD
            if crowd > 0:  # each is told less often, of more chunks at once
                self._closed.wait(crowd / _ANSWERS_A_SECOND)
            return self._told()

    def _told(self) -> Holding:
        with self._news:
            coming = ~(self.have | self.free | self._unknown)
            return Holding(REVISION_COMPLETE if self.is_whole else self._revision, self.have.copy(), coming)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._news:
            self._askers += 1
        try:
            yield
        finally:
            with self._news:
                self._askers -= 1

    def has(self, chunks: Iterable[int]) -> bool:
        with self._news:
            return bool(self.have[list(chunks)].all())

    def _tell(self) -> None:
        self._revision += 1
        self._news.notify_all()
