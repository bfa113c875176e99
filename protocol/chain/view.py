"""The one book of a run's chain state: what happened to its seats, submissions, cases, validators and versions, on disk.

    book = Book(chain, run, path)             # sync.py: the writer; one per file, it follows the chain
    view = View.read(path)                    # any number of readers of the same file, in other processes too

    book.poll()                               # reads on, takes back what a reorg took back; cost follows new events
    book.head                                 # Block: the chain's newest block then, the protocol's clock

    changes = book.changes_since(cursor)      # 0: from the beginning
    changes.gone_submissions, .gone_events    # forget these first …
    changes.submissions, .events              # … then learn these
    cursor = changes.cursor                   # an integer to keep; changes.more: ask again at once
    book.identity                             # to keep beside it: in another book the cursor means nothing

    book.position                             # the cursor of one who wants only what comes from now on

    book.submission(id)                       # one indexed read
    book.newest_submissions()                 # lazily, newest first
    book.submissions_of(seat, place)          # all of one seat before that place, oldest first
    book.earlier(s, most)                     # how many the node committed to before, counted to `most`
    book.repeats(s)                           # whether the node committed to the same root before
    book.is_sure(s)                           # of the writer: whether that, and s, is more than one endpoint's word
    book.hardware(s)                          # class of the node's seat when it committed
    book.rejoined(s)                          # whether that seat was taken again since
    book.seat(node), book.keys(seat)          # a seat's name is the first key it had
    book.case(seat, number), book.open_cases(seat=None), book.appeals(), book.convictions()
    book.cases_of(id)                         # every case that ever named a submission, oldest first
    book.validators(now), book.ever_validated()
    book.publication(step), book.beacon(step), book.newest_publication(), book.events(Kind, subject, number)

Everything is read from events, never from the contract's present state: a submission is judged as things stood in the block of
its commitment, so that nobody can change a verdict afterwards by leaving and joining again. A removal of a validator takes
effect later than it is announced, when every case on earlier submissions is closed; until then it judges.

Each process keeps a file of its own (hub, trainer, validator): none waits for another to be alive, and each stays as
many blocks behind the head as its work asks for. Other processes may read a file while its owner writes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.chain import book_schema, events
from protocol.chain.events import Challenged, Drawn, Event, Joined, Published, RunCreated, Submitted, ValidatorSeated
from protocol.chain.types import Block, Stage
from protocol.submission import SubmissionRef

PAGE = 2_000
_SUBMISSION = (
    "SELECT s.position, s.block, s.log_index, b.hash, s.tx, b.time, n.address, s.step, s.sequence, s.units, s.root, s.id"
    " FROM submissions s JOIN nodes n ON n.id = s.node JOIN blocks b ON b.number = s.block"
)
_EVENT = "SELECT e.position, e.kind, e.data, e.block, b.hash, e.log_index, e.tx FROM events e JOIN blocks b ON b.number = e.block"
_CASE = "SELECT seat, number, position, block, challenger, hard, appealed, stage, convicted, upheld, cleared FROM cases"
_IS_OPEN = f"stage IN ({int(Stage.NONE)}, {int(Stage.UNDECIDED)})"


@dataclass(frozen=True, slots=True)
class Submission:
    """One commitment. `id` names it: keccak256 of run, node, step, sequence and root (Court.submissionId)."""

    position: int
    """In the book's order of learning; see View.changes_since."""
    block: int
    log_index: int
    block_hash: bytes
    transaction: bytes
    time: int | None
    """Block time in seconds, where the book knows it already; Book.time asks the chain otherwise."""
    node: str
    """Checksummed address of the key that signed."""
    step: int
    sequence: int
    units: int
    root: bytes
    """SHA-256 of the rollout file."""
    id: bytes

    @property
    def ref(self) -> SubmissionRef:
        return SubmissionRef(self.node, self.step, self.sequence, self.root)  # type: ignore[arg-type]

    @property
    def place(self) -> tuple[int, int]:
        """Block, and index in it."""
        return self.block, self.log_index


