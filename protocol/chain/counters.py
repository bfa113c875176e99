"""The contracts' own counters against the book: versions published, the next sequence of a seat, its cases, their stages.

Seats and cases are looked at some at a time, those first that did something. A counter that differs from the book is asked of
the other endpoints as well; one that only one of them gives stops nobody. What a counter shows and the book lacks is searched for
in ever smaller ranges and at every endpoint. While it is not found polling fails: a book with a known hole answers nobody. What
the book has beyond a counter is looked up again. No number of an endpoint's says how much is held in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from protocol.chain.book_entries import Place
from protocol.chain.client import Chain
from protocol.chain.contract import NoContract
from protocol.chain.corrections import Corrections
from protocol.chain.endpoints import EndpointsDisagree
from protocol.chain.ethereum import RpcRefusal
from protocol.chain.events import Challenged, ChallengedAgain, Published, Skipped
from protocol.chain.log_reader import content
from protocol.chain.transport import Request
from protocol.chain.types import Case, Seat, Stage
from protocol.chain.view import View
from protocol.chain.witnesses import Lone, Witnesses
from protocol.errors import RpcUnavailable, WrongChain

log = logging.getLogger(__name__)

T = TypeVar("T")

_Case = tuple[str, int, int]
"""Seat, number, and the block it was opened in."""
_SEATS = 32  # that are compared with the contract at a time
_CASES = 32
_REQUESTS = 64  # per search for something that is missing


class Counters:
    def __init__(self, view: View, corrections: Corrections, chain: Chain, witnesses: Witnesses, run: int) -> None:
        self._view = view
        self._corrections = corrections
        self._chain = chain
        self._witnesses = witnesses
        self._run = run
        self._is_warned = False
        self._turn = 0
        self._next_node = 0
        self._next_case = 0

    def compare(self, before: int, at: int) -> None:
        """As of block `at`; seats that did something after block `before` come first. Raises RpcUnavailable while something is
        missing or cannot be looked up, EndpointsDisagree."""
        if self._view.begins_with_run:
            seats, cases, one = self._seats(before + 1, at), self._cases(at), self._asked()[0]
            with one.ahead(*self._questions(seats, cases, at)):
                if self._has_state(at):
                    self._compare_publications(at)
                    for seat in seats:
                        self._compare_seat(seat, before, at)
                    self._compare_cases(cases, at)
        self._turn += 1  # only now: what one endpoint shows to be missing another does not talk away

    def _questions(self, seats: Iterable[str], cases: Iterable[_Case], at: int) -> Iterator[Request]:
        """What is asked of one endpoint where everything fits."""
        chain = self._chain
        yield chain.weights.functions.published(self._run).request(at)
        for seat in seats:
            yield chain.runs.functions.seats(self._run, seat).request(at)
        for name, number, _ in cases:
            yield chain.court.functions.cases(self._run, name, number).request(at)

    def _has_state(self, at: int) -> bool:
        """Whether there were contracts in that block and an endpoint still knows them as they were; that none does is told of once."""
        problem: Exception | None = None
        for one in self._asked():
            try:
                one.published(self._run, at=at)
                return True
            except EndpointsDisagree:
                raise
            except (RpcUnavailable, WrongChain) as error:
                problem = (
                    error if problem is None or isinstance(problem.__cause__, RpcRefusal | NoContract) else problem
                )
        if problem is None or not isinstance(problem.__cause__, RpcRefusal | NoContract):
            raise problem or RpcUnavailable(f"no endpoint tells of block {at}")
        if isinstance(problem.__cause__, NoContract):
            if self._view.row("SELECT 1 FROM events WHERE block <= ? LIMIT 1", (at,)) is not None:
                raise RpcUnavailable(f"reading the head: {self._chain.rpc} lacks contracts of which there are events")
            return False  # the contracts are younger than that block
        if not self._is_warned:
            log.warning("events are not compared with the contracts' counters: %s", problem)
        self._is_warned = True
        return False

    def _asked(self) -> list[Chain]:
        """Endpoints, beginning each time with another one."""
        reachable = self._witnesses.reachable()
        turn = self._turn % len(reachable)
        return reachable[turn:] + reachable[:turn]

    def _differing(self, what: str, question: Callable[[Chain], T], fits: Callable[[T], bool]) -> T | None:
        """What the contract counts, where the book does not fit to it and as many endpoints say so as say otherwise, and one more;
        None where it fits. Usually one is asked."""
        doubts: list[T] = []
        fitting = 0
        silence: RpcUnavailable | WrongChain | None = None
        for one in self._asked():
            try:
                counted = question(one)
            except EndpointsDisagree:
                raise
            except (RpcUnavailable, WrongChain) as error:
                silence = error
                continue
            if not fits(counted):
                doubts.append(counted)
            elif not doubts:
                return None
            else:
                fitting += 1
        if not doubts:
            raise silence or RpcUnavailable(f"no endpoint tells {what}")
        if fitting >= len(doubts):
            log.warning("%s: an endpoint counts otherwise than the book and %d others", what, fitting)
            return None
        return max(doubts, key=doubts.count)

    def _compare_publications(self, at: int) -> None:
        query = "SELECT number FROM events WHERE kind = ? AND block <= ? ORDER BY number"

        def missing() -> int:
            """The first step that the book lacks."""
            return _gap(row[0] for row in self._view.rows(query, (Published.__name__, at)))

        def beyond(count: int) -> list[Place]:
            return self._places("kind = ? AND number >= ? AND block <= ?", (Published.__name__, count, at))

        def fits(count: int) -> bool:
            return missing() >= count and not beyond(count)

        what = "the number of versions"
        count = self._differing(what, lambda one: one.published(self._run, at=at), fits)
        while count is not None and (step := missing()) < count:
            is_found = partial(lambda step: missing() > step, step)
            self._search(f"the publication of step {step}", [f"0x{step:064x}"], 0, at, is_found)
        if count is not None:
            self._look_up(what, beyond(count))

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
        keys = self._view.keys(name)

        def missing(step: int) -> int:
            """The first sequence that the book lacks."""
            return _gap(sorted(self._sequences(keys, step, at)))

        def is_closed(step: int) -> bool:
            return missing(step) > max(self._sequences(keys, step, at), default=-1)

        for step in self._steps(keys, before + 1, at):
            if not is_closed(step):
                is_found = partial(is_closed, step)
                self._search(self._deeds(name, step), _topics(keys), self._published_in(step), at, is_found)

        def is_whole(seat: Seat) -> bool:
            return missing(seat.step) >= seat.next and self._count_cases(name, at) >= seat.cases

        def fits(seat: Seat) -> bool:
            return is_whole(seat) and not self._beyond(seat, name, keys, at)

        seat = self._differing(f"the seat {name}", lambda one: one.seat(self._run, name, at=at), fits)
        if seat is None:
            return
        if missing(seat.step) < seat.next:
            what, first = self._deeds(name, seat.step), self._published_in(seat.step)
            self._search(what, _topics(keys), first, at, lambda: missing(seat.step) >= seat.next)
        if not is_whole(seat):
            self._search(f"all cases against {name}", _topics(keys), 0, at, lambda: is_whole(seat))
        self._look_up(f"the seat {name}", self._beyond(seat, name, keys, at))

    @staticmethod
    def _deeds(seat: str, step: int) -> str:
        return f"all that the seat {seat} did for step {step}"

    def _beyond(self, seat: Seat, name: str, keys: list[str], at: int) -> list[Place]:
        """Events of the book that the contract had not counted by then."""
        submitted = (
            "SELECT block, log_index FROM submissions WHERE node = (SELECT id FROM nodes WHERE address = ?) AND block <= ?"
            " AND (step > ? OR step = ? AND sequence >= ?) ORDER BY block LIMIT ?"
        )
        rows = [
            row
            for key in keys
            for row in self._view.rows(submitted, (key, at, seat.step, seat.step, seat.next, _SEATS))
        ]
        cases = self._places(
            "kind = ? AND subject = ? AND number > ? AND block <= ?", (Challenged.__name__, name, seat.cases, at)
        )
        return [*rows, *cases]

    def _places(self, where: str, values: tuple[Any, ...]) -> list[Place]:
        query = f"SELECT block, log_index FROM events WHERE {where} ORDER BY block LIMIT ?"  # noqa: S608
        return self._view.rows(query, (*values, _SEATS))

    def _look_up(self, what: str, places: Sequence[Place]) -> None:
        """Takes back what the book has and the chain does not hold."""
        if not self._witnesses.are_several:
            return
        false = [place for place in places if not self._holds(place, self._corrections.told(place[0], place[0])[place])]
        if false:
            log.warning("%s: %d events in the book were none", what, len(false))
            self._corrections.put_right(false, [])

    def _holds(self, place: Place, wanted: tuple[Any, ...]) -> bool:
        """One endpoint alone corrects nothing that was read twice."""
        lone = Lone.NOTHING if place[0] <= self._view.fact("read_twice") else Lone.IF_GONE
        return self._witnesses.holds(place, wanted, lone)

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

    def _cases(self, at: int) -> list[_Case]:
        """Some of the open cases, in turn."""
        query = (
            "SELECT seat, number, block, position FROM cases WHERE stage IN (0, 4) AND position > ? AND block <= ?"
            " ORDER BY position LIMIT ?"
        )
        rows = self._view.rows(query, (self._next_case, at, _CASES))
        self._next_case = rows[-1][3] if len(rows) == _CASES else 0
        return [row[:3] for row in rows]

    def _compare_cases(self, cases: Iterable[_Case], at: int) -> None:
        """Whether they are still open, and not appealed, in the contract as well."""
        for seat, number, opened in cases:

            def is_known(counted: Case, seat: str = seat, number: int = number) -> bool:
                case = self._view.case(seat, number)
                if case is None or not case.is_open:
                    return case is not None
                if len(case.refs) < counted.submissions or counted.stage.closed:
                    return False
                undecided = case.stage == Stage.UNDECIDED
                if counted.stage == Stage.UNDECIDED or undecided:  # what the book knows beyond that block is newer
                    return undecided or self._is_later(seat, number, at)
                if counted.again and not self._view.events(ChallengedAgain, seat, number):
                    return False
                return case.is_appealed or counted.stage != Stage.APPEALED

            what = f"all that became of case {number} against {seat}"
            ask = lambda one, seat=seat, number=number: one.case(self._run, seat, number, at=at)  # noqa: E731
            counted = self._differing(what, ask, is_known)
            if counted is not None:
                found = lambda counted=counted, is_known=is_known: is_known(counted)  # noqa: E731
                self._search(what, _topics(self._view.keys(seat)), opened, at, found)

    def _is_later(self, seat: str, number: int, at: int) -> bool:
        """Whether the book tells of a second challenge of a case after block `at`."""
        return any(event.block > at for event in self._view.events(ChallengedAgain, seat, number))

    def _published_in(self, step: int) -> int:
        published = self._view.publication(step)
        return 0 if published is None else published.block

    # ---- searching -----------------------------------------------------------------------------------------------------

    def _search(self, what: str, topics: list[str], first: int, last: int, is_found: Callable[[], bool]) -> None:
        """Reads blocks first … last again, in ever smaller ranges, until the book has what it lacks. Raises RpcUnavailable."""
        first = max(first, int(self._view.fact("first_block")))
        for start, end, one in self._ranges(first, last):
            try:
                found = self._witnesses.read(one, start, end, topics=(topics,))
                book = self._corrections.told(start, end)
                missing = [entry for entry in found if entry[:2] not in book]
                if not all(self._holds(entry[:2], content(entry)) for entry in missing):
                    continue
            except EndpointsDisagree:
                raise
            except RpcUnavailable as error:
                log.debug("looking for %s: %s", what, error)
                continue
            self._corrections.put_right([], missing)
            if is_found():
                log.warning("an endpoint had left out %s", what)
                return
        raise RpcUnavailable(f"no endpoint has {what} up to block {last}, which the contract counts")

    def _ranges(self, first: int, last: int) -> Iterator[tuple[int, int, Chain]]:
        """(first, last, of whom) of what to ask for, as many as a search may ask."""
        size, asked = last - first + 1, 0
        while True:
            for start in range(first, last + 1, size):
                for one in self._witnesses.reachable():
                    yield start, min(last, start + size - 1), one
                    asked += 1
                    if asked == _REQUESTS:
                        return
            if size == 1:
                return
            size = (size + 1) // 2


def _gap(numbers: Iterable[int]) -> int:
    """The first number from 0 on that is not among these, which are in order."""
    expected = 0
    for number in numbers:
        if number > expected:
            break
        expected = number + 1
    return expected


def _topics(addresses: list[str]) -> list[str]:
    return [f"0x{address[2:].lower():0>64}" for address in addresses]
