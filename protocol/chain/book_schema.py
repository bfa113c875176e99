"""Tables of a book of the chain, and what is known of the file itself.

`position` numbers everything that a book learns, also that something is gone, in the order of learning: whoever follows a book
keeps one number. Addresses of nodes are kept once; block hashes and times stand once for a block. `cases` and `nodes.seat` are
derived from the events and made anew for whatever an event touches, so that late and taken-back events leave them right.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from protocol.errors import IntegrityError

FORMAT = 3

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (number INTEGER PRIMARY KEY, hash BLOB NOT NULL, time INTEGER, bare INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS bare_blocks ON blocks (number) WHERE bare;
CREATE TABLE IF NOT EXISTS nodes (id INTEGER PRIMARY KEY, address TEXT NOT NULL UNIQUE, seat TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS nodes_by_seat ON nodes (seat);
CREATE TABLE IF NOT EXISTS submissions (
    position INTEGER PRIMARY KEY, block INTEGER NOT NULL, log_index INTEGER NOT NULL, tx BLOB NOT NULL, node INTEGER NOT NULL,
    step INTEGER NOT NULL, sequence INTEGER NOT NULL, units INTEGER NOT NULL, root BLOB NOT NULL, id BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS submissions_by_place ON submissions (block, log_index);
CREATE INDEX IF NOT EXISTS submissions_by_node ON submissions (node, step, sequence);
CREATE INDEX IF NOT EXISTS submissions_of_node ON submissions (node, block, log_index);
CREATE INDEX IF NOT EXISTS submissions_by_id ON submissions (id);
CREATE INDEX IF NOT EXISTS submissions_by_root ON submissions (root);
CREATE TABLE IF NOT EXISTS events (
    position INTEGER PRIMARY KEY, block INTEGER NOT NULL, log_index INTEGER NOT NULL, tx BLOB NOT NULL, kind TEXT NOT NULL,
    subject TEXT NOT NULL, number INTEGER NOT NULL, data TEXT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS events_by_place ON events (block, log_index);
CREATE INDEX IF NOT EXISTS events_by_subject ON events (kind, subject, number, block, log_index);
CREATE TABLE IF NOT EXISTS cases (
    seat TEXT NOT NULL, number INTEGER NOT NULL, position INTEGER NOT NULL, block INTEGER NOT NULL, challenger TEXT NOT NULL,
    hard INTEGER NOT NULL, appealed INTEGER NOT NULL, stage INTEGER NOT NULL, convicted INTEGER NOT NULL,
    upheld TEXT NOT NULL, cleared TEXT NOT NULL,
    PRIMARY KEY (seat, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_cases ON cases (block) WHERE stage IN (0, 4);
CREATE INDEX IF NOT EXISTS convictions_by_block ON cases (block, seat, number) WHERE convicted;
CREATE TABLE IF NOT EXISTS accused (
    id BLOB NOT NULL, seat TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (id, seat, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS removed (
    position INTEGER PRIMARY KEY, was INTEGER NOT NULL, block INTEGER NOT NULL, log_index INTEGER NOT NULL,
    block_hash BLOB NOT NULL, time INTEGER, tx BLOB NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL
);
"""


def connect(path: Path | None) -> sqlite3.Connection:
    """A book for writing: the file at `path`, or memory. Raises IntegrityError for a damaged file or another format."""
    db = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")  # a power cut may cost the last pages; the chain still has them
        db.executescript(_TABLES)
        db.execute("INSERT OR IGNORE INTO facts VALUES ('format', ?)", (FORMAT,))
        found = db.execute("SELECT value FROM facts WHERE name = 'format'").fetchone()[0]
    except sqlite3.DatabaseError as error:
        db.close()
        raise IntegrityError(
            f"{path} is damaged: {error}", hint="delete it: it is read again from the chain"
        ) from error
    if found != FORMAT:
        db.close()
        raise IntegrityError(
            f"{path} has format {found}, not {FORMAT}", hint="delete it: it is read again from the chain"
        )
    return db


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Somebody else's book. Raises IntegrityError where there is none."""
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False, isolation_level=None
        )
        db.execute("SELECT value FROM facts").fetchone()
    except sqlite3.Error as error:
        raise IntegrityError(f"{path} is no book of the chain: {error}") from error
    return db