@dataclass(frozen=True)
class CaseEntry:
    """A case with all that was ever brought into it."""

    seat: str
    number: int
    position: int
    """Of the last event that changed it."""
    block: int
    """In which it was opened."""
    challenger: str
    """The second one, where it was challenged again."""
    hard: bool
    """Brought as hard, and not challenged again: then it is a soft one."""
    is_appealed: bool
    """Whether it waits for votes."""
    stage: Stage
    """As its last Settled has it; NONE while it waits for an appeal or for votes."""
    convicts: bool
    """Whether it convicted the seat."""
    refs: tuple[SubmissionRef, ...]
    """In the order of the bits that stand for them."""
    upheld: int
    """Bits of those that were found false, by whichever of its votes."""
    cleared: int

    def is_upheld(self, ref: SubmissionRef) -> bool:
        return ref in self.refs and bool(self.upheld >> self.refs.index(ref) & 1)

    @property
    def name(self) -> tuple[str, int]:
        return self.seat, self.number

    @property
    def is_open(self) -> bool:
        """Whether its units are withheld and its bonds at risk; also while it may be challenged again."""
        return not self.stage.closed


@dataclass(frozen=True)
class Changes:
    """What a follower has to forget, then to learn; `gone_…` may name what it never heard of."""

    submissions: list[Submission]
    events: list[Event]
    """All other kinds."""
    gone_submissions: list[Submission]
    """Newest first."""
    gone_events: list[Event]
    cursor: int
    more: bool
    """Whether there is more to ask for."""


