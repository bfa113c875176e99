"""Follows the contracts' events: every event once, in order, and taken back when the chain takes it back.

The cursor is a block's (number, hash). When the hash no longer stands in the chain, the index walks back over the blocks
it has seen to the last one that still does, and reports what stood above it as removed. Subscriptions would only be hints;
the log is the truth. State rests in SQLite (WAL), in memory or in a file that survives restarts.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from protocol.chain import events
from protocol.chain.client import Chain
from protocol.chain.events import Event
from protocol.chain.types import Block
from protocol.errors import RpcUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

_RANGE = 2_000  # blocks per request; fewer while the provider refuses
_REMEMBERED = 512  # blocks whose hashes are kept to find the fork of a reorg

_SCHEMA = """
CREATE TABLE IF NOT EXISTS blocks (number INTEGER PRIMARY KEY, hash BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    block INTEGER, log_index INTEGER, block_hash BLOB NOT NULL, tx BLOB NOT NULL, name TEXT NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (block, log_index)
);
CREATE INDEX IF NOT EXISTS events_by_name ON events (name, block, log_index);
"""


@dataclass(frozen=True)
class Changes:
    """What is new since the last poll that succeeded: `removed` newest first, then `added` in order.

    `head` is the chain's newest block.
    """

    added: list[Event]
    removed: list[Event]
    head: Block


class EventIndex:
    """One follower of one deployment. Poll from one thread; reading is safe from all."""

    def __init__(self, chain: Chain, *, first_block: int = 0, confirmations: int = 0, path: Path | None = None) -> None:
        """Starts at `first_block` or where the file at `path` left off; stays `confirmations` blocks behind the head."""
        self._chain = chain
        self._first = first_block
        self._confirmations = confirmations
        self._range = _RANGE
        self._added: list[Event] = []  # read and stored, but handed over to nobody yet: a poll may fail half-way
        self._removed: list[Event] = []
        self._is_behind = True
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(_SCHEMA)
        self.head: Block | None = None
        """The chain's newest block as of the last poll: the protocol's clock."""

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def poll(self) -> Changes:
        """Catches up with the chain. Raises RpcUnavailable; what was read before stays read, for the next poll to report."""
        head = self._chain.block()
        if not self._is_behind and self.head is not None and head.hash == self.head.hash:
            return Changes([], [], head)
        self._is_behind = True
        self._take_back(self._roll_back())
        cursor = self._cursor()
        first = self._first if cursor is None else cursor[0] + 1
        target = head.number - self._confirmations
        while first <= target:
            last = min(target, first + self._range - 1)
            # Asked before the events: where the chain moves in between, this hash is the one that no longer stands.
            end = head if last == head.number else self._chain.block(last)
            try:
                found = self._chain.logs(first, last)
            except RpcUnavailable:
                if self._range == 1:
                    raise
                self._range = max(1, self._range // 4)  # providers cap ranges or answers; a dead one fails again
                continue
            if any(event.block == end.number and event.block_hash != end.hash for event in found):
                break  # the chain moved under our feet: the next poll rolls back
            self._store(found, end)
            self._added += found
            self._range = min(_RANGE, 2 * self._range)
            first = last + 1
        self._is_behind = first <= target
        self.head = head
        changes = Changes(self._added, self._removed, head)
        self._added, self._removed = [], []
        return changes

    def _take_back(self, gone: list[Event]) -> None:
        """Events that came and went between two polls that succeeded never were."""
        unheard, taken = set(map(_place, self._added)), set(map(_place, gone))
        self._added = [event for event in self._added if _place(event) not in taken]
        self._removed += [event for event in gone if _place(event) not in unheard]

    def events(self, kind: type[T], *, since_block: int = 0) -> Iterator[tuple[Event, T]]:
        """All events of one kind, in order."""
        query = "SELECT * FROM events WHERE name = ? AND block >= ? ORDER BY block, log_index"
        with self._lock:
            rows = self._db.execute(query, (kind.__name__, since_block)).fetchall()
        for row in rows:
            event = _event(row)
            yield event, event.data

    def find(self, kind: type[T], matches: Callable[[T], bool]) -> tuple[Event, T] | None:
        """The first event of a kind that matches."""
        return next(((event, data) for event, data in self.events(kind) if matches(data)), None)

    # ---- storage -------------------------------------------------------------------------------------------------------

    def _cursor(self) -> tuple[int, bytes] | None:
        with self._lock:
            return self._db.execute("SELECT number, hash FROM blocks ORDER BY number DESC LIMIT 1").fetchone()

    def _store(self, found: list[Event], end: Block) -> None:
        with self._lock:
            self._db.execute("BEGIN")
            for e in found:
                row = (e.block, e.log_index, e.block_hash, e.transaction, type(e.data).__name__, events.dumps(e.data))
                self._db.execute("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?)", row)
                self._db.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?)", (e.block, e.block_hash))
            self._db.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?)", (end.number, end.hash))
            self._db.execute("DELETE FROM blocks WHERE number < ?", (end.number - _REMEMBERED,))
            self._db.execute("COMMIT")

    def _roll_back(self) -> list[Event]:
        """Forgets what the chain no longer holds; returns the events that are gone, newest first."""
        with self._lock:
            known = self._db.execute("SELECT number, hash FROM blocks ORDER BY number DESC").fetchall()
        good = next((number for number, block_hash in known if self._chain.block_hash(number) == block_hash), None)
        if not known or good == known[0][0]:
            return []
        keep = self._first - 1 if good is None else good
        with self._lock:
            query = "SELECT * FROM events WHERE block > ? ORDER BY block DESC, log_index DESC"
            removed = [_event(row) for row in self._db.execute(query, (keep,)).fetchall()]
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM events WHERE block > ?", (keep,))
            self._db.execute("DELETE FROM blocks WHERE number > ?", (keep,))
            self._db.execute("COMMIT")
        log.warning("the chain was reorganised above block %d; %d events are gone", keep, len(removed))
        return removed


def _place(event: Event) -> tuple[bytes, int]:
    return event.block_hash, event.log_index


def _event(row: tuple[int, int, bytes, bytes, str, str]) -> Event:
    block, log_index, block_hash, transaction, name, data = row
    return Event(events.loads(name, data), block, block_hash, log_index, transaction)
