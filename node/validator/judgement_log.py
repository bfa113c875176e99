"""What a validator judged and did about it: SQLite (WAL), so that a restart judges nothing twice and forgets nothing.

Every question that a running validator asks again and again is answered from an index, and judgements that nobody can come
back to are dropped (`prune`), so neither time nor space grows with what was done before. Their number stays in the totals.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from protocol.verdict import Receipt

WAITING, DECIDED, CHALLENGED, CLOSED = "waiting", "decided", "challenged", "closed"
"""States of a judgement: a hard finding that waits for a second validator; one that is to be challenged; one with a case
on chain; one with nothing left to do on chain."""

SECRET, DUE, POSTED = "secret", "due", "posted"
"""Posting of its receipt: not to be shown yet; to be sent to the hub; there."""

CaseName = tuple[str, int]
"""Seat and number of a case."""

# The texts of states stand in indexes and queries alike: SQLite uses a partial index only where it sees that it applies.
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS judgements (
    submission BLOB PRIMARY KEY, node TEXT NOT NULL, outcome INTEGER NOT NULL, receipt BLOB NOT NULL, state TEXT NOT NULL,
    posting TEXT NOT NULL, units INTEGER NOT NULL, judged_at INTEGER NOT NULL, asked_at INTEGER, second BLOB, seat TEXT,
    number INTEGER, shown_at INTEGER
);
CREATE INDEX IF NOT EXISTS judgements_waiting ON judgements (judged_at) WHERE state = '{WAITING}';
CREATE INDEX IF NOT EXISTS judgements_decided ON judgements (outcome, judged_at, node) WHERE state = '{DECIDED}';
CREATE INDEX IF NOT EXISTS judgements_decided_of ON judgements (node, outcome, units DESC) WHERE state = '{DECIDED}';
CREATE INDEX IF NOT EXISTS judgements_in_cases ON judgements (seat, number) WHERE state = '{CHALLENGED}';
CREATE INDEX IF NOT EXISTS judgements_due ON judgements (judged_at, submission) WHERE posting = '{DUE}';
CREATE INDEX IF NOT EXISTS judgements_done ON judgements (judged_at) WHERE state = '{CLOSED}' AND posting = '{POSTED}';
CREATE TABLE IF NOT EXISTS totals (outcome INTEGER PRIMARY KEY, judgements INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS judged AFTER INSERT ON judgements BEGIN
    INSERT INTO totals VALUES (new.outcome, 1) ON CONFLICT (outcome) DO UPDATE SET judgements = judgements + 1;
END;
CREATE TRIGGER IF NOT EXISTS judged_otherwise AFTER UPDATE ON judgements WHEN new.outcome != old.outcome BEGIN
    UPDATE totals SET judgements = judgements - 1 WHERE outcome = old.outcome;
    INSERT INTO totals VALUES (new.outcome, 1) ON CONFLICT (outcome) DO UPDATE SET judgements = judgements + 1;
END;
CREATE TABLE IF NOT EXISTS pending (submission BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cursor (book BLOB NOT NULL, position INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS adopted (block INTEGER NOT NULL, time INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS opinions (
    seat TEXT NOT NULL, number INTEGER NOT NULL, submission BLOB NOT NULL, receipt BLOB NOT NULL, near TEXT NOT NULL,
    doubtful INTEGER NOT NULL, PRIMARY KEY (seat, number, submission)
) WITHOUT ROWID;
"""  # noqa: S608


@dataclass(frozen=True)
class Judgement:
    submission: bytes
    node: str
    outcome: int
    """What it is treated as. A hard finding that nobody confirmed is soft, even where its receipt was shown before."""
    receipt: bytes
    state: str
    posting: str
    units: int
    judged_at: int
    """Block time."""
    asked_at: int | None = None
    """Since when a second opinion is waited for, in block time; None until the hub has taken the request."""
    second: bytes | None = None
    """Receipt of the validator that found the same hard fault; it goes on chain with the accusation."""
    seat: str | None = None
    """Of the case that was opened, as `number`."""
    number: int | None = None
    """Of the seat's case that was opened. The chain's own note on a submission may name another: a soft verdict outlives an accusation."""
    shown_at: int | None = None
    """When the hub took the receipt, in block time."""


