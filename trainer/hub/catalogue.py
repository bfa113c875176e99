"""Which packs there are and where in them each member lies, in SQLite beside them: memory does not grow with what is packed.

The packs are the truth (packs.py): what this says is made from them, anew where it is lost or damaged. A pack is on the disk before it
is entered and crossed out before it goes, so a crash leaves at worst a pack that the next start enters (store.py).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import IntegrityError
from trainer.hub.database import remove_database
from trainer.hub.packs import Member, Pack

_SCHEMA = """
CREATE TABLE IF NOT EXISTS packs (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, holds_files INTEGER NOT NULL,
    newest REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS members (
    pack INTEGER NOT NULL, start INTEGER NOT NULL, name TEXT NOT NULL, size INTEGER NOT NULL, time INTEGER NOT NULL,
    sha256 TEXT NOT NULL, PRIMARY KEY (pack, start, name)
) WITHOUT ROWID;
"""
_MEMBER = "m.name, m.size, m.time, m.sha256, m.start"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ROWS = 1000  # at once: others wait for the lock


class Packs:
    """Safe to share between threads. Raises IntegrityError where the file turns out to be damaged; the next start makes it anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading, self._writing = threading.Lock(), threading.Lock()
        try:
            self._writer = _connect(path)
        except sqlite3.DatabaseError as error:
            if not _is_damaged(error):
                raise
            remove_database(path)
            self._writer = _connect(path)
        self._db = _connect(path)  # another: no request waits until thousands of members are on the disk

    def close(self) -> None:
        with self._reading, self._writing:
            self._db.close()
            self._writer.close()

    def __contains__(self, name: object) -> bool:
        """Of a member."""
        with self._use(self._reading):
            return self._db.execute("SELECT 1 FROM members WHERE name = ? LIMIT 1", (name,)).fetchone() is not None

    def find(self, name: str) -> tuple[str, Member] | None:
        """Pack and place of a member; of several packs the one that came last."""
        query = (
            f"SELECT p.name, {_MEMBER} FROM members m JOIN packs p ON p.id = m.pack"  # noqa: S608
            " WHERE m.name = ? ORDER BY m.time DESC, m.pack DESC LIMIT 1"
        )
        with self._use(self._reading):
            row = self._db.execute(query, (name,)).fetchone()
        return None if row is None else (row[0], Member(*row[1:]))

    def of_kind(self, kind: str) -> Iterator[tuple[str, int]]:
        """(name, time) of all members of a kind, oldest first."""
        query = "SELECT name, time, max(pack) AS last FROM members WHERE name > ? AND name < ? GROUP BY name ORDER BY time, last, start"
        with self._use(self._reading):
            cursor = self._db.execute(query, (f"{kind}/", f"{kind}0"))  # "0" comes after "/"
        while True:
            with self._use(self._reading):
                rows = cursor.fetchmany(_ROWS)
            if not rows:
                return
            yield from ((name, time) for name, time, _ in rows)

    # ---- packs ---------------------------------------------------------------------------------------------------------

    def names(self) -> set[str]:
        with self._use(self._reading):
            return {name for (name,) in self._db.execute("SELECT name FROM packs")}

    def names_of(self, *, files: bool) -> set[str]:
        """Packs of files, or the others."""
        with self._use(self._reading):
            return {name for (name,) in self._db.execute("SELECT name FROM packs WHERE holds_files = ?", (files,))}

    def files_before(self, time: float) -> list[str]:
        """Packs of files that were all stored before `time` (seconds since the epoch)."""
        with self._use(self._reading):
            query = "SELECT name FROM packs WHERE holds_files AND newest < ?"
            return [name for (name,) in self._db.execute(query, (time,))]

    def size(self, name: str) -> int | None:
        """Bytes of a pack; None where it is not known."""
        with self._use(self._reading):
            row = self._db.execute("SELECT size FROM packs WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def get(self, name: str) -> Pack | None:
        query = (
            f"SELECT {_MEMBER} FROM members m JOIN packs p ON p.id = m.pack WHERE p.name = ? ORDER BY m.start, m.name"  # noqa: S608
        )
        with self._use(self._reading):
            rows = self._db.execute(query, (name,)).fetchall()
        return Pack(name, tuple(Member(*row) for row in rows)) if rows else None

    def add(self, pack: Pack) -> None:
        last = pack.members[-1]
        row = (pack.name, last.start + last.size, pack.holds_files, pack.newest)
        with self._use(self._writing), self._writer as db:
            self._remove(pack.name)
            number = db.execute(
                "INSERT INTO packs (name, size, holds_files, newest) VALUES (?, ?, ?, ?)", row
            ).lastrowid
            db.executemany(
                "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?)",
                ((number, one.start, one.name, one.size, one.time, one.sha256) for one in pack.members),
            )

    def remove(self, name: str) -> None:
        with self._use(self._writing), self._writer:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._writer.execute("DELETE FROM members WHERE pack = (SELECT id FROM packs WHERE name = ?)", (name,))
        self._writer.execute("DELETE FROM packs WHERE name = ?", (name,))

    def sort(self) -> None:
        """Members are found by their names quickly from now on. Many packs are entered sooner before this than after it."""
        with self._use(self._writing):
            self._writer.execute("CREATE INDEX IF NOT EXISTS members_by_name ON members (name)")

    @contextmanager
    def _use(self, lock: threading.Lock) -> Iterator[None]:
        with lock:
            try:
                yield
            except sqlite3.DatabaseError as error:
                if not _is_damaged(error):
                    raise
                remove_database(self._path)
                raise IntegrityError(
                    f"{self._path} is damaged and is made anew: {error}", hint="start the hub again"
                ) from error


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")  # a power cut may cost the last entries; the packs are there
        db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _is_damaged(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED  # the low byte of an extended code is the plain one
