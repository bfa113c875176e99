"""What a key has signed and what became of it: SQLite (WAL), written before anything is sent.

A *transaction* is an intent with a nonce; its *attempts* are the signed forms it was sent in (a replacement pays more). With
what is written here, a process that died at any point is continued without losing or doubling a transaction.
What is finished stays until its owner says that nobody can ask for it again.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.errors import LockHeld

PENDING, MINED, SETTLED, FAILED = "pending", "mined", "settled", "failed"
"""States: may still land; landed and did what it should; the same, where no reorg reaches; landed and reverted."""
DROPPED, UNKNOWN, DISPLACED, VOID = "dropped", "unknown", "displaced", "void"
"""Refused for want of gas money, and may land all the same (dropped.py); landed or not, which can not be known any more, and whoever asked is to be
told so; will never land, for something else used its nonce, and whoever asked is to be told so; the same, and was told or need not be."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS transactions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, doing TEXT NOT NULL, nonce INTEGER NOT NULL, target TEXT,
    data BLOB NOT NULL, gas INTEGER NOT NULL, state TEXT NOT NULL, hash BLOB, block INTEGER, created REAL NOT NULL,
    value TEXT NOT NULL DEFAULT '0', room INTEGER NOT NULL DEFAULT 60000, told INTEGER NOT NULL DEFAULT 1,
    asker TEXT NOT NULL DEFAULT '', adds INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE IF NOT EXISTS attempts (
    tx INTEGER NOT NULL REFERENCES transactions (id), hash BLOB PRIMARY KEY, raw BLOB NOT NULL, fee INTEGER NOT NULL,
    tip INTEGER NOT NULL, signed REAL NOT NULL, gas INTEGER NOT NULL DEFAULT 0
);
"""
_LATER = (
    ("transactions", "value", "TEXT NOT NULL DEFAULT '0'"),
    ("transactions", "room", "INTEGER NOT NULL DEFAULT 60000"),
    ("transactions", "told", "INTEGER NOT NULL DEFAULT 1"),
    ("transactions", "asker", "TEXT NOT NULL DEFAULT ''"),
    ("transactions", "adds", "INTEGER NOT NULL DEFAULT 1"),
    ("attempts", "gas", "INTEGER NOT NULL DEFAULT 0"),
)
"""Columns that a journal of an earlier version lacks."""
_UNTOLD = f"UPDATE transactions SET told = 0 WHERE name IS NULL AND state IN ('{PENDING}', '{DROPPED}')"  # noqa: S608
_INDEXES = """
CREATE INDEX IF NOT EXISTS transactions_by_nonce ON transactions (nonce);
CREATE INDEX IF NOT EXISTS transactions_pending ON transactions (nonce) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS transactions_mined ON transactions (nonce) WHERE state = 'mined';
CREATE INDEX IF NOT EXISTS transactions_dropped ON transactions (nonce) WHERE state = 'dropped';
CREATE INDEX IF NOT EXISTS transactions_by_time ON transactions (created);
CREATE INDEX IF NOT EXISTS transactions_untold ON transactions (id) WHERE told = 0;
CREATE INDEX IF NOT EXISTS transactions_displaced ON transactions (id) WHERE state = 'displaced';
CREATE INDEX IF NOT EXISTS transactions_failed ON transactions (id) WHERE state = 'failed';
CREATE INDEX IF NOT EXISTS attempts_of_transaction ON attempts (tx);
"""


@dataclass(frozen=True)
class Attempt:
    hash: bytes
    raw: bytes
    fee: int
    """maxFeePerGas in wei."""
    tip: int
    """maxPriorityFeePerGas in wei."""
    signed: float
    """Wall-clock seconds."""
    gas: int = 0
    """Most gas it may use; 0: as the transaction says."""


Content = tuple[str | None, bytes, int]
"""Of a call: the address called, None to deploy; calldata; wei that goes along."""


@dataclass(frozen=True)
class Transaction:
    id: int
    name: str | None
    """What the caller calls it, so that it is never done twice; None where doing it again, once told, is another deed."""
    doing: str
    nonce: int
    target: str | None
    """Address called; None deploys."""
    data: bytes
    gas: int
    state: str
    hash: bytes | None
    """Of the attempt that landed."""
    block: int | None
    """In which it did."""
    value: int = 0
    """Wei that goes along."""
    room: int = 60_000
    """As of calls.Call: gas beyond an estimate."""
    asker: str = ""
    """Who wants it done; for another the same is another deed."""
    adds: bool = True
    """As of calls.Call: whether the same again would do it once more."""
    created: float = 0.0
    """Wall-clock seconds."""

    @property
    def content(self) -> Content:
        return self.target, self.data, self.value


_PRUNED_MAX = 10_000  # transactions at once


class TransactionLog:
    """What one key has sent. Only one process may have it open. `path` None keeps it in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._mutex = threading.Lock()
        self._lock_file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_file = path.with_suffix(".lock").open("a")
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._lock_file.close()
                raise LockHeld(f"another process sends transactions with the key of {path}") from None
        self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")  # what is sent must be on disk
        self._db.executescript(_SCHEMA)
        self._db.execute("BEGIN")
        for table, column, kind in _LATER:
            if column not in [each[1] for each in self._db.execute(f"PRAGMA table_info ({table})")]:
                self._db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
                self._db.execute(_UNTOLD if column == "told" else "")
        self._db.execute("COMMIT")
        self._db.executescript(_INDEXES)

    def close(self) -> None:
        with self._mutex:
            self._db.close()
            if self._lock_file is not None:
                self._lock_file.close()

    def begin(self, draft: Transaction, first: Attempt) -> Transaction:
        """Writes a transaction and its first attempt down, and returns it as it is noted. One of the same name that came to nothing makes
        room for it."""
        d = draft
        with self._mutex:
            self._db.execute("BEGIN")
            if d.name is not None:
                query = "UPDATE transactions SET name = NULL WHERE name = ? AND state IN (?, ?)"
                self._db.execute(query, (d.name, FAILED, VOID))
            now, is_told = time.time(), d.name is not None
            row = (
                d.name,
                d.doing,
                d.nonce,
                d.target,
                d.data,
                d.gas,
                PENDING,
                now,
                str(d.value),
                d.room,
                is_told,
                d.asker,
                d.adds,
            )
            query = "INSERT INTO transactions (name, doing, nonce, target, data, gas, state, created, value, room, told, asker, adds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            number = int(self._db.execute(query, row).lastrowid or 0)
            self._add_attempt(number, first)
            self._db.execute("COMMIT")
        return replace(draft, id=number, state=PENDING, created=now)

    def add_attempt(self, transaction: Transaction, attempt: Attempt) -> None:
        with self._mutex:
            self._add_attempt(transaction.id, attempt)

    def renew(self, transaction: Transaction, attempt: Attempt) -> None:
        """Makes a transaction pending as it is given here, with another nonce (something else used its own), other gas (it had too little),
        or taken up again. Its old attempts stay: should one be there after all, it is found."""
        with self._mutex:
            self._db.execute("BEGIN")
            t = transaction
            row = (t.name, t.doing, t.nonce, t.target, t.data, t.gas, PENDING, str(t.value), t.room, t.id)
            query = "UPDATE transactions SET name = ?, doing = ?, nonce = ?, target = ?, data = ?, gas = ?, state = ?, value = ?, room = ?"
            self._db.execute(f"{query} WHERE id = ?", row)
            self._add_attempt(transaction.id, attempt)
            self._db.execute("COMMIT")

    def finish(
        self, transaction: Transaction, state: str, landed: bytes | None = None, block: int | None = None
    ) -> None:
        with self._mutex:
            query = "UPDATE transactions SET state = ?, hash = ?, block = ? WHERE id = ?"
            self._db.execute(query, (state, landed, block, transaction.id))

    def reopen(self, transaction: Transaction) -> Transaction:
        """Makes pending again what had landed and the chain has no more, or what was dropped and has landed."""
        self.finish(transaction, PENDING)
        return replace(transaction, state=PENDING, hash=None, block=None)

    def mined(self, most: int, *, newest: bool = False) -> list[Transaction]:
        """Those that a reorg might take, the first ones, or the `newest`, in order of nonce."""
        order = " DESC" if newest else ""
        found = self._select(
            f"WHERE state = '{MINED}' ORDER BY nonce{order} LIMIT ?", (most,)
        )  # the index knows this text
        return sorted(found, key=lambda each: each.nonce)

    def landed_from(self, nonce: int, most: int) -> list[Transaction]:
        """Those that landed at this nonce or a later one, wherever a reorg might take them, the first ones, in order of nonce."""
        return self._select("WHERE nonce >= ? AND state IN (?, ?) ORDER BY nonce LIMIT ?", (nonce, MINED, FAILED, most))

    def failed(self, most: int) -> list[Transaction]:
        """The newest ones."""
        return self._select(f"WHERE state = '{FAILED}' ORDER BY id DESC LIMIT ?", (most,))  # the index knows this text

    def dropped(self) -> list[Transaction]:
        """In order of nonce."""
        return self._select(f"WHERE state = '{DROPPED}' ORDER BY nonce", ())  # the index knows this text

    def untold(self) -> list[Transaction]:
        """Those without a name that did what they should, or may still do it, and nobody has been told so, the oldest first."""
        return self._select("WHERE told = 0 AND state NOT IN (?, ?) ORDER BY id", (FAILED, VOID))

    def displaced(self) -> list[Transaction]:
        """The oldest first."""
        return self._select(f"WHERE state = '{DISPLACED}' ORDER BY id", ())  # the index knows this text

    def sets_after(self, transaction: Transaction) -> bool:
        """Whether what sets a state, and has done so or may, has a later nonce than this one: it was asked for later."""
        with self._mutex:
            query = "SELECT 1 FROM transactions WHERE nonce > ? AND NOT adds AND state IN (?, ?, ?)"
            return self._db.execute(query, (transaction.nonce, PENDING, MINED, SETTLED)).fetchone() is not None

    def tell(self, transactions: Collection[int]) -> None:
        """Notes that whoever asked for these knows that they are done."""
        with self._mutex:
            query = "UPDATE transactions SET told = 1 WHERE id = ?"
            self._db.executemany(query, [(number,) for number in transactions])

    def lost_its_nonce(self, transaction: Transaction) -> bool:
        """Whether another of the key's transactions has used its nonce for good."""
        with self._mutex:
            query = "SELECT 1 FROM transactions WHERE nonce = ? AND id != ? AND state IN (?, ?)"
            row = (transaction.nonce, transaction.id, SETTLED, FAILED)
            return self._db.execute(query, row).fetchone() is not None

    def holds(self, nonce: int) -> bool:
        """Whether something that was signed with a nonce uses it, or may."""
        with self._mutex:
            query = "SELECT 1 FROM transactions WHERE nonce = ? AND state NOT IN (?, ?, ?)"
            return self._db.execute(query, (nonce, DROPPED, DISPLACED, VOID)).fetchone() is not None

    def next_nonce(self) -> int:
        """The one after the highest that was given out and may be used, or is."""
        with self._mutex:
            query = "SELECT nonce FROM transactions WHERE nonce >= 0 AND state != ? ORDER BY nonce DESC LIMIT 1"
            row = self._db.execute(query, (DROPPED,)).fetchone()
        return row[0] + 1 if row else 0

    def prune(self, before: float) -> None:
        """Forgets what was begun before that time (wall-clock seconds) and is finished, a bounded part at once; never the newest.

        For an owner who names none of it again, at an age that no reorg reaches.
        """
        finished = (
            "SELECT id FROM transactions WHERE created < ? AND state NOT IN (?, ?) AND nonce < (SELECT max(nonce) FROM transactions)"
            " ORDER BY created LIMIT ?"
        )
        with self._mutex:
            self._db.execute("BEGIN")
            rows = self._db.execute(finished, (before, PENDING, DROPPED, _PRUNED_MAX)).fetchall()
            self._db.executemany("DELETE FROM attempts WHERE tx = ?", rows)
            self._db.executemany("DELETE FROM transactions WHERE id = ?", rows)
            self._db.execute("COMMIT")

    def attempts(self, transaction: Transaction) -> list[Attempt]:
        """In the order of signing, which the clock does not always tell."""
        with self._mutex:
            query = "SELECT hash, raw, fee, tip, signed, gas FROM attempts WHERE tx = ? ORDER BY rowid"
            return [Attempt(*row) for row in self._db.execute(query, (transaction.id,)).fetchall()]

    def hashes(self, transaction: Transaction) -> set[bytes]:
        """Of its attempts."""
        return {attempt.hash for attempt in self.attempts(transaction)}

    def signed_with(self, nonce: int) -> set[bytes]:
        """Hashes of all attempts of the transactions that have this nonce."""
        return set[bytes]().union(*map(self.hashes, self._select("WHERE nonce = ?", (nonce,))))

    def named(self, name: str) -> Transaction | None:
        found = self._select("WHERE name = ?", (name,))
        return found[0] if found else None

    def again(self, transaction: Transaction) -> Transaction:
        """As it is noted now."""
        (found,) = self._select("WHERE id = ?", (transaction.id,))
        return found

    def of(self, hash: bytes) -> Transaction | None:
        """The transaction that has an attempt of this hash."""
        found = self._select("WHERE id = (SELECT tx FROM attempts WHERE hash = ?)", (hash,))
        return found[0] if found else None

    def knows(self, hash: bytes) -> bool:
        """Whether a transaction of this hash was signed here."""
        with self._mutex:
            return self._db.execute("SELECT 1 FROM attempts WHERE hash = ?", (hash,)).fetchone() is not None

    def pending(self) -> list[Transaction]:
        """In order of nonce."""
        return self._select(f"WHERE state = '{PENDING}' ORDER BY nonce", ())  # the index knows this text

    def _add_attempt(self, number: int, a: Attempt) -> None:
        row = (number, a.hash, a.raw, a.fee, a.tip, a.signed, a.gas)
        query = "INSERT OR REPLACE INTO attempts (tx, hash, raw, fee, tip, signed, gas) VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._db.execute(query, row)

    def _select(self, clause: str, values: tuple[object, ...]) -> list[Transaction]:
        query = f"SELECT id, name, doing, nonce, target, data, gas, state, hash, block, value, room, asker, adds, created FROM transactions {clause}"  # noqa: S608
        with self._mutex:
            return [
                replace(Transaction(*row), value=int(row[10]), adds=bool(row[13]))
                for row in self._db.execute(query, values).fetchall()
            ]
