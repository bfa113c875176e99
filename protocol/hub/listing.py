"""Following a listing of the hub: every entry once, also across restarts of either side, at the cost of what is new.

A listing's entries are numbered, and a reader goes on after the last number it knows. A hub that lost its database may number
them anew. So after a restart, and after whatever failed, the reader asks for the last entry it knows as well: only where
another one stands there does it begin from the start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Read = Callable[[int], Iterator[tuple[int, bytes]]]
"""Reads a listing after a number: (number, entry) of each, ascending, all but for a bound."""


@dataclass(frozen=True)
class Mark:
    """The last entry that was taken in: its number and the SHA-256 of its bytes."""

    number: int = 0
    digest: bytes = b""


class Listing:
    """One listing. Not safe to share between threads."""

    def __init__(self, mark: Mark | None = None) -> None:
        """`mark`: where an earlier life of this reader had come to."""
        self.mark = mark or Mark()
        self._is_sure = False

    def doubt(self) -> None:
        """Something failed, or the hub is another one: from here on its numbers have to prove themselves."""
        self._is_sure = False

    def news(self, read: Read) -> Iterator[bytes]:
        """Entries that are new. `mark` moves past one when the next is asked for: what a failure interrupts comes again."""
        for number, entry in read(self.mark.number) if self._is_sure else self._resumed(read):
            yield entry
            self.mark = Mark(number, hashlib.sha256(entry).digest())
        self._is_sure = True

    def _resumed(self, read: Read) -> Iterator[tuple[int, bytes]]:
        if not self.mark.number:
            return read(0)
        entries = read(self.mark.number - 1)
        first = next(entries, None)
        if first is not None and Mark(first[0], hashlib.sha256(first[1]).digest()) == self.mark:
            return entries
        self.mark = Mark()
        return read(0)