@dataclass(frozen=True)
class KeptOpinion:
    """What this validator found as a juror in one submission of a case."""

    submission: bytes
    receipt: bytes
    near: str
    """Bits as a hexadecimal number (Opinion.near)."""
    is_doubtful: bool


_COLUMNS = ", ".join(field.name for field in fields(Judgement))
_PUT = (
    f"INSERT INTO judgements ({_COLUMNS}) VALUES ({', '.join('?' for _ in fields(Judgement))}) ON CONFLICT (submission) DO UPDATE SET "  # noqa: S608
    + ", ".join(f"{field.name} = excluded.{field.name}" for field in fields(Judgement)[1:])
)


class JudgementLog:
    """Safe to share between threads. Times are block time."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(_SCHEMA)
        known = {name for _, name, *_ in self._db.execute("PRAGMA table_info(judgements)")}
        if "shown_at" not in known:  # of a log that was begun earlier
            self._db.execute("ALTER TABLE judgements ADD COLUMN shown_at INTEGER")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def put(self, *judgements: Judgement) -> None:
        """Writes all of them, or after a crash none."""
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._db.executemany(_PUT, [astuple(judgement) for judgement in judgements])

    def get(self, submission: bytes) -> Judgement | None:
        found = self._select("WHERE submission = ?", submission)
        return found[0] if found else None

    def waiting(self) -> list[Judgement]:
        """Hard findings that wait for a second validator, oldest first."""
        return self._select(f"WHERE state = '{WAITING}' ORDER BY judged_at")

    def decided(self, outcome: int) -> list[Judgement]:
        """What is to be challenged, with the most at stake first, then the oldest."""
        return self._select(f"WHERE state = '{DECIDED}' AND outcome = ? ORDER BY units DESC, judged_at", outcome)

    def decided_nodes(self, outcome: int, until: int) -> list[str]:
        """Whose submissions are to be challenged and were judged at `until` or before."""
        query = f"SELECT DISTINCT node FROM judgements WHERE state = '{DECIDED}' AND outcome = ? AND judged_at <= ?"  # noqa: S608
        with self._lock:
            return [node for (node,) in self._db.execute(query, (outcome, until)).fetchall()]

    def decided_of(self, node: str, outcome: int, most: int) -> list[Judgement]:
        """At most so many of one node's that are to be challenged, with the most at stake first, then the oldest."""
        where = f"WHERE state = '{DECIDED}' AND node = ? AND outcome = ? ORDER BY units DESC, judged_at LIMIT ?"
        return self._select(where, node, outcome, most)

    def cases(self) -> list[CaseName]:
        """Cases of this validator that are not known to be closed."""
        query = f"SELECT DISTINCT seat, number FROM judgements WHERE state = '{CHALLENGED}'"  # noqa: S608
        with self._lock:
            return self._db.execute(query).fetchall()

    def in_case(self, name: CaseName) -> list[Judgement]:
        """What a case of this validator was brought about."""
        return self._select(f"WHERE state = '{CHALLENGED}' AND seat = ? AND number = ?", *name)

    def due(self, after: tuple[int, bytes], most: int) -> list[Judgement]:
        """At most so many whose receipts are to be posted, oldest first, after one of that (judged_at, submission)."""
        return self._select(
            f"WHERE posting = '{DUE}' AND (judged_at, submission) > (?, ?) ORDER BY judged_at, submission LIMIT ?",
            *after,
            most,
        )

    def totals(self) -> dict[int, int]:
        """Judgements per outcome, dropped ones included."""
        with self._lock:
            return dict(self._db.execute("SELECT outcome, judgements FROM totals").fetchall())

    def prune(self, before: int, most: int = 1000) -> None:
        """Drops judgements from before that time with which nothing is left to do: at most so many at once. Receipts that no hub has
        taken by then are sent no more."""
        given_up = (
            f"UPDATE judgements SET posting = '{POSTED}' WHERE submission IN (SELECT submission FROM judgements "  # noqa: S608
            f"WHERE posting = '{DUE}' AND judged_at < ? ORDER BY judged_at LIMIT ?)"
        )
        query = (
            "DELETE FROM judgements WHERE submission IN (SELECT submission FROM judgements "  # noqa: S608
            f"WHERE state = '{CLOSED}' AND posting = '{POSTED}' AND judged_at < ? ORDER BY judged_at LIMIT ?)"
        )
        with self._lock:
            self._db.execute(given_up, (before, most))
            self._db.execute(query, (before, most))

    # ---- what is still to be judged --------------------------------------------------------------------------------------

    def pending(self) -> list[bytes]:
        """Submissions that may still have to be judged."""
        with self._lock:
            return [submission for (submission,) in self._db.execute("SELECT submission FROM pending").fetchall()]

    def begin(self, book: bytes) -> int:
        """Up to where this book was followed; 0: not yet. What another one had left to judge is forgotten."""
        with self._lock, self._db:
            self._db.execute("BEGIN")
            row = self._db.execute("SELECT book, position FROM cursor").fetchone()
            if row is not None and row[0] == book:
                return int(row[1])
            self._db.execute("DELETE FROM pending")
            self._db.execute("DELETE FROM cursor")
            self._db.execute("INSERT INTO cursor VALUES (?, 0)", (book,))
            return 0

    def note_pending(self, added: Iterable[bytes], removed: Iterable[bytes], cursor: int | None = None) -> None:
        """Writes all of it, or after a crash nothing. `cursor`: up to where the book that was begun was followed by that."""
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._db.executemany("DELETE FROM pending WHERE submission = ?", [(submission,) for submission in removed])
            self._db.executemany("INSERT OR IGNORE INTO pending VALUES (?)", [(submission,) for submission in added])
            if cursor is not None:
                self._db.execute("UPDATE cursor SET position = ?", (cursor,))

    # ---- juries ----------------------------------------------------------------------------------------------------------

    def keep_opinion(self, name: CaseName, opinion: KeptOpinion) -> None:
        with self._lock:
            row = (*name, opinion.submission, opinion.receipt, opinion.near, opinion.is_doubtful)
            self._db.execute("INSERT OR REPLACE INTO opinions VALUES (?, ?, ?, ?, ?, ?)", row)

    def opinions(self, name: CaseName) -> dict[bytes, KeptOpinion]:
        """What was found in submissions of a case, by submission."""
        query = "SELECT submission, receipt, near, doubtful FROM opinions WHERE seat = ? AND number = ?"
        with self._lock:
            rows = self._db.execute(query, name).fetchall()
        return {row[0]: KeptOpinion(row[0], row[1], row[2], bool(row[3])) for row in rows}

    def juries(self) -> list[CaseName]:
        """Cases of which something was found and is not handed over."""
        with self._lock:
            return self._db.execute("SELECT DISTINCT seat, number FROM opinions").fetchall()

    def hand_over(self, name: CaseName) -> None:
        """Makes what was found in a case judgements whose receipts are to be posted, but where there is one before."""
        judged = []
        for one in self.opinions(name).values():
            if self.get(one.submission) is None:
                d = Receipt.stored(one.receipt).details
                judged.append(Judgement(one.submission, d.node, d.outcome, one.receipt, CLOSED, DUE, d.units, d.time))
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._db.executemany(_PUT, [astuple(judgement) for judgement in judged])
            self._db.execute("DELETE FROM opinions WHERE seat = ? AND number = ?", name)

    # ---- what was done before this log began ------------------------------------------------------------------------------

    def adopt(self, block: int, time: int) -> None:
        """Notes that everything under this validator's key up to a block, of this time, was its own."""
        with self._lock:
            self._db.execute("INSERT INTO adopted VALUES (?, ?)", (block, time))

    @property
    def adopted(self) -> tuple[int, int]:
        """(block, its time) up to which everything under the key is this validator's own; -1 before the first."""
        with self._lock:
            return self._db.execute("SELECT coalesce(max(block), -1), coalesce(max(time), -1) FROM adopted").fetchone()

    # ---- secrets -------------------------------------------------------------------------------------------------------

    def secret(self, name: str, fresh: bytes) -> bytes:
        """A secret that stays the same across restarts; `fresh` is what it becomes the first time."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, fresh))
            return self._db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()[0]

    def kept_secret(self, name: str) -> bytes | None:
        """The same for who only looks; None where none was drawn yet."""
        with self._lock:
            row = self._db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def _select(self, clause: str, *values: object) -> list[Judgement]:
        with self._lock:
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM judgements {clause}", values).fetchall()  # noqa: S608
        return [Judgement(*row) for row in rows]
