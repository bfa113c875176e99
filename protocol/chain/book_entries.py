"""Writing into a book of the chain: entering events, taking them back, and keeping right what is derived from them.

Nothing here asks the chain. Every change runs inside one transaction of its caller's, so that a process that dies leaves a
book that ends where a page ended.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Any

from protocol.chain import events
from protocol.chain.decoding import Log
from protocol.chain.events import (
    Appealed,
    Challenged,
    ChallengedAgain,
    Joined,
    Rotated,
    Settled,
    Submitted,
    ValidatorSeated,
)
from protocol.chain.types import Block, Stage
from protocol.submission import submission_id

_INTEGER_MAX = (1 << 63) - 1  # of SQLite
_CASE_KINDS = tuple(kind.__name__ for kind in (Challenged, ChallengedAgain, Appealed, Settled))
_NODES_KEPT = 1 << 14  # addresses whose numbers are remembered
_ENTER_SUBMISSION = (
    "INSERT INTO submissions SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10"
    " WHERE NOT EXISTS (SELECT 1 FROM submissions WHERE id = ?10)"
)

Place = tuple[int, int]


class Entries:
    """The writing half of a book's database."""

    def __init__(self, db: sqlite3.Connection, run: int) -> None:
        self._db = db
        self._run = run
        self._nodes: dict[str, int] = {}
        self._position = self._last_position()
        self._told = 0  # position up to which whoever follows had a turn

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, also for what this object remembers."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            self._nodes.clear()
            self._position = self._last_position()
            raise

    def set_fact(self, name: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def set_head(self, head: Block) -> None:
        for name, value in (("head_number", head.number), ("head_hash", head.hash), ("head_time", head.time)):
            self.set_fact(name, value)

    def add_blocks(self, blocks: Iterable[tuple[int, bytes, int | None]], *, bare: bool) -> None:
        """Remembers (number, hash, time) of blocks. `bare` ones hold no events and may be forgotten."""
        self._db.executemany(
            "INSERT INTO blocks VALUES (?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET hash = excluded.hash,"
            " time = coalesce(excluded.time, time), bare = min(bare, excluded.bare)",
            ((*block, bare) for block in blocks),
        )

    def forget_bare(self, before: int) -> None:
        """Blocks without events below `before`."""
        self._db.execute("DELETE FROM blocks WHERE bare AND number < ?", (before,))

    def forget_removed(self, before: int) -> None:
        """What was taken back from blocks below `before`, and could be heard of since the last call; all but the newest, whose
        position nothing else may have."""
        query = (
            "DELETE FROM removed WHERE position <= ? AND position < (SELECT max(position) FROM removed) AND block < ?"
        )
        self._db.execute(query, (self._told, before))
        self._told = self._position

    # ---- entering ------------------------------------------------------------------------------------------------------

    def enter(self, logs: Iterable[Log]) -> None:
        """Events that are not in the book yet, in order; their blocks with them. A submission that is there already stays where it
        is: the contract takes none twice, and of two with one id taking back the false one would take both from who follows."""
        submissions, others, blocks = [], [], {}
        for log in logs:
            blocks[log.block] = (log.block, log.block_hash, None)
            self._position += 1
            if log.kind is Submitted:
                _, node, root, step, sequence, units = log.values
                submissions.append((
                    self._position, log.block, log.log_index, log.transaction, self._node(node), step, sequence, units, root,
                    submission_id(self._run, node, step, sequence, root),
                ))  # fmt: skip
            else:
                others.append((self._position, log))
        self.add_blocks(blocks.values(), bare=False)
        self._db.executemany(_ENTER_SUBMISSION, submissions)
        for position, log in others:
            self._enter(position, log)

    def _enter(self, position: int, log: Log) -> None:
        data = log.kind(*log.values)
        subject, number = data.found_by
        row = (
            position,
            log.block,
            log.log_index,
            log.transaction,
            log.kind.__name__,
            subject,
            min(number, _INTEGER_MAX),
            events.dumps(data),
        )
        self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._derive(position, data, is_gone=False)

    def _node(self, address: str) -> int:
        number = self._nodes.get(address)
        if number is None:
            self._db.execute("INSERT OR IGNORE INTO nodes (address, seat) VALUES (?, ?)", (address, address))
            number = int(self._db.execute("SELECT id FROM nodes WHERE address = ?", (address,)).fetchone()[0])
            if len(self._nodes) >= _NODES_KEPT:
                self._nodes.clear()
            self._nodes[address] = number
        return number

    # ---- taking back ---------------------------------------------------------------------------------------------------

    def remove_above(self, block: int) -> int:
        """Everything above a block, and the blocks. Returns how many events are gone."""
        gone = self._remove("s.block > ?", (block,))
        self._db.execute("DELETE FROM blocks WHERE number > ?", (block,))
        return gone

    def remove(self, place: Place) -> None:
        """One event that proved to be none."""
        self._remove("s.block = ? AND s.log_index = ?", place)

    def _remove(self, where: str, values: tuple[int, ...]) -> int:
        last = self._position
        kept = "INSERT INTO removed VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        ordered = f"WHERE {where} ORDER BY s.block DESC, s.log_index DESC"
        submissions = self._db.execute(
            "SELECT s.position, s.block, s.log_index, b.hash, b.time, s.tx, n.address, s.root, s.step, s.sequence, s.units"  # noqa: S608
            f" FROM submissions s JOIN nodes n ON n.id = s.node JOIN blocks b ON b.number = s.block {ordered}",
            values,
        )
        self._db.executemany(kept, map(self._gone_submission, submissions))
        others = self._db.execute(
            "SELECT s.position, s.block, s.log_index, b.hash, b.time, s.tx, s.kind, s.data"  # noqa: S608
            f" FROM events s JOIN blocks b ON b.number = s.block {ordered}",
            values,
        ).fetchall()
        self._db.executemany(kept, ((self._next(), *row) for row in others))
        for table in ("submissions", "events"):
            self._db.execute(f"DELETE FROM {table} AS s WHERE {where}", values)  # noqa: S608
        for row in others:
            self._derive(self._position, events.loads(row[6], row[7]), is_gone=True)
        return self._position - last

    def _gone_submission(self, row: Any) -> tuple[Any, ...]:
        *place, node, root, step, sequence, units = row
        data = events.dumps(Submitted(self._run, node, root, step, sequence, units))
        return (self._next(), *place, Submitted.__name__, data)

    # ---- what is derived -----------------------------------------------------------------------------------------------

    def _derive(self, position: int, data: Any, *, is_gone: bool) -> None:
        """Makes anew what an event that came or went bears upon."""
        match data:
            case Joined():
                self._node(data.node)  # its seat is compared with the contract, though no endpoint tell of work
            case Rotated() as rotated:
                self._node(rotated.node)
                seat = rotated.node if is_gone else rotated.seat
                self._db.execute("UPDATE nodes SET seat = ? WHERE address = ?", (seat, rotated.node))
            case ValidatorSeated():
                self.set_fact("service", position)
            case Challenged() as c:
                row = (submission_id(self._run, c.node, c.step, c.sequence, c.root), c.seat, c.number)
                if is_gone:
                    self._db.execute("DELETE FROM accused WHERE id = ? AND seat = ? AND number = ?", row)
                else:
                    self._db.execute("INSERT OR IGNORE INTO accused VALUES (?, ?, ?)", row)
                self._derive_case(position, c.seat, c.number)
            case Appealed() | ChallengedAgain() | Settled():
                self._derive_case(position, data.seat, data.number)

    def _derive_case(self, position: int, seat: str, number: int) -> None:
        told: dict[str, list[tuple[tuple[int, int], Any]]] = {}
        for kind in _CASE_KINDS:
            query = (
                "SELECT block, log_index, data FROM events WHERE kind = ? AND subject = ? AND number = ?"
                " ORDER BY block, log_index"
            )
            rows = self._db.execute(query, (kind, seat, number)).fetchall()
            told[kind] = [((block, index), events.loads(kind, data)) for block, index, data in rows]
        if not told[Challenged.__name__]:  # an appeal or a verdict that is told before its case waits for it
            self._db.execute("DELETE FROM cases WHERE seat = ? AND number = ?", (seat, number))
            return
        (block, _), opened = told[Challenged.__name__][0]
        again, settled = told[ChallengedAgain.__name__], told[Settled.__name__]
        since = again[-1][0] if again else (-1, -1)
        ruling = settled[-1] if settled and settled[-1][0] > since else None
        stage = Stage.NONE if ruling is None else Stage(ruling[1].stage)
        row = (
            seat,
            number,
            position,
            block,
            again[-1][1].challenger if again else opened.challenger,
            opened.hard and not again,
            stage == Stage.NONE and any(place > since for place, _ in told[Appealed.__name__]),
            int(stage),
            any(each.convicted for _, each in settled),
            hex(reduce(or_, (each.upheld for _, each in settled), 0)),
            hex(reduce(or_, (each.cleared for _, each in settled), 0)),
        )
        self._db.execute("INSERT OR REPLACE INTO cases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    # ---- positions -----------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._position += 1
        return self._position

    def _last_position(self) -> int:
        tables = ("submissions", "events", "removed")
        rows = [self._db.execute(f"SELECT max(position) FROM {table}").fetchone()[0] for table in tables]  # noqa: S608
        return max(itertools.chain([0], filter(None, rows)))
