"""Keeping a book of the chain: reads on in pages, takes back what the chain took back, and starts where it stopped.

The cursor is the last block that was read, with its hash. When that hash no longer stands, the book looks for the newest of its
blocks that does, and forgets what stood above. A chain that lost more than REORG_BLOCKS of them, or says another chain id, is
not the chain that the book follows: WrongChain, and nothing of it enters.

Each reading begins a few blocks before the new ones, for providers' logs come later than their headers; what was not there before enters
late. Every page is read between two looks at its last block, and blocks near the head are looked up one by one, so that events of
another fork do not enter with the hashes of this one. Of several endpoints one is read, up to the newest block that another one
has as well; what one says alone moves neither the clock nor anybody's rights (witnesses.py). How the book knows that nothing is
missing and nothing invented: completeness.py.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, TypeVar

from protocol import metrics
from protocol.chain import book_schema, standing
from protocol.chain.book_entries import Entries
from protocol.chain.client import Chain
from protocol.chain.completeness import Completeness
from protocol.chain.decoding import Log
from protocol.chain.endpoints import LAG_BLOCKS, PATIENCE_SECONDS, EndpointsDisagree
from protocol.chain.ethereum import newest_block, numbered_block
from protocol.chain.events import Event
from protocol.chain.log_reader import ANSWER_BYTES, REREAD_BLOCKS, SOON_SECONDS
from protocol.chain.networks import SETTLED_BLOCKS
from protocol.chain.standing import StandingBlocks
from protocol.chain.types import Block
from protocol.chain.view import Submission, View
from protocol.chain.witnesses import Footing, Lone, Witnesses
from protocol.errors import ChainChanged, ConfigError, LockHeld, RpcUnavailable, WrongChain

log = logging.getLogger(__name__)
T = TypeVar("T")

_FOREIGN_TRIES = 30
"""Looks in a row that must find another chain before a role ends for it: a backend of another chain may answer for once."""
_RANGE, _RANGE_FIRST = 2_000, 64  # blocks per request; fewer while the provider refuses or blocks are full
_LAG = metrics.gauge(
    "murmur_book_lag_blocks",
    "Blocks between the chain's newest and the last that the book of a hub, trainer or validator has read.",
)
_EVENTS = 2_000  # in a page, about: what is held in memory at once
_ANOTHER_FILE = "another run's or chain's book lies there; delete it, or name another folder"


class Book(View):
    """The writer of a book; see view.py for what it answers. Poll from one thread; reading is safe from all."""

    def __init__(
        self, chain: Chain, run: int, path: Path | None = None, *, first_block: int = 0, confirmations: int = 0
    ) -> None:
        """In the file at `path`, or in memory. Starts at `first_block` or where the file left off; stays `confirmations`
        blocks behind the head. Raises LockHeld while another process writes the file, IntegrityError when it is damaged."""
        self._chain = chain
        self._run = run
        self._first = first_block
        self._confirmations = confirmations
        self._range = min(_RANGE_FIRST, _RANGE)
        self._held = _hold(path)
        super().__init__(book_schema.connect(path))
        self._entries = Entries(self._db, run)
        self._is_ours = False  # whether this process has seen that file and endpoint are of one chain
        self._is_behind = True
        self._foreign = 0  # looks in a row that found another chain
        self._short_since: float | None = None  # monotonic seconds since when the chain is shorter than the book
        self._head = super().head
        self._witnesses = Witnesses(chain, run)
        self._standing = StandingBlocks(self, self._witnesses, self._agreed)
        self._looked_at = float("-inf")  # monotonic, of the last poll, if it found new blocks

    @property
    def head(self) -> Block | None:
        return self._head

    def close(self) -> None:
        super().close()
        if self._held is not None:
            self._held.close()

    def poll(self) -> Block:
        """Catches up with the chain; returns the newest block that it may go by. Raises RpcUnavailable, and then what was read
        stays read; EndpointsDisagree; ChainChanged, and when it stays so WrongChain."""
        for more in reversed(range(len(self._chain.singles))):
            try:
                with self._asked_ahead():
                    return self._poll()
            except (EndpointsDisagree, ChainChanged):
                raise
            except RpcUnavailable:
                if not more:
                    raise
        raise AssertionError("there is at least one endpoint")

    @contextmanager
    def _asked_ahead(self) -> Iterator[None]:
        """What a poll asks that finds new blocks and nothing in them, asked for in one request: the newest block, whether the last one
        that was read still stands, the events since. Not where the answer could be a long one, or blocks come rarely."""
        top, since = self._top(), self._chain.provider.clock.monotonic() - self._looked_at
        if top is None or self._is_behind or since > SOON_SECONDS or self._confirmations:
            yield
            return
        best = self._chain.best_for_logs[0]
        asked = (newest_block(), numbered_block(top[0]), self._witnesses.reading(best, self._reread_from(top[0] + 1)))
        with best.ahead(*asked, cap=ANSWER_BYTES):
            yield

    def _poll(self) -> Block:
        known = self.head
        agreed, top = self._agreed(), self._top()
        is_news_enough = self._is_ours and not self._is_behind and (top is None or top[0] <= agreed)
        footing = self._witnesses.footing(known if is_news_enough else None, agreed)
        head = footing.head
        if not self._is_ours:
            self._require_ours()
        if known is not None and not self._is_behind and head.hash == known.hash:
            self._looked_at = float("-inf")
            return head
        self._is_behind = True
        self._looked_at = self._chain.provider.clock.monotonic()
        if self._lags(footing):
            return self._head or head
        self._roll_back(footing)
        self._foreign = 0
        self._is_behind = not self._read_on(footing)
        read = (self._top() or (0,))[0]
        _LAG.set(max(0, head.number - read))
        self._completeness.check(head, read)
        if not self._is_behind:
            with self.lock, self._entries.transaction():
                self._entries.set_head(head)
                self._entries.forget_removed(head.number - standing.REORG_BLOCKS)
            self._head = head
        return head

    def now(self) -> int:
        """Block time by the newest block that two endpoints have at this moment, without reading on. Raises RpcUnavailable."""
        return self._witnesses.footing(self.head, self._agreed()).head.time

    def ask(self, question: Callable[[Chain, int], T], about: str, at: int | None = None) -> T:
        """What the contracts' state says that no event does, as of block `at`, the head as the book has it where none is named:
        what two endpoints answer alike. `question` gets one endpoint and the block. Raises RpcUnavailable."""
        if at is None:
            if self.head is None:
                raise RpcUnavailable(f"{about}: nothing of the chain was read yet")
            at = self.head.number
        block = at
        found = self._witnesses.agreed(lambda one: question(one, block), about)
        assert found is not None  # no question here answers None
        return found

    def time(self, of: Submission | Event) -> int:
        """Block time of a commitment or an event in seconds, as block headers have it. Raises RpcUnavailable where the chain has to
        be asked."""
        if isinstance(of, Submission) and of.time is not None:
            return of.time
        row = self.row("SELECT hash, time FROM blocks WHERE number = ?", (of.block,))
        if row is not None and row[0] == of.block_hash and row[1] is not None:
            return int(row[1])
        said = self._witnesses.said(lambda one: one.find_block(of.block), f"block {of.block}")
        if said is None or said.answer.hash != of.block_hash:
            raise RpcUnavailable(f"block {of.block} is another than the one that was read")
        if said.is_sure:
            with self.lock, self._entries.transaction():
                self._entries.add_blocks([(of.block, said.answer.hash, said.answer.time)], bare=False)
        return said.answer.time

    # ---- where the book ends -------------------------------------------------------------------------------------------

    def _top(self) -> tuple[int, bytes] | None:
        """The last block that was read."""
        return self._standing.below(1 << 62)

    def _agreed(self) -> int:
        """The newest block of the book that two endpoints have told, or the only one that is configured. Those above may go."""
        found = self.fact("agreed")
        return int(found if found is not None else (self._top() or (self._first - 1,))[0])

    def is_sure(self, submission: Submission) -> bool:
        """Whether it, and what its node committed to before, was read off two endpoints; off the only one, where no other is
        configured or has answered for a minute. Nobody is to be accused of what one endpoint alone tells."""
        if not self._witnesses.are_several or submission.block <= self.fact("read_twice"):
            return True
        return submission.block <= self.settled and self._witnesses.has_one_left

    # ---- whose chain it is ---------------------------------------------------------------------------------------------

    def _require_ours(self) -> None:
        """That endpoint and file are of one chain, contract and run."""
        wanted: dict[str, object] = {
            "chain_id": self._chain_id(Lone.ENOUGH),  # which was compared with the configuration already
            "contract": self._chain.runs.address,
            "run": self._run,
        }
        found = {name: self.fact(name) for name in wanted}
        if found["chain_id"] is None:
            self._begin(wanted)
        elif found["chain_id"] != wanted["chain_id"]:
            raise WrongChain(f"{self._chain.rpc} is chain {wanted['chain_id']}, the book is of {found['chain_id']}")
        elif found != wanted:
            raise ConfigError(f"the book is of run {found['run']} at {found['contract']}", hint=_ANOTHER_FILE)
        elif self.fact("first_block") > self._first:
            raise ConfigError(
                f"the book begins at block {self.fact('first_block')}, later than {self._first}", hint=_ANOTHER_FILE
            )
        self._is_ours = True

    def _begin(self, facts: dict[str, object]) -> None:
        """Remembers a block that no reorg reaches, or the first of all: by it another chain is told from a reorg."""
        number, before = max(0, self._first - 1 - standing.REORG_BLOCKS), max(0, self._first - 1)
        said = self._witnesses.said(lambda one: one.find_block(number), f"block {number}")
        if said is None:
            raise RpcUnavailable(f"reading a block: {self._chain.rpc} does not know block {number}")
        anchor = said.answer
        marks = {
            "identity": os.urandom(16),
            "first_block": self._first,
            "settled": before,
            "read_twice": before,
            "agreed": number if said.is_sure else -1,
        }
        with self.lock, self._entries.transaction():
            for name, value in {**facts, **marks}.items():
                self._entries.set_fact(name, value)
            self._entries.add_blocks([(number, anchor.hash, anchor.time if said.is_sure else None)], bare=False)

    # ---- reorgs --------------------------------------------------------------------------------------------------------

    def _lags(self, footing: Footing) -> bool:
        """Whether the endpoints are merely behind: they have not got the block where the book ends, and all they have is the book's.
        Blocks of the book that one alone had told are not waited for longer than a lag lasts."""
        top = self._top()
        if top is None or footing.head.number >= top[0]:
            self._short_since = None
            return False
        below = self._standing.below(footing.head.number + 1)
        if below is None or not self._standing.stands(below, footing):
            return False
        now = self._chain.provider.clock.monotonic()
        if self._short_since is None:
            self._short_since = now
        is_said_by_enough = footing.witness is not None or not self._witnesses.are_several
        is_long = top[0] - footing.head.number > LAG_BLOCKS or now - self._short_since >= PATIENCE_SECONDS
        if not (is_said_by_enough and is_long and top[0] > self._agreed()):
            return True
        agreed = self._standing.below(self._agreed() + 1)
        self._remove_above(max(below[0], agreed[0] if agreed else 0), "is shorter than one endpoint alone had said")
        return self._top() == top

    def _roll_back(self, footing: Footing) -> None:
        top = self._top()
        if top is None:
            return
        if self._standing.stands(top, footing):
            if footing.witness is not None and self._agreed() < top[0] <= footing.head.number:
                with self.lock, self._entries.transaction():
                    self._entries.set_fact("agreed", top[0])
            return
        chain_id = self._chain_id(Lone.IF_GONE)
        if chain_id != self.fact("chain_id"):
            raise self._changed(footing, f"has become chain {chain_id}, the book is of {self.fact('chain_id')}")
        good = self._standing.newest(top[0], footing)
        if good is None:
            raise self._changed(
                footing,
                f"has other blocks than the book from {standing.REORG_BLOCKS} below block {top[0]}",
                hint="the endpoint is on another chain or fork; if that is the one you want, delete the book's file",
            )
        self._remove_above(good, "was reorganised")

    def _remove_above(self, good: int, why: str) -> None:
        agreed = self._agreed()
        with self.lock, self._entries.transaction():
            gone = self._entries.remove_above(good)
            for mark in ("settled", "read_twice"):
                self._entries.set_fact(mark, min(good, self.fact(mark)))
            self._entries.set_fact("agreed", min(good, agreed))
        self._completeness.forget_above(good)
        log.warning("the chain %s: above block %d; %d events are gone", why, good, gone)

    def _chain_id(self, lone: Lone) -> int | None:
        return self._witnesses.agreed(lambda one: one.ask_chain_id(), "the chain id", lone)

    def _changed(self, footing: Footing, what: str, hint: str | None = None) -> WrongChain:
        """What one of several endpoints says alone ends nobody's role."""
        is_alone = self._witnesses.are_several and footing.witness is None
        self._foreign += not is_alone
        kind = ChainChanged if self._foreign < _FOREIGN_TRIES else WrongChain
        voices = footing.source.rpc if footing.witness is None else f"{footing.source.rpc}, {footing.witness.rpc}"
        return kind(f"{voices} {what}", hint=hint)

    # ---- reading on ----------------------------------------------------------------------------------------------------

    def _read_on(self, footing: Footing) -> bool:
        """Reads up to the head. False where the chain moved meanwhile: the next poll rolls back."""
        head, source = footing.head, footing.source
        target = head.number - self._confirmations
        top = self._top()
        first = max(self._first, top[0] + 1 if top else 0)
        again = self._reread_from(first)
        while first <= target:
            last = min(target, first + self._range - 1)
            # Looked up before the events and after: where the chain moves in between, the two differ.
            lone = Lone.ENOUGH if footing.witness is None else Lone.NOTHING
            end = head if last == head.number else self._witnesses.block(last, lone)
            if end is None:
                return False
            try:
                found = self._new(self._witnesses.read(source, again, last), first)
            except RpcUnavailable as error:
                if last == first:
                    if not isinstance(error, EndpointsDisagree):
                        self._witnesses.pass_over(source, f"block {first} could not be read")
                    raise
                again = first
                self._range = max(1, (last - first + 1) // 4)  # providers cap ranges or answers; a dead one fails again
                continue
            try:
                self._witnesses.confirm(found, footing)
            except RpcUnavailable:
                if last == first:
                    raise
                self._range = max(1, (last - first + 1) // 4)  # up to where it can be confirmed
                continue
            times = self._times(found, first, end, footing)
            if times is None:
                if not self._witnesses.are_several:
                    return False
                problem = f"its events and its blocks {first} to {last} do not fit together"
                self._witnesses.pass_over(source, problem)
                raise RpcUnavailable(f"{source.rpc}: {problem}")
            self._store(found, end, times, is_sure=footing.witness is not None or not self._witnesses.are_several)
            late = [entry.block for entry in found if entry.block < first]
            if late and self._completeness.note_late(late, source):
                self._witnesses.pass_over(source, "its events come later than its blocks")
            self._completeness.note_reading(first, last, source)
            self._range = max(1, min(_RANGE, 2 * self._range, self._range * 2 * _EVENTS // max(1, len(found))))
            again = first = last + 1
        return True

    def _reread_from(self, first: int) -> int:
        """Where a reading begins whose first new block is `first`."""
        return min(first, max(self._first, int(self.fact("read_twice")) + 1, first - REREAD_BLOCKS))

    def _new(self, found: list[Log], first: int) -> list[Log]:
        """Without those below block `first` that the book has, or whose block it knows by another hash."""
        before = [entry.block for entry in found if entry.block < first]
        if not before:
            return found
        told = self._completeness.told(min(before), first - 1)
        hashes = dict(self.rows("SELECT number, hash FROM blocks WHERE number BETWEEN ? AND ?", (min(before), first)))
        return [
            entry
            for entry in found
            if entry.block >= first
            or (entry[:2] not in told and hashes.get(entry.block, entry.block_hash) == entry.block_hash)
        ]

    def _times(self, found: list[Log], first: int, end: Block, footing: Footing) -> list[Block] | None:
        """Headers of blocks that hold these events, as far as they are looked up; None where one is another block. Where nothing was
        found up to the head, the next poll takes the second look at it: it begins with whether that block still stands."""
        source = footing.source
        if not found and end.number == footing.head.number:
            return []
        hashes = {event.block: event.block_hash for event in found}
        near = [number for number in hashes if number < first or number > footing.head.number - SETTLED_BLOCKS]
        wanted = sorted({*near, *list(hashes)[-1:]} - {end.number})
        with source.ahead(*map(numbered_block, (end.number, *wanted))):
            if hashes.get(end.number, end.hash) != end.hash or source.block_hash(end.number) != end.hash:
                return None
            blocks = [source.block(number) for number in wanted]
        if any(block.hash != hashes[block.number] for block in blocks):
            return None
        return blocks

    def _store(self, found: list[Log], end: Block, blocks: list[Block], *, is_sure: bool) -> None:
        """`is_sure`: not one of several endpoints alone has told of `end`."""
        agreed = end.number if is_sure else self._agreed()
        with self.lock, self._entries.transaction():
            self._entries.enter(found)
            self._entries.add_blocks([(end.number, end.hash, end.time if is_sure else None)], bare=True)
            if not self._witnesses.are_several:
                self._entries.add_blocks([(b.number, b.hash, b.time) for b in blocks], bare=False)
            self._entries.forget_bare(agreed - standing.REORG_BLOCKS)
            self._entries.set_fact("agreed", agreed)

    @cached_property
    def _completeness(self) -> Completeness:
        return Completeness(self, self._entries, self._chain, self._witnesses, self._run)


def _hold(path: Path | None) -> IO[bytes] | None:
    """The lock of a book's file; the system frees it with the process. Raises LockHeld."""
    if path is None:
        return None
    file = path.with_name(path.name + ".lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise LockHeld(
            f"another process writes {path}", hint="one process keeps a book; others open it with View.read"
        ) from error
    return file
