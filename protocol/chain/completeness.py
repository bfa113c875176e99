"""How a book knows that no event is missing and none invented, whatever one endpoint says.

Once a block is SETTLED_BLOCKS deep its events are read a second time and compared with the book. Where there are several
endpoints, another one than the first reader is asked; what only one of the two tells is decided by the transaction's receipt
and by every other endpoint (witnesses.py). What was overlooked enters late, what the chain does not hold is taken back. One
against one decides nothing, nor does one alone: polling fails and the marks stay. `read_twice` moves only over blocks that two endpoints
have told of; while only one answers, its own second reading has to do, `settled` moves alone, and the others' reading is made
up for later: of two endpoints, wherever the book was corrected since, for then neither's reading is what it holds.
Then the contracts' own counters in that block are compared with the book (counters.py).

Covers: endpoints that forget, lag, cut answers short or lie alone. Does not cover: endpoints that all tell the same lie. In a
book that begins later than its run, and before an endpoint that keeps no state of SETTLED_BLOCKS ago (it is told of in the
log), the second reading is all there is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from protocol.chain.book_entries import Entries, Place
from protocol.chain.client import Chain
from protocol.chain.corrections import Corrections
from protocol.chain.counters import Counters
from protocol.chain.decoding import Log
from protocol.chain.endpoints import EndpointsDisagree
from protocol.chain.log_reader import content
from protocol.chain.networks import SETTLED_BLOCKS
from protocol.chain.types import Block
from protocol.chain.view import View
from protocol.chain.witnesses import Lone, Witnesses
from protocol.errors import RpcUnavailable

log = logging.getLogger(__name__)

BATCH = 48  # blocks that settle before they are looked at
_RANGE, _RANGE_FIRST = 2_000, 64  # blocks per request
_EVENTS = 2_000  # in a page, about
_HID_SECONDS = 600.0  # for which an endpoint that left out events is asked for them after the others


class Completeness:
    def __init__(self, view: View, entries: Entries, chain: Chain, witnesses: Witnesses, run: int) -> None:
        self._view = view
        self._entries = entries
        self._witnesses = witnesses
        self._corrections = Corrections(view, entries, self.forget_readers)
        self._counters = Counters(view, self._corrections, chain, witnesses, run)
        self._readings: list[tuple[int, int, Chain]] = []  # (first, last, reader) of blocks not read twice yet
        self._range = _RANGE_FIRST
        self._is_alone = False

    def note_reading(self, first: int, last: int, reader: Chain) -> None:
        """Blocks first … last were read for the first time, off this endpoint."""
        before = self._readings[-1] if self._readings else None
        if before is not None and before[1] + 1 == first and before[2] is reader:
            self._readings[-1] = before[0], last, reader
        else:
            self._readings.append((first, last, reader))

    def told(self, first: int, last: int) -> Collection[Place]:
        """Places of what the book has."""
        return self._corrections.told(first, last).keys()

    def note_late(self, blocks: Sequence[int], reader: Chain) -> bool:
        """This endpoint has events in these blocks that their first reading lacked. Returns whether that was off this endpoint."""
        was = reader in self._first_readers(blocks)
        self._readings = [
            reading for reading in self._readings if not any(reading[0] <= block <= reading[1] for block in blocks)
        ]
        return was

    def forget_readers(self) -> None:
        """The book holds other events than those that were read off one endpoint."""
        self._readings.clear()

    def forget_above(self, block: int) -> None:
        """Blocks above this one are others now."""
        self._readings = [(first, min(last, block), reader) for first, last, reader in self._readings if first <= block]

    def check(self, head: Block, last_read: int) -> None:
        """Looks at what has settled since the last time, when that is enough blocks; `last_read` is where the book ends.

        Raises RpcUnavailable while something is missing or cannot be looked up, EndpointsDisagree where answers contradict
        each other.
        """
        at = min(head.number - SETTLED_BLOCKS, last_read)
        before = self._view.settled
        if at - before < BATCH:
            return
        self._read_again(before, at)
        self._counters.compare(before, at)
        with self._view.lock, self._entries.transaction():
            self._entries.set_fact("settled", at)

    # ---- the second reading --------------------------------------------------------------------------------------------

    def _read_again(self, settled: int, at: int) -> None:
        """Moves `read_twice` as far as two endpoints can tell, at most to `at`. Where that is not far enough, what is not
        `settled` is at least read twice from one."""
        first = max(self._view.fact("read_twice") + 1, self._view.fact("first_block"))
        able = self._able(at)
        while first <= at:
            last, readers = self._other_readers(first, min(at, first + self._range - 1), able)
            if not readers:
                break
            first = self._read_range(first, last, readers, able, Lone.NOTHING)
            with self._view.lock, self._entries.transaction():
                self._entries.set_fact("read_twice", first - 1)
        is_alone, self._is_alone = self._is_alone, first <= at
        if self._is_alone and not is_alone:
            log.warning(
                "blocks from %d on are known from one endpoint alone (%s); %s is waited for to confirm them",
                first, able[0].rpc, self._witnesses.others(able[0]),
            )  # fmt: skip
        first = max(first, settled + 1)
        while first <= at:
            first = self._read_range(first, min(at, first + self._range - 1), able[:1], able, Lone.IF_GONE)

    def _able(self, at: int) -> list[Chain]:
        """Endpoints that have a block."""
        found = []
        for one in self._witnesses.reachable():
            try:
                if not self._witnesses.are_several or one.is_beyond(at) or one.block_hash(at) is not None:
                    found.append(one)
            except EndpointsDisagree:
                raise
            except RpcUnavailable as error:
                log.debug("%s", error)
        if not found:
            raise RpcUnavailable(f"no endpoint knows block {at}")
        return found

    def _other_readers(self, first: int, last: int, able: Sequence[Chain]) -> tuple[int, list[Chain]]:
        """(end of a stretch from `first` on, who must read it so that two have); nobody where too few are able."""
        if not self._witnesses.are_several:
            return last, list(able)
        self._readings = [reading for reading in self._readings if reading[1] >= first]
        for start, end, reader in self._readings:
            if start <= first:
                others = [one for one in able if one is not reader]
                return min(last, end), others[:1]
            last = min(last, start - 1)
            break
        return last, list(able[:2]) if len(able) > 1 else []  # read by an earlier process, off whom is not known

    def _read_range(self, first: int, last: int, readers: Sequence[Chain], able: list[Chain], lone: Lone) -> int:
        """Returns from where on it is to be read: behind `last`, or again from `first` in a smaller range or without a reader
        that has failed in the smallest. Raises RpcUnavailable where none is left."""
        most = 0
        for reader in readers:
            try:
                found = self._witnesses.read(reader, first, last)
            except EndpointsDisagree:
                raise
            except RpcUnavailable:
                self._range = max(1, (last - first + 1) // 4)
                if last == first:
                    able.remove(reader)
                    if not able:
                        raise
                return first
            most = max(most, len(found))
            self._compare(found, first, last, reader, lone)
        self._range = max(1, min(_RANGE, 2 * self._range, self._range * 2 * _EVENTS // max(1, most)))
        return last + 1

    def _first_readers(self, blocks: Sequence[int]) -> list[Chain]:
        """Those off whom these blocks were read first, as far as that is known."""
        return [one for first, last, one in self._readings if any(first <= block <= last for block in blocks)]

    def _pass_over(self, one: Chain) -> None:
        self._witnesses.pass_over(one, "it left out events of blocks that have settled", seconds=_HID_SECONDS)

    def _compare(self, found: list[Log], first: int, last: int, reader: Chain, lone: Lone) -> None:
        """Puts right what two readings of the same blocks do not have in common."""
        book = self._corrections.told(first, last)
        again = {entry[:2]: entry for entry in found}
        surplus = book.keys() - again.keys()
        if (
            surplus and not self._witnesses.are_several
        ):  # more often an answer that lacks something than a book that has too much
            again |= {entry[:2]: entry for entry in self._witnesses.read(reader, first, last)}
            surplus = book.keys() - again.keys()
        new = [entry for place, entry in again.items() if book.get(place) != content(entry)]
        if not (surplus or new):
            return
        said = {entry[:2]: self._witnesses.said_of(entry[:2], content(entry), lone) for entry in new}
        entering = [entry for entry in new if said[entry[:2]].answer]
        if len(entering) < len(new) and not self._witnesses.are_several:
            raise RpcUnavailable(f"an endpoint has events of other blocks than {first} to {last}")
        doubted = surplus | {entry[:2] for entry in new if entry[:2] in book}
        said_before = {place: self._witnesses.said_of(place, book[place], lone) for place in sorted(doubted)}
        false = [place for place, one in said_before.items() if not one.answer]
        if any(entry[:2] in book and entry[:2] not in false for entry in entering):
            raise EndpointsDisagree(f"two answers differ in what blocks {first} to {last} hold")
        if surplus - set(false):
            log.warning("an answer for blocks %d to %d lacks events that are in these blocks", first, last)
        if any(said_before[place].is_sure for place in surplus - set(false)):
            self._pass_over(reader)
        late = [entry.block for entry in entering if entry[:2] not in book and said[entry[:2]].is_sure]
        for one in self._first_readers(late):  # not for what one voice alone has told: that may be a lie
            self._pass_over(one)
        if entering or false:
            log.warning(
                "blocks %d to %d: %d events had been overlooked, %d were none", first, last, len(entering), len(false)
            )
        self._corrections.put_right(false, entering)
