"""How a book knows that no event is missing, whatever one endpoint leaves out.

Once a block is SETTLED_BLOCKS deep its events are read a second time, beginning with another endpoint where there is one, and
compared with the book: what was overlooked enters late, what no block holds is taken back. Then the contracts' own counters in
that block are compared with the book: versions published, the next sequence of a seat, its number of cases, the stage of
open ones. Seats and cases are looked at some at a time, those first that did something. What a counter shows and the book lacks
is searched for in ever smaller ranges and at every endpoint. While it is not found polling fails: a book with a known hole
answers nobody.

Covers: endpoints that forget, lag, cut answers short or lie alone. Does not cover: endpoints that all tell the same lie. In a
book that begins later than its run, and before an endpoint that keeps no state of SETTLED_BLOCKS ago (it is told of in the
log), the second reading is all there is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from protocol.chain import events
from protocol.chain.book_entries import Entries
from protocol.chain.client import Chain
from protocol.chain.decoding import Log
from protocol.chain.endpoints import SETTLED_BLOCKS, EndpointsDisagree
from protocol.chain.ethereum import RpcRefusal
from protocol.chain.events import Published, RunCreated, Skipped, Submitted
from protocol.chain.log_reader import LogReader
from protocol.chain.types import Block, Case, Stage
from protocol.chain.view import View
from protocol.errors import RpcUnavailable, WrongChain

log = logging.getLogger(__name__)

BATCH = 32  # blocks that settle before they are looked at
_RANGE, _RANGE_FIRST = 2_000, 64  # blocks per request
_EVENTS = 2_000  # in a page, about
_SEATS = 32  # that are compared with the contract at a time
_CASES = 32
_REQUESTS = 64  # per search for something that is missing


class Completeness:
    def __init__(self, view: View, entries: Entries, chain: Chain, reader: LogReader, run: int) -> None:
        self._view = view
        self._entries = entries
        self._chain = chain
        self._reader = reader
        self._run = run
        self._range = _RANGE_FIRST
        self._is_warned = False
        self._next_node = 0
        self._next_case = 0

    def check(self, head: Block, last_read: int) -> None:
        """Looks at what has settled since the last time, when that is enough blocks; `last_read` is where the book ends.

        Raises RpcUnavailable while something is missing or cannot be looked up, EndpointsDisagree where answers contradict
        each other.
        """
        at = min(head.number - SETTLED_BLOCKS, last_read)
        before = self._view.settled
        if at - before < BATCH:
            return
        self._read_again(at)
        if self._is_whole() and self._has_state(at):
            self._compare_publications(at)
            for seat in self._seats(before + 1, at):
                self._compare_seat(seat, before, at)
            self._compare_cases(at)
        with self._view.lock, self._entries.transaction():
            self._entries.set_fact("settled", at)

    # ---- the second reading --------------------------------------------------------------------------------------------

    def _read_again(self, at: int) -> None:
        first = max(self._view.fact("read_twice") + 1, self._view.fact("first_block"))
        while first <= at:
            last = min(at, first + self._range - 1)
            try:
                found = self._reader.read(first, last, turn=1)
                self._compare(found, first, last)
            except RpcUnavailable:
                if last == first:
                    raise
                self._range = max(1, (last - first + 1) // 4)
                continue
            with self._view.lock, self._entries.transaction():
                self._entries.set_fact("read_twice", last)
            self._range = max(1, min(_RANGE, 2 * self._range, self._range * 2 * _EVENTS // max(1, len(found))))
            first = last + 1

    def _compare(self, found: list[Log], first: int, last: int) -> None:
        """Puts right what two readings of the same blocks do not have in common."""
        book = self._book(first, last)
        again = {entry[:2]: entry for entry in found}
        surplus = book.keys() - again.keys()
        if surplus:  # more often an answer that lacks something than a book that has too much
            again |= {entry[:2]: entry for entry in self._reader.read(first, last)}
            surplus = book.keys() - again.keys()
        missing = [entry for place, entry in again.items() if place not in book]
        other = [entry for place, entry in again.items() if place in book and book[place] != _content(entry)]
        if not (surplus or missing or other):
            return
        hashes = {number: self._chain.block_hash(number) for number in sorted(
            {place[0] for place in surplus} | {entry.block for entry in (*missing, *other)}
        )}  # fmt: skip
        for entry in (*missing, *other):
            if entry.block_hash != hashes[entry.block]:
                raise RpcUnavailable(f"an endpoint has events of another block {entry.block}")
        if any(book[entry[:2]][0] == entry.block_hash for entry in other):
            raise EndpointsDisagree(f"two answers differ in what blocks {first} to {last} hold")
        false = [place for place in surplus if book[place][0] != hashes[place[0]]] + [entry[:2] for entry in other]
        if len(surplus) > len(false) - len(other):
            log.warning("an answer for blocks %d to %d lacks events that are in these blocks", first, last)
        if missing or false:
            log.warning(
                "blocks %d to %d: %d events had been overlooked, %d were none", first, last, len(missing), len(false)
            )
        with self._view.lock, self._entries.transaction():
            for place in false:
                self._entries.remove(place)
            self._entries.enter(sorted((*missing, *other), key=lambda entry: entry[:2]))

    def _book(self, first: int, last: int) -> dict[tuple[int, int], tuple[Any, ...]]:
        """What the book has, by place, in the form of `_content`."""
        submissions = self._view.rows(
            "SELECT s.block, s.log_index, b.hash, s.tx, n.address, s.root, s.step, s.sequence, s.units FROM submissions s"
            " JOIN nodes n ON n.id = s.node JOIN blocks b ON b.number = s.block WHERE s.block BETWEEN ? AND ?",
            (first, last),
        )
        others = self._view.rows(
            "SELECT e.block, e.log_index, b.hash, e.tx, e.kind, e.data FROM events e JOIN blocks b ON b.number = e.block"
            " WHERE e.block BETWEEN ? AND ?",
            (first, last),
        )
        return {row[:2]: row[2:] for row in (*submissions, *others)}

    # ---- counters ------------------------------------------------------------------------------------------------------

    def _is_whole(self) -> bool:
        """Whether the book begins with the run, and so should hold all that the contracts count."""
        return self._view.fact("first_block") == 0 or bool(self._view.events(RunCreated))

    def _has_state(self, at: int) -> bool:
        """Whether there were contracts in that block and the endpoint still knows them as they were; one that refuses is told of once."""
        try:
            self._chain.published(self._run, at=at)
        except RpcUnavailable as error:
            if not isinstance(error.__cause__, RpcRefusal):
                raise
            if not self._is_warned:
                log.warning("events are not compared with the contracts' counters: %s", error)
            self._is_warned = True
            return False
        except WrongChain:
            if self._view.row("SELECT 1 FROM events WHERE block <= ? LIMIT 1", (at,)) is not None:
                raise
            return False  # the contracts are younger than that block
        return True

    def _compare_publications(self, at: int) -> None:
        count = self._chain.published(self._run, at=at)

        query = "SELECT count(*) FROM events WHERE kind = ? AND number < ? AND block <= ?"
        if self._view.row(query, (Published.__name__, count, at))[0] >= count:
            return
        known = self._view.rows("SELECT number FROM events WHERE kind = ?", (Published.__name__,))
        for step in sorted(set(range(count)) - {row[0] for row in known}):

            def is_found(step: int = step) -> bool:
                return self._view.publication(step) is not None

            self._search(f"the publication of step {step}", [f"0x{step:064x}"], 0, at, is_found)

    def _seats(self, first: int, at: int) -> list[str]:
        """Names of seats to be compared: some that submitted lately, and some others in turn."""
        query = "SELECT DISTINCT node FROM submissions WHERE block BETWEEN ? AND ? LIMIT ?"
        nodes = [row[0] for row in self._view.rows(query, (first, at, _SEATS))]
        query = "SELECT id FROM nodes WHERE id > ? ORDER BY id LIMIT ?"
        others = [row[0] for row in self._view.rows(query, (self._next_node, _SEATS))]
        self._next_node = others[-1] if len(others) == _SEATS else 0
        rows = [self._view.row("SELECT seat FROM nodes WHERE id = ?", (node,)) for node in {*nodes, *others}]
        return sorted({row[0] for row in rows})

    def _compare_seat(self, name: str, before: int, at: int) -> None:
        seat = self._chain.seat(self._run, name, at=at)
        keys = self._view.keys(name)
        for step in {*self._steps(keys, before + 1, at), seat.step}:

            def has_gap(step: int = step) -> bool:
                known = self._sequences(keys, step, at)
                wanted = seat.next if step == seat.step else max(known, default=-1) + 1
                return not known >= set(range(wanted))

            if has_gap():
                what = f"all that the seat {name} did for step {step}"
                self._search(what, _topics(keys), self._published_in(step), at, lambda: not has_gap())
        if self._count_cases(name, at) < seat.cases:
            self._search(
                f"all cases against {name}", _topics(keys), 0, at, lambda: self._count_cases(name, at) >= seat.cases
            )

    def _steps(self, keys: list[str], first: int, at: int) -> set[int]:
        """Steps that a seat submitted for in these blocks, some of them."""
        query = (
            "SELECT DISTINCT step FROM submissions WHERE node = (SELECT id FROM nodes WHERE address = ?)"
            " AND block BETWEEN ? AND ? ORDER BY step DESC LIMIT ?"
        )
        return {row[0] for key in keys for row in self._view.rows(query, (key, first, at, _SEATS))}

    def _sequences(self, keys: list[str], step: int, at: int) -> set[int]:
        """Sequence numbers that a seat used up for a step, as the book has it."""
        query = "SELECT sequence FROM submissions WHERE node = (SELECT id FROM nodes WHERE address = ?) AND step = ? AND block <= ?"
        used = {row[0] for key in keys for row in self._view.rows(query, (key, step, at))}
        skipped = [event for key in keys for event in self._view.events(Skipped, key, step) if event.block <= at]
        return used | {event.data.sequence for event in skipped}

    def _count_cases(self, seat: str, at: int) -> int:
        return int(self._view.row("SELECT count(*) FROM cases WHERE seat = ? AND block <= ?", (seat, at))[0])

    def _compare_cases(self, at: int) -> None:
        """Some of the open cases, in turn: whether they are still open, and not appealed, in the contract as well."""
        query = (
            "SELECT seat, number, block, position FROM cases WHERE verdict = 0 AND position > ? AND block <= ?"
            " ORDER BY position LIMIT ?"
        )
        rows = self._view.rows(query, (self._next_case, at, _CASES))
        self._next_case = rows[-1][3] if len(rows) == _CASES else 0
        for seat, number, opened, _ in rows:
            counted = self._chain.case(self._run, seat, number, at=at)

            def is_known(seat: str = seat, number: int = number, counted: Case = counted) -> bool:
                case = self._view.case(seat, number)
                if case is None or not case.is_open:
                    return case is not None
                is_whole = len(case.refs) >= counted.submissions and (
                    case.is_appealed or counted.stage != Stage.APPEALED
                )
                return is_whole and not counted.stage.closed

            if not is_known():
                what = f"all that became of case {number} against {seat}"
                self._search(what, _topics(self._view.keys(seat)), opened, at, is_known)

    def _published_in(self, step: int) -> int:
        published = self._view.publication(step)
        return 0 if published is None else published.block

    # ---- searching -----------------------------------------------------------------------------------------------------

    def _search(self, what: str, topics: list[str], first: int, last: int, is_found: Callable[[], bool]) -> None:
        """Reads blocks first … last again, in ever smaller ranges, until the book has what it lacks. Raises RpcUnavailable."""
        first = max(first, int(self._view.fact("first_block")))
        for start, end, turn in self._ranges(first, last):
            try:
                found = self._reader.read(start, end, topics=(topics,), turn=turn)
            except RpcUnavailable as error:
                log.debug("looking for %s: %s", what, error)
                continue
            book = self._book(start, end)
            missing = [entry for entry in found if entry[:2] not in book]
            if any(self._chain.block_hash(entry.block) != entry.block_hash for entry in missing):
                continue
            with self._view.lock, self._entries.transaction():
                self._entries.enter(missing)
            if is_found():
                log.warning("an endpoint had left out %s", what)
                return
        raise RpcUnavailable(f"no endpoint has {what} up to block {last}, which the contract counts")

    def _ranges(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, turn) of what to ask for, as many as a search may ask."""
        size, asked = last - first + 1, 0
        while True:
            for start in range(first, last + 1, size):
                for turn in range(len(self._chain.endpoints)):
                    yield start, min(last, start + size - 1), turn
                    asked += 1
                    if asked == _REQUESTS:
                        return
            if size == 1:
                return
            size = (size + 1) // 2


def _content(entry: Log) -> tuple[Any, ...]:
    """What two readings of one place must agree on."""
    if entry.kind is Submitted:
        _, node, root, step, sequence, units = entry.values
        return entry.block_hash, entry.transaction, node, root, step, sequence, units
    data = entry.kind(*entry.values)
    return entry.block_hash, entry.transaction, entry.kind.__name__, events.dumps(data)


def _topics(addresses: list[str]) -> list[str]:
    return [f"0x{address[2:].lower():0>64}" for address in addresses]
