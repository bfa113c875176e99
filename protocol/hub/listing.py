"""Following a listing of the hub: every entry once, also across restarts of either side, at the cost of what is new.

A listing's entries are numbered, and a reader goes on after the last that it knows, which it names by number and digest. A hub that
lost its database may number entries anew; it finds another entry under that number, or none yet, and begins from the start (wire.py).
So a reader never goes back by itself: whatever fails in between, the next read asks for what comes after the last entry taken in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """The last entry that was taken in: its number and the SHA-256 of its bytes."""

    number: int = 0
    digest: bytes = b""


Read = Callable[[Mark], Iterator[tuple[int, bytes]]]
"""Reads a listing after a mark: (number, entry) of each, ascending, all but for a bound."""


class Listing:
    """One listing. Not safe to share between threads."""

    def __init__(self, mark: Mark | None = None) -> None:
        """`mark`: where an earlier life of this reader had come to."""
        self.mark = mark or Mark()

    def news(self, read: Read) -> Iterator[bytes]:
        """Entries that are new. `mark` moves past one when the next is asked for: what a failure interrupts comes again."""
        for number, entry in read(self.mark):
            yield entry
            self.mark = Mark(number, hashlib.sha256(entry).digest())
