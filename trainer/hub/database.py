"""The hub's index in SQLite (WAL): quick answers over what store and chain hold, and nothing that they do not.

Entries of listings are numbered from the microsecond in which the database was made: whoever follows a listing by number
goes on after a rebuild, and misses nothing. What no deadline of the protocol reaches any more is forgotten (service.py); the
store keeps it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import IntegrityError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS stored (
    submission BLOB PRIMARY KEY, root BLOB NOT NULL, size INTEGER NOT NULL, receipt TEXT NOT NULL,
    time INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS stored_by_time ON stored (time);
CREATE TABLE IF NOT EXISTS receipts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, submission BLOB NOT NULL, validator TEXT NOT NULL, receipt BLOB NOT NULL,
    time INTEGER NOT NULL, node TEXT NOT NULL DEFAULT '', UNIQUE (submission, validator)
);
CREATE INDEX IF NOT EXISTS receipts_by_time ON receipts (time);
CREATE TABLE IF NOT EXISTS opinions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, submission BLOB NOT NULL UNIQUE, asked_by TEXT NOT NULL, time INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS opinions_by_time ON opinions (time);
CREATE INDEX IF NOT EXISTS opinions_by_asker ON opinions (asked_by);
CREATE TABLE IF NOT EXISTS undecided (id INTEGER PRIMARY KEY, arrived INTEGER NOT NULL, due INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS undecided_by_due ON undecided (due);
CREATE TABLE IF NOT EXISTS earned (
    validator TEXT NOT NULL, step INTEGER NOT NULL, submissions INTEGER NOT NULL, PRIMARY KEY (validator, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nonces (nonce BLOB PRIMARY KEY, expiry INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS nonces_by_expiry ON nonces (expiry);
"""
_BY_NODE = """
ALTER TABLE receipts ADD COLUMN node TEXT NOT NULL DEFAULT '';
UPDATE receipts SET node = coalesce(json_extract(CAST(receipt AS TEXT), '$.details.node'), '')
    WHERE json_valid(CAST(receipt AS TEXT));
"""
_LISTINGS = ("receipts", "opinions")
_MORE = {listing: f"SELECT 1 FROM {listing} WHERE id > ? LIMIT 1" for listing in _LISTINGS}  # noqa: S608  names of ours
_ENTRY = {
    "receipts": "SELECT receipt FROM receipts WHERE id = ?", "opinions": "SELECT submission FROM opinions WHERE id = ?",
}  # fmt: skip
_FORGOTTEN_MAX = 1000  # entries of a table at once: others wait for the lock


