"""What a validator judged and did about it: SQLite (WAL), so that a restart judges nothing twice and forgets nothing."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS judgements (
    work BLOB PRIMARY KEY, outcome INTEGER NOT NULL, receipt BLOB NOT NULL, state TEXT NOT NULL, judged_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""

WAITING, JUDGED, OPINION, POSTED, CHALLENGED, CLOSED = "waiting", "judged", "opinion", "posted", "challenged", "closed"
"""States: a hard finding that waits for a second validator; a receipt still to be posted, and to be acted on unless it is an
opinion for another validator; receipt with the hub; case on chain; case settled."""


@dataclass(frozen=True)
class Judgement:
    work: bytes
    outcome: int
    receipt: bytes
    state: str
    judged_at: float
    """Wall-clock seconds, for how long a second opinion has been waited for."""


class Journal:
    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def add(self, judgement: Judgement) -> None:
        j = judgement
        with self._lock:
            row = (j.work, j.outcome, j.receipt, j.state, j.judged_at)
            self._db.execute("INSERT OR REPLACE INTO judgements VALUES (?, ?, ?, ?, ?)", row)

    def set_state(self, work: bytes, state: str) -> None:
        with self._lock:
            self._db.execute("UPDATE judgements SET state = ? WHERE work = ?", (state, work))

    def get(self, work: bytes) -> Judgement | None:
        found = self._select("WHERE work = ?", (work,))
        return found[0] if found else None

    def in_state(self, state: str) -> list[Judgement]:
        return self._select("WHERE state = ? ORDER BY judged_at", (state,))

    def judged(self) -> set[bytes]:
        with self._lock:
            return {row[0] for row in self._db.execute("SELECT work FROM judgements")}

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
        query = f"SELECT work, outcome, receipt, state, judged_at FROM judgements {clause}"  # noqa: S608
        with self._lock:
            return [Judgement(*row) for row in self._db.execute(query, values).fetchall()]