class View:
    """Reading a book. Safe to share between threads."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.lock = threading.RLock()
        self._service: tuple[int, dict[str, int]] = (-1, {})

    @classmethod
    def read(cls, path: Path) -> View:
        """The book that another process keeps. Raises IntegrityError where there is none."""
        return cls(book_schema.connect_read_only(path))

    def close(self) -> None:
        with self.lock:
            self._db.close()

    # ---- the file ------------------------------------------------------------------------------------------------------

    @property
    def run(self) -> int:
        return int(self.fact("run") or 0)

    @property
    def identity(self) -> bytes:
        """Random, drawn when the file was begun: a cursor into another book means nothing in this one. Empty before that."""
        return self.fact("identity") or b""

    @property
    def head(self) -> Block | None:
        """The chain's newest block as of the last poll that came to its end."""
        number = self.fact("head_number")
        return None if number is None else Block(number, self.fact("head_hash"), self.fact("head_time"))

    @property
    def position(self) -> int:
        """Where the book stands: a cursor for whoever wants only what comes from now on."""
        tables = ("submissions", "events", "removed")
        return max(self.row(f"SELECT coalesce(max(position), 0) FROM {table}")[0] for table in tables)  # noqa: S608

    @property
    def settled(self) -> int:
        """Up to this block everything was read twice and compared with what the contracts count; -1: nothing yet."""
        found = self.fact("settled")
        return -1 if found is None else int(found)

    @property
    def begins_with_run(self) -> bool:
        """Else it does not hold all that the contracts count."""
        return self.fact("first_block") == 0 or bool(self.events(RunCreated))

    def fact(self, name: str) -> Any:
        row = self.row("SELECT value FROM facts WHERE name = ?", (name,))
        return row[0] if row else None

    def rows(self, query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        with self.lock:
            return self._db.execute(query, parameters).fetchall()

    def row(self, query: str, parameters: tuple[Any, ...] = ()) -> Any:
        with self.lock:
            return self._db.execute(query, parameters).fetchone()

    # ---- following -----------------------------------------------------------------------------------------------------

    def changes_since(self, cursor: int, most: int = PAGE) -> Changes:
        """The next `most` things that the book learned after `cursor`, in the order of learning.

        That is the chain's order, but for what was overlooked at first and found later.
        """
        with self.lock, self._unchanging():
            submissions = self.rows(f"{_SUBMISSION} WHERE s.position > ? ORDER BY s.position LIMIT ?", (cursor, most))
            learned = self.rows(f"{_EVENT} WHERE e.position > ? ORDER BY e.position LIMIT ?", (cursor, most))
            gone = self.rows("SELECT * FROM removed WHERE position > ? ORDER BY position LIMIT ?", (cursor, most))
        positions = sorted(row[0] for rows in (submissions, learned, gone) for row in rows)
        upto = positions[:most][-1] if positions else cursor
        more = len(positions) > most or max(map(len, (submissions, learned, gone))) == most
        gone = [row for row in gone if row[0] <= upto and row[1] <= cursor]
        gone_submissions = [row for row in gone if row[7] == Submitted.__name__]
        return Changes(
            [_submission(row) for row in submissions if row[0] <= upto],
            [_event(row) for row in learned if row[0] <= upto],
            [self._removed_submission(row) for row in gone_submissions],
            [_removed_event(row) for row in gone if row[7] != Submitted.__name__],
            upto,
            more,
        )

    @contextmanager
    def _unchanging(self) -> Iterator[None]:
        """Reads within the block see one state of the file, whatever its writer commits meanwhile."""
        if self._db.in_transaction:  # the writer's own: nobody else changes it
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    @staticmethod
    def _removed_submission(row: Any) -> Submission:
        s: Submitted = events.loads(row[7], row[8])
        id = SubmissionRef(s.node, s.step, s.sequence, s.root).submission_id(s.run)
        _, was, block, log_index, block_hash, time, transaction, *_ = row
        return Submission(
            was, block, log_index, block_hash, transaction, time, s.node, s.step, s.sequence, s.units, s.root, id
        )

    # ---- submissions ---------------------------------------------------------------------------------------------------

    def submission(self, id: bytes) -> Submission | None:
        row = self.row(f"{_SUBMISSION} WHERE s.id = ? ORDER BY s.position DESC LIMIT 1", (id,))
        return None if row is None else _submission(row)

    def newest_of(self, root: bytes) -> Submission | None:
        """The last commitment to a file, by whichever node."""
        row = self.row(f"{_SUBMISSION} WHERE s.root = ? ORDER BY s.block DESC, s.log_index DESC LIMIT 1", (root,))
        return None if row is None else _submission(row)

    def is_disputed(self, root: bytes) -> bool:
        """Whether an open case names a commitment to this file."""
        query = (
            "SELECT 1 FROM submissions s JOIN accused a ON a.id = s.id JOIN cases c ON c.seat = a.seat AND c.number = a.number"
            " WHERE s.root = ? AND c.stage IN (0, 4) LIMIT 1"
        )
        return self.row(query, (root,)) is not None

    def newest_submissions(self) -> Iterator[Submission]:
        """All of them, newest first, read in pages as they are asked for."""
        block, index = 1 << 62, 0
        query = (
            f"{_SUBMISSION} WHERE (s.block, s.log_index) < (?, ?) ORDER BY s.block DESC, s.log_index DESC LIMIT {PAGE}"
        )
        while rows := self.rows(query, (block, index)):
            yield from map(_submission, rows)
            block, index = rows[-1][1:3]

    def submissions_of(self, seat: str, before: tuple[int, int], after: int = -1) -> list[Submission]:
        """Those of a seat, under all its keys, at earlier places in the chain and in later blocks than `after`; oldest first."""
        query = (
            f"{_SUBMISSION} WHERE s.node IN (SELECT id FROM nodes WHERE seat = ?)"  # noqa: S608
            " AND (s.block, s.log_index) < (?, ?) AND s.block > ? ORDER BY s.block, s.log_index"
        )
        return [_submission(row) for row in self.rows(query, (seat, *before, after))]

    def block_before(self, time: int) -> int:
        """A block that is older than that time, the newest that the book knows; -1 where it knows none. Looks at every block."""
        return int(self.row("SELECT coalesce(max(number), -1) FROM blocks WHERE time < ?", (time,))[0])

    def newest_of_seat(self, seat: str, most: int) -> list[Submission]:
        """The last ones of a seat, under all its keys, newest first; reads no more of each key."""
        found: list[Submission] = []
        for key in self.keys(seat):
            of_key = "s.node = (SELECT id FROM nodes WHERE address = ?)"
            query = f"{_SUBMISSION} WHERE {of_key} ORDER BY s.block DESC, s.log_index DESC LIMIT ?"
            found += map(_submission, self.rows(query, (key, most)))
        return sorted(found, key=lambda s: s.place, reverse=True)[:most]

    def block_time(self, number: int) -> int | None:
        """Block time in seconds, where the book knows it."""
        row = self.row("SELECT time FROM blocks WHERE number = ?", (number,))
        return None if row is None else row[0]

    def count_submissions(self) -> int:
        """Reads the whole table: for reports, not for turns."""
        return int(self.row("SELECT count(*) FROM submissions")[0])

    def earlier(self, submission: Submission, most: int) -> int:
        """How many submissions its node made before, counted up to `most`. (A seat never goes back to an earlier step.)"""
        query = (
            "SELECT count(*) FROM (SELECT 1 FROM submissions WHERE node = (SELECT id FROM nodes WHERE address = ?)"
            " AND (step, sequence) < (?, ?) LIMIT ?)"
        )
        return int(self.row(query, (submission.node, submission.step, submission.sequence, most))[0])

    def repeats(self, submission: Submission) -> bool:
        """Whether its node had committed to the same root before, under another place: one id is committed to once."""
        query = (
            "SELECT 1 FROM submissions s JOIN nodes n ON n.id = s.node"
            " WHERE s.root = ? AND n.address = ? AND (s.block, s.log_index) < (?, ?) AND s.id != ? LIMIT 1"
        )
        return self.row(query, (submission.root, submission.node, *submission.place, submission.id)) is not None

    # ---- seats ---------------------------------------------------------------------------------------------------------

    def seat(self, node: str) -> str:
        """Name of a node's seat: the first key it had."""
        row = self.row("SELECT seat FROM nodes WHERE address = ?", (node,))
        return row[0] if row else node

    def keys(self, seat: str) -> list[str]:
        """Keys that a seat has or had, the first one first."""
        rows = self.rows("SELECT address FROM nodes WHERE seat = ? ORDER BY address != seat, id", (seat,))
        return [row[0] for row in rows] or [seat]

    def hardware(self, submission: Submission) -> int | None:
        """Hardware class of the seat when it committed; None when the seat is older than the book."""
        found: list[tuple[tuple[int, int], int]] = []
        query = (
            "SELECT block, log_index, number FROM events WHERE kind = ? AND subject = ? AND (block, log_index) < (?, ?)"
            " ORDER BY block DESC, log_index DESC LIMIT 1"
        )
        for key in self.keys(self.seat(submission.node)):
            row = self.row(query, (Joined.__name__, key, *submission.place))
            if row is not None:
                found.append(((row[0], row[1]), row[2]))
        return max(found)[1] if found else None

    def rejoined(self, submission: Submission) -> bool:
        """Whether its node's seat was taken again after it committed: only that changes the seat's hardware class."""
        query = "SELECT 1 FROM events WHERE kind = ? AND subject = ? AND (block, log_index) > (?, ?) LIMIT 1"
        keys = self.keys(self.seat(submission.node))
        return any(self.row(query, (Joined.__name__, key, *submission.place)) is not None for key in keys)

    # ---- cases ---------------------------------------------------------------------------------------------------------

    def case(self, seat: str, number: int) -> CaseEntry | None:
        return next(iter(self._cases("WHERE seat = ? AND number = ?", seat, number)), None)

    def open_cases(self, seat: str | None = None) -> list[CaseEntry]:
        """Not settled yet, oldest first; of one seat or of all."""
        if seat is None:
            return self._cases(f"WHERE {_IS_OPEN} ORDER BY block, seat, number")
        return self._cases(f"WHERE {_IS_OPEN} AND seat = ? ORDER BY block, number", seat)

    def newest_cases(self, most: int) -> list[CaseEntry]:
        """Of all seats, those opened last first."""
        return self._cases("ORDER BY block DESC, seat, number LIMIT ?", most)

    def cases_against(self, seat: str, most: int) -> list[CaseEntry]:
        """Of one seat, the newest first."""
        return self._cases("WHERE seat = ? ORDER BY number DESC LIMIT ?", seat, most)

    def appeals(self) -> list[CaseEntry]:
        """Open cases that wait for votes."""
        return [case for case in self.open_cases() if case.is_appealed]

    def convictions(self) -> Iterator[CaseEntry]:
        """Cases that convicted, those opened last first, read one by one as they are asked for."""
        place: tuple[int, str, int] = (1 << 62, "", 0)
        where = (
            "WHERE convicted AND (block, seat, number) < (?, ?, ?) ORDER BY block DESC, seat DESC, number DESC LIMIT 1"
        )
        while found := self._cases(where, *place):
            yield found[0]
            place = (found[0].block, *found[0].name)

    def is_convicted(self, node: str) -> bool:
        """Whether a case convicted the node's seat: it is banned for good then, and what it had is gone."""
        query = "SELECT 1 FROM cases WHERE seat = ? AND convicted LIMIT 1"
        return self.row(query, (self.seat(node),)) is not None

    def is_revoked(self, ref: SubmissionRef) -> bool:
        """Whether a verdict on this very submission revoked it; a conviction of the seat for another one takes its pay as well."""
        return any(case.is_upheld(ref) for case in self.cases_of(ref.submission_id(self.run)))

    def cases_of(self, id: bytes) -> list[CaseEntry]:
        """Cases that named a submission, oldest first."""
        rows = self.rows("SELECT seat, number FROM accused WHERE id = ? ORDER BY seat, number", (id,))
        return [case for seat, number in rows if (case := self.case(seat, number)) is not None]

    def _cases(self, where: str, *values: Any) -> list[CaseEntry]:
        with self.lock:
            return [self._case(row) for row in self.rows(f"{_CASE} {where}", values)]

    def _case(self, row: Any) -> CaseEntry:
        seat, number, position, block, challenger, hard, appealed, stage, convicted, upheld, cleared = row
        named: list[Challenged] = [event.data for event in self.events(Challenged, seat, number)]
        refs = tuple(SubmissionRef(c.node, c.step, c.sequence, c.root) for c in named)
        return CaseEntry(
            seat, number, position, block, challenger, bool(hard), bool(appealed), Stage(stage), bool(convicted), refs,
            int(upheld, 16), int(cleared, 16),
        )  # fmt: skip

    # ---- validators ----------------------------------------------------------------------------------------------------

    def validators(self, now: int) -> frozenset[str]:
        """Who judges; `now` in block time."""
        return frozenset(v for v, until in self._services().items() if until == 0 or now < until)

    def ever_validated(self) -> frozenset[str]:
        """Who has, or had, a validator's seat."""
        return frozenset(self._services())

    def _services(self) -> dict[str, int]:
        """Validator → end of service in block time, 0: none in sight."""
        with self.lock:
            version = self.fact("service") or 0
            if self._service[0] != version:
                query = "SELECT subject, number FROM events WHERE kind = ? ORDER BY block, log_index"
                self._service = version, dict(self.rows(query, (ValidatorSeated.__name__,)))
            return self._service[1]

    # ---- everything else -----------------------------------------------------------------------------------------------

    def publication(self, step: int) -> Event | None:
        """The event that published a step's weights (data: Published)."""
        return next(iter(self.events(Published, "", step)), None)

    def beacon(self, step: int) -> bytes | None:
        """The beacon of a step's weights; None while it is not drawn."""
        drawn = self.events(Drawn, "", step)
        return drawn[0].data.beacon if drawn else None

    def newest_publication(self) -> Event | None:
        """That of the head (data: Published); None before the first."""
        row = self.row(
            f"{_EVENT} WHERE e.kind = ? AND e.subject = '' ORDER BY e.number DESC LIMIT 1", (Published.__name__,)
        )
        return None if row is None else _event(row)

    def events(self, kind: type, subject: str | None = None, number: int | None = None) -> list[Event]:
        """Events of a kind, in order. `subject` and `number` as book_entries.py has them: seat and number of a case's
        events, the validator of ValidatorSeated, the node of Joined, the seat of Claimed, step of Published …"""
        query, values = f"{_EVENT} WHERE e.kind = ?", [kind.__name__]
        for column, value in (("subject", subject), ("number", number)):
            if value is not None:
                query, values = f"{query} AND e.{column} = ?", [*values, value]  # type: ignore[list-item]
        return [_event(row) for row in self.rows(f"{query} ORDER BY e.block, e.log_index", tuple(values))]


def _submission(row: Any) -> Submission:
    return Submission(*row)


def _event(row: Any) -> Event:
    _, kind, data, block, block_hash, log_index, transaction = row
    return Event(events.loads(kind, data), block, block_hash, log_index, transaction)


def _removed_event(row: Any) -> Event:
    _, _, block, log_index, block_hash, _, transaction, kind, data = row
    return Event(events.loads(kind, data), block, block_hash, log_index, transaction)
