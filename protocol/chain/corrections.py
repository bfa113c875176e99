"""What the book tells of a stretch of blocks, in the form in which tellings are compared, and putting it right."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from protocol.chain.book_entries import Entries, Place
from protocol.chain.decoding import Log
from protocol.chain.view import View


class Corrections:
    def __init__(self, view: View, entries: Entries, corrected: Callable[[], None]) -> None:
        """`corrected` is called before anything is put right."""
        self._corrected = corrected
        self._view = view
        self._entries = entries

    def told(self, first: int, last: int) -> dict[Place, tuple[Any, ...]]:
        """What the book has, by place, in the form of log_reader.content."""
        submissions = self._view.rows(
            "SELECT s.block, s.log_index, b.hash, s.tx, n.address, s.root, s.step, s.sequence, s.units FROM submissions s"
            " JOIN nodes n ON n.id = s.node JOIN blocks b ON b.number = s.block WHERE s.block BETWEEN ? AND ?",
            (first, last),
        )
        others = self._view.rows(
            "SELECT e.block, e.log_index, b.hash, e.tx, e.kind, e.data FROM events e JOIN blocks b ON b.number = e.block"
            " WHERE e.block BETWEEN ? AND ?",
            (first, last),
        )
        return {row[:2]: row[2:] for row in (*submissions, *others)}

    def put_right(self, false: Collection[Place], entering: Collection[Log]) -> None:
        """Takes back what is at the places `false`; enters the others."""
        self._corrected()
        with self._view.lock, self._entries.transaction():
            for place in false:
                self._entries.remove(place)
            self._entries.enter(sorted(entering, key=lambda entry: entry[:2]))
