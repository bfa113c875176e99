"""What a validator judged and did about it: SQLite (WAL), so that a restart judges nothing twice and forgets nothing."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import astuple, dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS judgements (
    work BLOB PRIMARY KEY, outcome INTEGER NOT NULL, receipt BLOB NOT NULL, state TEXT NOT NULL, posting TEXT NOT NULL,
    units INTEGER NOT NULL, judged_at INTEGER NOT NULL, asked_at REAL, second BLOB, number INTEGER
);
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""

WAITING, DECIDED, CHALLENGED, CLOSED = "waiting", "decided", "challenged", "closed"
"""States of a judgement: a hard finding that waits for a second validator; one that is to be challenged; one with a case
on chain; one with nothing left to do on chain."""

SECRET, DUE, POSTED = "secret", "due", "posted"
"""Posting of its receipt: not to be shown yet; to be sent to the hub; there."""


@dataclass(frozen=True)
class Judgement:
    work: bytes
    outcome: int
    """What it is treated as. A hard finding that nobody confirmed is soft, even where its receipt was shown before."""
    receipt: bytes
    state: str
    posting: str
    units: int
    judged_at: int
    """Block time."""
    asked_at: float | None = None
    """Since when a second opinion is waited for, in wall-clock seconds; None until the hub has taken the request."""
    second: bytes | None = None
    """Receipt of the validator that found the same hard fault; it goes on chain with the accusation."""
    number: int | None = None
    """Of the seat's case that was opened. The chain's own note on a work may name another: a soft verdict outlives an accusation."""


class JudgementLog:
    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def put(self, judgement: Judgement) -> None:
        with self._lock:
            self._db.execute(
                "INSERT OR REPLACE INTO judgements VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(judgement)
            )

    def get(self, work: bytes) -> Judgement | None:
        found = self._select("WHERE work = ?", (work,))
        return found[0] if found else None

    def in_state(self, state: str) -> list[Judgement]:
        """Gravest first, then those with the most at stake, then the oldest."""
        return self._select("WHERE state = ? ORDER BY outcome DESC, units DESC, judged_at", (state,))

    def due(self) -> list[Judgement]:
        """Whose receipts are to be posted, oldest first."""
        return self._select("WHERE posting = ? ORDER BY judged_at", (DUE,))

    def totals(self) -> dict[int, int]:
        """Judgements per outcome."""
        with self._lock:
            return dict(self._db.execute("SELECT outcome, COUNT(*) FROM judgements GROUP BY outcome").fetchall())

    def secret(self, name: str, fresh: bytes) -> bytes:
        """A secret that stays the same across restarts; `fresh` is what it becomes the first time."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, fresh))
            return self._db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()[0]

    def _select(self, clause: str, values: tuple[object, ...]) -> list[Judgement]:
        query = f"SELECT work, outcome, receipt, state, posting, units, judged_at, asked_at, second, number FROM judgements {clause}"  # noqa: S608
        with self._lock:
            return [Judgement(*row) for row in self._db.execute(query, values).fetchall()]
