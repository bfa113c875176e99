"""What a node made, committed, uploaded and was told about it: SQLite (WAL), so that a restart loses nothing.

A submission is written down before its transaction is sent. It and its file stay until nobody can dispute it or claim for it any
more; counts outlive it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol import metrics
from protocol.chain.types import Settlement, Stage
from protocol.clock import SYSTEM
from protocol.errors import IntegrityError
from protocol.hub.listing import Mark
from protocol.submission import SubmissionRef

FILE = "submissions.sqlite"
"""Where a node's log lies in its data folder."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS submissions (
    submission BLOB PRIMARY KEY, node TEXT NOT NULL, step INTEGER NOT NULL, sequence INTEGER NOT NULL, root BLOB NOT NULL,
    units INTEGER NOT NULL, state TEXT NOT NULL, made_at INTEGER NOT NULL, receipt TEXT, storage TEXT
);
CREATE TABLE IF NOT EXISTS marks (listing TEXT PRIMARY KEY, number INTEGER NOT NULL, digest BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS adopted (step INTEGER NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY (step, sequence));
CREATE TABLE IF NOT EXISTS settlements (
    seat TEXT NOT NULL, number INTEGER NOT NULL, place INTEGER NOT NULL, stage INTEGER NOT NULL, units INTEGER NOT NULL, slashed TEXT NOT NULL,
    convicted INTEGER NOT NULL, tx BLOB NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (seat, number, place)
);
CREATE INDEX IF NOT EXISTS submissions_by_state ON submissions (state, made_at);
CREATE INDEX IF NOT EXISTS submissions_by_time ON submissions (made_at, step, sequence);
CREATE INDEX IF NOT EXISTS submissions_by_place ON submissions (step, sequence);
CREATE TABLE IF NOT EXISTS counts (state TEXT PRIMARY KEY, submissions INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS arrived AFTER INSERT ON submissions BEGIN
    INSERT INTO counts VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET submissions = submissions + 1;
END;
CREATE TRIGGER IF NOT EXISTS moved AFTER UPDATE OF state ON submissions WHEN new.state != old.state BEGIN
    UPDATE counts SET submissions = submissions - 1 WHERE state = old.state;
    INSERT INTO counts VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET submissions = submissions + 1;
END;
"""

MADE, COMMITTED, LOST, STORED, ACCEPTED, SOFT, HARD = "made", "committed", "lost", "stored", "accepted", "soft", "hard"
"""States of a submission. `lost`: never reached the chain, or its upload came too late."""

_PRUNED_MAX = 10_000  # submissions at once
_SUBMISSIONS = metrics.counter(
    "murmur_node_submissions_total",
    "Submissions that reached a state: made, committed, stored at the hub, then accepted, soft or hard; lost on the way.",
    "state",
)
_ACCEPTED_AT = metrics.gauge(
    "murmur_node_accepted_timestamp_seconds",
    "Unix time at which a submission was last accepted; before the first, at which the node started.",
)
_ORDER = (MADE, COMMITTED, LOST, STORED, ACCEPTED, SOFT, HARD)
_SUBMISSIONS.from_zero(*_ORDER)


def is_before(state: str, other: str) -> bool:
    """Whether a submission in `state` may still come to be in the other."""
    return _ORDER.index(state) < _ORDER.index(other)


@dataclass(frozen=True)
class LoggedSubmission:
    ref: SubmissionRef
    id: bytes
    units: int
    state: str
    made_at: int
    """Block time: of its commitment, or while that is not known of the block before it was sent."""
    receipt: str | None
    """JSON of the verdict receipt that decided."""
    storage: str | None
    """JSON of the hub's storage receipt: proof that the file was there in time."""


NotedSettlements = dict[tuple[str, int], list[Settlement]]
"""By seat and number of a case."""


class SubmissionLog:
    def __init__(self, path: Path, noted: NotedSettlements | None = None) -> None:
        """Who gives `noted` reads only, and keeps there what a writer keeps in the file. Raises IntegrityError where there is none to read."""
        self._lock = threading.Lock()
        self._noted = noted
        if noted is not None:
            self._db = _read_only(path)
            return
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(_SCHEMA)
        _ACCEPTED_AT.set(SYSTEM.wall())

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def add(self, ref: SubmissionRef, submission: bytes, units: int, made_at: int) -> None:
        """Notes a submission that is about to be sent; one that is known already stays as it is, but for a lost one."""
        row = (submission, ref.node, ref.step, ref.sequence, ref.root, units, MADE, made_at, None, None)
        with self._lock:
            query = (
                "INSERT INTO submissions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (submission) DO UPDATE"
                " SET units = excluded.units, state = excluded.state, made_at = excluded.made_at, receipt = NULL, storage = NULL"
                " WHERE state = ?"
            )
            new = self._db.execute(query, (*row, LOST)).rowcount
        _SUBMISSIONS.add(new, state=MADE)

    def advance(self, submission: bytes, state: str, *, receipt: str | None = None) -> None:
        """Moves a submission on to `state`. Nothing goes back: a verdict may be heard before the upload has returned, and
        of several verdicts the gravest counts."""
        earlier = _ORDER[: _ORDER.index(state)]
        with self._lock:
            query = (
                f"UPDATE submissions SET state = ?, receipt = ? WHERE submission = ? AND state IN ({_marks(earlier)})"  # noqa: S608
            )
            moved = self._db.execute(query, (state, receipt, submission, *earlier)).rowcount
        _SUBMISSIONS.add(moved, state=state)
        if moved and state == ACCEPTED:
            _ACCEPTED_AT.set(SYSTEM.wall())

    def date(self, submission: bytes, committed_at: int) -> None:
        """Notes the block time of its commitment."""
        with self._lock:
            query = "UPDATE submissions SET made_at = ? WHERE submission = ?"
            self._db.execute(query, (committed_at, submission))

    def roots(self) -> set[bytes]:
        """Of all that is not forgotten."""
        with self._lock:
            return {root for (root,) in self._db.execute("SELECT root FROM submissions").fetchall()}

    def earlier_keys(self, key: str) -> list[str]:
        """Of the seat, other than `key`, for whose submissions a verdict may come; those of the newest first."""
        with self._lock:
            query = "SELECT node FROM submissions WHERE node != ? GROUP BY node ORDER BY max(made_at) DESC"
            return [node for (node,) in self._db.execute(query, (key,)).fetchall()]

    def keep_storage_receipt(self, submission: bytes, receipt: str) -> None:
        with self._lock:
            self._db.execute("UPDATE submissions SET storage = ? WHERE submission = ?", (receipt, submission))

    def get(self, submission: bytes) -> LoggedSubmission | None:
        return next(self._select("WHERE submission = ?", (submission,)), None)

    def all(self, *states: str, most: int = 1_000_000) -> list[LoggedSubmission]:
        """Newest first, in the given states (all, when none is given)."""
        where = f"WHERE state IN ({_marks(states)})" if states else ""
        return list(self._select(f"{where} ORDER BY made_at DESC, step DESC, sequence DESC LIMIT ?", (*states, most)))

    def slice(self, state: str | None, offset: int, most: int) -> list[LoggedSubmission]:
        """Part of `all`, or of those in one state, for those who turn pages: what is skipped is skipped in an index."""
        order = "made_at DESC, step DESC, sequence DESC" if state is None else "made_at DESC, rowid DESC"
        where, values = ("", ()) if state is None else ("WHERE state = ?", (state,))
        part = f"SELECT rowid FROM submissions {where} ORDER BY {order} LIMIT ? OFFSET ?"  # noqa: S608
        return list(self._select(f"WHERE rowid IN ({part}) ORDER BY {order}", (*values, most, offset)))

    def version(self) -> int:
        """Another number once another connection has written."""
        with self._lock:
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def kept(self) -> Counter[str]:
        """Submissions by state that are not forgotten; counts each of them."""
        with self._lock:
            return Counter(dict(self._db.execute("SELECT state, count(*) FROM submissions GROUP BY state").fetchall()))

    def recent(self, most: int) -> Counter[str]:
        """The newest judged submissions, by state."""
        judged = (ACCEPTED, SOFT, HARD)
        query = f"SELECT state FROM submissions WHERE state IN ({_marks(judged)}) ORDER BY made_at DESC, step DESC, sequence DESC LIMIT ?"  # noqa: S608
        with self._lock:
            return Counter(state for (state,) in self._db.execute(query, (*judged, most)).fetchall())

    def by_day(self, day: int) -> list[tuple[int, str, int, int, int]]:
        """(number of the day, state, submissions, units, newest `made_at`) of all that is not forgotten; `day` in seconds."""
        query = "SELECT made_at / ?, state, count(*), sum(units), max(made_at) FROM submissions GROUP BY 1, 2"
        with self._lock:
            return self._db.execute(query, (day,)).fetchall()

    def worked(self, since: int, *states: str) -> tuple[int, int | None]:
        """Units made from that block time on, in the given states; and when the oldest of all that is not forgotten was made."""
        query = f"SELECT coalesce(sum(units), 0) FROM submissions WHERE state IN ({_marks(states)}) AND made_at >= ?"  # noqa: S608
        with self._lock:
            (units,) = self._db.execute(query, (*states, since)).fetchone()
            return units, self._db.execute("SELECT min(made_at) FROM submissions").fetchone()[0]

    def judged_since(self, time: int) -> list[LoggedSubmission]:
        """Those made from that block time on of which there is a verdict, oldest first."""
        return list(
            self._select("WHERE made_at >= ? AND receipt IS NOT NULL ORDER BY made_at, step, sequence", (time,))
        )

    def at(self, step: int, sequence: int) -> list[SubmissionRef]:
        """What was made for a place, by whichever key: more than one where a first attempt was lost."""
        return [one.ref for one in self._select("WHERE step = ? AND sequence = ?", (step, sequence))]

    def adopt(self, step: int, sequence: int) -> None:
        """Notes that the submission of this place was the node's own, although nothing else is known of it."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO adopted VALUES (?, ?)", (step, sequence))

    def is_adopted(self, step: int, sequence: int) -> bool:
        with self._lock:
            query = "SELECT 1 FROM adopted WHERE step = ? AND sequence = ?"
            return self._db.execute(query, (step, sequence)).fetchone() is not None

    def prune(self, before: int, last: tuple[int, int] | None) -> None:
        """Forgets what was made before that block time and is decided or lost, a bounded part at once; `counts` keep it.

        `last`: (step, sequence) of the seat's last submission, by which a node that idled for long still knows itself (alone.py).
        """
        step, sequence = last or (-1, -1)
        query = (
            "DELETE FROM submissions WHERE rowid IN (SELECT rowid FROM submissions WHERE made_at < ? AND state NOT IN (?, ?)"
            " AND (step, sequence) != (?, ?) ORDER BY made_at LIMIT ?)"
        )
        with self._lock:
            self._db.execute(query, (before, MADE, COMMITTED, step, sequence, _PRUNED_MAX))
            self._db.execute("DELETE FROM adopted WHERE step < ?", (step,))

    def keep_settlements(self, seat: str, number: int, found: Sequence[Settlement]) -> None:
        """Notes what has ended the stages of a closed case, so that nobody looks for those events again."""
        if self._noted is not None:
            self._noted[seat, number] = list(found)
            return
        rows = [
            (
                seat,
                number,
                place,
                int(one.stage),
                one.units,
                str(one.slashed),
                one.convicted,
                one.transaction,
                one.block,
            )
            for place, one in enumerate(found)
        ]
        with self._lock:
            self._db.executemany("INSERT OR REPLACE INTO settlements VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def settlements(self, seat: str, number: int) -> list[Settlement] | None:
        """What was noted of a case; None where nothing was."""
        if self._noted is not None and (seat, number) in self._noted:
            return self._noted[seat, number]
        query = "SELECT stage, units, slashed, convicted, tx, block FROM settlements WHERE seat = ? AND number = ? ORDER BY place"
        with self._lock:
            rows = self._db.execute(query, (seat, number)).fetchall()
        return [
            Settlement(Stage(stage), units, int(slashed), bool(convicted), tx, block)
            for stage, units, slashed, convicted, tx, block in rows
        ] or None

    def mark(self, listing: str) -> Mark:
        """How far a listing of the hub was read."""
        with self._lock:
            row = self._db.execute("SELECT number, digest FROM marks WHERE listing = ?", (listing,)).fetchone()
        return Mark(*row) if row else Mark()

    def set_mark(self, listing: str, mark: Mark) -> None:
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", (listing, mark.number, mark.digest))

    def counts(self) -> Counter[str]:
        """Submissions by state, also those that are forgotten."""
        with self._lock:
            return Counter(
                dict(self._db.execute("SELECT state, submissions FROM counts WHERE submissions > 0").fetchall())
            )

    def _select(self, clause: str, values: tuple[object, ...]) -> Iterator[LoggedSubmission]:
        columns = "submission, node, step, sequence, root, units, state, made_at, receipt, storage"
        with self._lock:
            rows = self._db.execute(f"SELECT {columns} FROM submissions {clause}", values).fetchall()  # noqa: S608
        for submission, node, step, sequence, root, *rest in rows:
            yield LoggedSubmission(SubmissionRef(node, step, sequence, root), submission, *rest)


def _read_only(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        return sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
    except sqlite3.Error as error:
        raise IntegrityError(f"{path} cannot be read: {error}") from error


def _marks(values: tuple[str, ...]) -> str:
    return ",".join("?" * len(values))