def remove_database(path: Path) -> None:
    """A database, and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


class Database:
    """Safe to share between threads. Times are block time."""

    def __init__(self, path: Path) -> None:
        """Raises IntegrityError when the file is damaged."""
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)
            if not self._db.execute("SELECT 1 FROM pragma_table_info('receipts') WHERE name = 'node'").fetchone():
                self._db.executescript(_BY_NODE)  # of an earlier version
            self._db.execute("CREATE INDEX IF NOT EXISTS receipts_by_node ON receipts (node, id)")
            if not self._db.execute("SELECT 1 FROM sqlite_sequence").fetchone():
                first = time.time_ns() // 1000
                self._db.executemany("INSERT INTO sqlite_sequence VALUES (?, ?)", [(t, first) for t in _LISTINGS])
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise IntegrityError(f"{path} is damaged: {error}", hint="murmur trainer hub rebuild") from error

    @classmethod
    def reader(cls, path: Path) -> Database:
        """A connection to a database that is there, for reading beside whoever writes it; neither waits for the other. Raises IntegrityError
        where there is none."""
        made = cls.__new__(cls)
        made._lock = threading.Lock()
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro"
            made._db = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
            made._db.execute("SELECT 1 FROM receipts LIMIT 1")
        except sqlite3.Error as error:
            raise IntegrityError(f"{path} is no database of a hub: {error}") from error
        return made

    @classmethod
    def anew(cls, path: Path) -> Database:
        """An empty database in place of whatever is there."""
        remove_database(path)
        return cls(path)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def use_nonce(self, nonce: bytes, expiry: int, now: int) -> bool:
        """Whether the nonce is fresh; it is spent by asking. Expired ones are forgotten: their writes are refused anyway."""
        with self._lock:
            self._db.execute("DELETE FROM nonces WHERE expiry < ?", (now,))
            return self._db.execute("INSERT OR IGNORE INTO nonces VALUES (?, ?)", (nonce, expiry)).rowcount == 1

    def add_stored(self, submission: bytes, root: bytes, size: int, receipt: str, time: int) -> None:
        row = (submission, root, size, receipt, time)
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO stored VALUES (?, ?, ?, ?, ?)", row)

    def stored(self, submission: bytes) -> str | None:
        """JSON of the storage receipt."""
        with self._lock:
            row = self._db.execute("SELECT receipt FROM stored WHERE submission = ?", (submission,)).fetchone()
        return row[0] if row else None

    def add_receipt(self, submission: bytes, validator: str, receipt: bytes, time: int, node: str = "") -> bool:
        """False when this validator has judged the submission before: the first word stands. `node`: whose submission it is."""
        row = (submission, validator, receipt, time, node)
        with self._lock:
            query = "INSERT OR IGNORE INTO receipts (submission, validator, receipt, time, node) VALUES (?, ?, ?, ?, ?)"
            return self._db.execute(query, row).rowcount == 1

    def has_receipt(self, submission: bytes, validator: str) -> bool:
        with self._lock:
            query = "SELECT 1 FROM receipts WHERE submission = ? AND validator = ?"
            return self._db.execute(query, (submission, validator)).fetchone() is not None

    def receipts(self, after: int, most: int) -> list[tuple[int, bytes]]:
        with self._lock:
            query = "SELECT id, receipt FROM receipts WHERE id > ? ORDER BY id LIMIT ?"
            return self._db.execute(query, (after, most)).fetchall()

    def receipts_on(self, submission: bytes) -> list[bytes]:
        """All on one submission, in the order in which they came."""
        with self._lock:
            query = "SELECT receipt FROM receipts WHERE submission = ? ORDER BY id"
            return [row[0] for row in self._db.execute(query, (submission,)).fetchall()]

    def receipts_of(self, nodes: Sequence[str], after: int, most: int) -> list[tuple[int, bytes]]:
        """Those of submissions of these nodes."""
        marks = ", ".join("?" * len(nodes))
        with self._lock:
            query = f"SELECT id, receipt FROM receipts WHERE node IN ({marks}) AND id > ? ORDER BY id LIMIT ?"  # noqa: S608
            return self._db.execute(query, (*nodes, after, most)).fetchall()

    def start(self, listing: str, after: int, digest: bytes) -> int:
        """After which number a reader goes on whose last entry had this number and SHA-256: after it, also where it was forgotten since, and
        from the start where another entry stands there, or where this database has never come so far."""
        if not digest:
            return after
        with self._lock:
            entry = self._db.execute(_ENTRY[listing], (after,)).fetchone()
        if entry is None:
            return after if after <= self.newest(listing) else 0
        return after if hashlib.sha256(entry[0]).digest() == digest else 0

    def add_opinion(self, submission: bytes, asked_by: str, time: int) -> bool:
        with self._lock:
            query = "INSERT OR IGNORE INTO opinions (submission, asked_by, time) VALUES (?, ?, ?)"
            return self._db.execute(query, (submission, asked_by, time)).rowcount == 1

    def open_opinions(self, asked_by: str) -> int:
        """Submissions that a validator has asked about and not judged itself as far as is known here."""
        query = (
            "SELECT count(*) FROM opinions o WHERE asked_by = ? AND NOT EXISTS"
            " (SELECT 1 FROM receipts r WHERE r.submission = o.submission AND r.validator = o.asked_by)"
        )
        with self._lock:
            return int(self._db.execute(query, (asked_by,)).fetchone()[0])

    def opinions(self, after: int, most: int) -> list[tuple[int, bytes]]:
        with self._lock:
            query = "SELECT id, submission FROM opinions WHERE id > ? ORDER BY id LIMIT ?"
            return self._db.execute(query, (after, most)).fetchall()

    def has_more(self, listing: str, after: int) -> bool:
        """Whether a listing has an entry above a number."""
        with self._lock:
            return self._db.execute(_MORE[listing], (after,)).fetchone() is not None

    def newest(self, listing: str) -> int:
        """The last number that a listing has given to an entry, or before its first."""
        with self._lock:
            query = "SELECT seq FROM sqlite_sequence WHERE name = ?"
            row = self._db.execute(query, (listing,)).fetchone()
        return int(row[0]) if row else 0

    # ---- forgetting ----------------------------------------------------------------------------------------------------

    @property
    def since(self) -> int:
        """All that came from here on is in the database; of what came before, some is not."""
        return self._mark("since")

    def forget_before(self, time: int, *, pays: bool, disputed: Collection[bytes] = ()) -> bool:
        """Forgets part of what came before `time`, and says whether more did. `pays`: not before a receipt is paid for; `disputed`:
        submissions of which nothing is forgotten."""
        old = (
            "SELECT rowid FROM {} WHERE time < ? {} AND hex(submission) NOT IN (SELECT value FROM json_each(?))"
            " ORDER BY time LIMIT ?"
        )
        kept = json.dumps([submission.hex().upper() for submission in disputed])
        unless = {"receipts": "AND id <= ? AND id NOT IN (SELECT id FROM undecided)"} if pays else {}
        taken, counts = self._mark("paid"), []
        with self._lock, self._transaction():
            self._db.execute(
                "INSERT INTO marks VALUES ('since', ?) ON CONFLICT DO UPDATE SET value = max(value, ?)", (time, time)
            )
            for table in ("stored", *_LISTINGS):
                which = old.format(table, unless.get(table, ""))
                values = (time, *([taken] if table in unless else []), kept, _FORGOTTEN_MAX)
                counts.append(self._db.execute(f"DELETE FROM {table} WHERE rowid IN ({which})", values).rowcount)  # noqa: S608
        return _FORGOTTEN_MAX in counts

    def _mark(self, name: str) -> int:
        with self._lock:
            row = self._db.execute("SELECT value FROM marks WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    # ---- vouchers ------------------------------------------------------------------------------------------------------

    def taken(self) -> int:
        """Number of the last receipt that the ledger took in."""
        return self._mark("paid")

    def take(self, last: int, undecided: list[tuple[int, int, int]]) -> None:
        """Notes (number, arrival, when it is due) of receipts up to number `last`; times in block time."""
        with self._lock, self._transaction():
            self._db.executemany("INSERT OR IGNORE INTO undecided VALUES (?, ?, ?)", undecided)
            self._db.execute("INSERT OR REPLACE INTO marks VALUES ('paid', ?)", (last,))

    def due(self, now: int, after: int, most: int) -> list[tuple[int, int, bytes]]:
        """(number, arrival, bytes) of undecided receipts whose time has passed, with numbers above `after`."""
        query = (
            "SELECT u.id, u.arrived, r.receipt FROM undecided u JOIN receipts r ON r.id = u.id"
            " WHERE u.due < ? AND u.id > ? ORDER BY u.id LIMIT ?"
        )
        with self._lock:
            return self._db.execute(query, (now, after, most)).fetchall()

    def settle(self, number: int, validator: str, step: int, *, is_earned: bool) -> int:
        """Crosses a receipt out and counts it, where it is earned; returns how many the validator has earned in its step."""
        with self._lock, self._transaction():
            self._db.execute("DELETE FROM undecided WHERE id = ?", (number,))
            self._db.execute(
                "INSERT INTO earned VALUES (?, ?, ?) ON CONFLICT (validator, step) DO UPDATE SET submissions = submissions + excluded.submissions",
                (validator, step, int(is_earned)),
            )
            query = "SELECT submissions FROM earned WHERE validator = ? AND step = ?"
            return int(self._db.execute(query, (validator, step)).fetchone()[0])

    def earned(self, most: int) -> dict[str, int]:
        """Submissions that validators have earned, at most so many of a step."""
        query = "SELECT validator, sum(min(submissions, ?)) FROM earned GROUP BY validator"
        with self._lock:
            return dict(self._db.execute(query, (most,)).fetchall())

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
