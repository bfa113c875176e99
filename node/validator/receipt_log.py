"""What others say of submissions, as the hub lists it: validators' receipts, and requests for a second opinion. SQLite (WAL).

Only what can still matter is kept: a receipt until its validator's stake no longer answers for it, a request for as long as
the submission may be in a case. Of receipts by strangers a few are kept in memory, for a seat may be on chain and not read yet.
A restart goes on where the listings were left.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from protocol.errors import ProtocolViolation
from protocol.hub.client import LISTED_MOST, HubClient
from protocol.hub.listing import Listing, Mark
from protocol.hub.wire import PAGE
from protocol.verdict import Receipt

log = logging.getLogger("validator")

_STRANGERS_MAX = 1024
_REQUESTS_MAX = 1 << 16  # the hub may list what it likes
_PARSED_MAX = 1024  # receipts whose signature need not be checked again
_PRUNED_MAX = 1000  # entries at once

_SCHEMA = """
CREATE TABLE IF NOT EXISTS receipts (
    digest BLOB PRIMARY KEY, submission BLOB NOT NULL, validator TEXT NOT NULL, time INTEGER NOT NULL, receipt BLOB NOT NULL,
    UNIQUE (submission, validator)
);
CREATE INDEX IF NOT EXISTS receipts_by_time ON receipts (time);
CREATE INDEX IF NOT EXISTS receipts_by_validator ON receipts (validator);
CREATE TABLE IF NOT EXISTS requests (submission BLOB PRIMARY KEY, time INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS requests_by_time ON requests (time);
CREATE TABLE IF NOT EXISTS marks (listing TEXT PRIMARY KEY, number INTEGER NOT NULL, digest BLOB NOT NULL);
"""


class ReceiptLog:
    """Safe to share between threads, of which one follows the hub. Times are block time."""

    def __init__(
        self, path: Path, parse: Callable[[bytes], Receipt], has_sat: Callable[[str], bool], kept_seconds: int
    ) -> None:
        """`parse` checks a receipt or raises ProtocolViolation; `has_sat` says whether an address ever held a validator's seat
        in the run; receipts that were signed longer than `kept_seconds` ago are dropped."""
        self._parse = parse
        self._parse_own = lru_cache(_PARSED_MAX)(parse)
        self._has_sat = has_sat
        self._kept_seconds = kept_seconds
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")  # what a power failure takes, the hub tells again
        self._db.executescript(_SCHEMA)
        self._receipts, self._requests = self._listing("receipts"), self._listing("opinions")
        self._strangers: deque[Receipt] = deque(maxlen=_STRANGERS_MAX)
        self.is_complete = False
        """Whether the receipts that there were when this process began have all been heard."""
        self._news: list[Receipt] = []
        self._asked: list[bytes] = []

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # ---- what the hub lists --------------------------------------------------------------------------------------------

    def follow(self, hub: HubClient, now: int) -> None:
        """Takes in what is new at the hub: one request, where that is a page at most. Raises what reading it raises; what was taken in
        by then stays."""
        first = hub.heard(*self.marks())
        more = len(first.opinions) == PAGE or len(first.receipts) == PAGE
        with self._noting("opinions", self._requests):
            for submission in self._requests.news(lambda mark: iter(first.opinions)):
                self.request(submission, now)
            for submission in self._requests.news(hub.opinions) if more else ():
                self.request(submission, now)
        with self._noting("receipts", self._receipts):
            for data in self._receipts.news(lambda mark: iter(first.receipts)):
                self._hear(data, now)
            count = 0
            for count, data in enumerate(self._receipts.news(hub.receipts) if more else (), 1):  # noqa: B007
                self._hear(data, now)
        self.is_complete = self.is_complete or count < LISTED_MOST

    def marks(self) -> tuple[Mark, Mark]:
        """Up to where receipts and requests for opinions have been heard."""
        return self._receipts.mark, self._requests.mark

    def request(self, submission: bytes, now: int) -> None:
        """Somebody asks about a submission."""
        with self._lock:
            if self._db.execute("INSERT OR IGNORE INTO requests VALUES (?, ?)", (submission, now)).rowcount:
                self._asked.append(submission)

    def news(self) -> tuple[list[bytes], list[Receipt]]:
        """(submissions that somebody asked about, receipts) that came and are not forgotten yet."""
        return list(self._asked), list(self._news)

    def forget_news(self, asked: int, receipts: int) -> None:
        """The first so many of each have been taken in."""
        del self._asked[:asked]
        del self._news[:receipts]

    def greet(self, now: int) -> None:
        """Somebody has taken a seat: takes in what it said before."""
        waiting = list(self._strangers)
        self._strangers.clear()
        for receipt in waiting:
            self._keep(receipt, now)

    def prune(self, now: int, requests_before: int) -> None:
        """Drops what is too old, a bounded part at once."""
        receipts_before = now - self._kept_seconds
        with self._lock:
            for table, before in (("receipts", receipts_before), ("requests", requests_before)):
                query = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE time < ? ORDER BY time LIMIT ?)"  # noqa: S608
                self._db.execute(query, (before, _PRUNED_MAX))
            query = "DELETE FROM requests WHERE rowid <= (SELECT max(rowid) FROM requests) - ?"
            self._db.execute(query, (_REQUESTS_MAX,))

    def _hear(self, data: bytes, now: int) -> None:
        if self._rows("SELECT 1 FROM receipts WHERE digest = ?", _digest(data)):
            return
        try:
            receipt = self._parse(data)
        except ProtocolViolation as error:
            log.warning("the hub lists a receipt that is none: %s", error)
        else:
            self._keep(receipt, now)

    def _keep(self, receipt: Receipt, now: int) -> None:
        if not self._has_sat(receipt.validator):
            self._strangers.append(receipt)
            return
        data, time = receipt.encode(), min(receipt.details.time, now)
        if time < now - self._kept_seconds:
            return
        with self._lock:
            row = _digest(data), receipt.submission, receipt.validator, time, data
            if self._db.execute("INSERT OR IGNORE INTO receipts VALUES (?, ?, ?, ?, ?)", row).rowcount:
                self._news.append(receipt)

    # ---- questions -----------------------------------------------------------------------------------------------------

    def __contains__(self, submission: object) -> bool:
        """Whether somebody has asked about a submission."""
        return bool(self._rows("SELECT 1 FROM requests WHERE submission = ?", submission))

    def requests(self) -> list[bytes]:
        """Submissions that somebody has asked about."""
        return [submission for (submission,) in self._rows("SELECT submission FROM requests")]

    def of(self, submission: bytes) -> dict[str, Receipt]:
        """What was said of a submission, by validator: the first word of each, also of those that have left since."""
        rows = self._rows("SELECT validator, receipt FROM receipts WHERE submission = ?", submission)
        return {validator: self._parse_own(receipt) for validator, receipt in rows}

    def stored(self, submission: bytes) -> dict[str, Receipt]:
        """The same without a look at the signatures, which were checked when they came."""
        rows = self._rows("SELECT validator, receipt FROM receipts WHERE submission = ?", submission)
        return {validator: Receipt.stored(receipt) for validator, receipt in rows}

    def validators(self, submission: bytes) -> set[str]:
        """Who has spoken on a submission."""
        return {
            validator for (validator,) in self._rows("SELECT validator FROM receipts WHERE submission = ?", submission)
        }

    def by(self, validator: str) -> list[bytes]:
        """Submissions that a validator has spoken on."""
        return [
            submission for (submission,) in self._rows("SELECT submission FROM receipts WHERE validator = ?", validator)
        ]

    # ---- storage -------------------------------------------------------------------------------------------------------

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def _listing(self, name: str) -> Listing:
        rows = self._rows("SELECT number, digest FROM marks WHERE listing = ?", name)
        return Listing(Mark(*rows[0]) if rows else None)

    @contextmanager
    def _noting(self, name: str, listing: Listing) -> Iterator[None]:
        """Entries and how far they were read are written together, also where reading fails half-way."""
        with self._lock:
            before = listing.mark
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                if listing.mark != before:
                    row = name, listing.mark.number, listing.mark.digest
                    self._db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", row)
                self._db.execute("COMMIT")


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
