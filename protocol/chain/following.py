"""The events of one run as they happen, and what a reorganisation took back: for somebody who watches.

Not for a role, which decides by what it reads and keeps a book of all of it (sync.py). A follower begins at any block, keeps nothing on
disk and believes the endpoint that answers: whoever acts on what it says asks again first.

Each page is read between two looks at its last block, so that all of it is of one fork, and begins a few blocks before the new ones,
for providers' logs come later than their headers. When the newest block that was read stands no longer, everything above the newest
one that does is told as taken back, and read anew. A chain that is shorter than it was is an endpoint that lags, until a block differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from protocol.chain.client import Chain
from protocol.chain.ethereum import data, newest_block, numbered_block, quantity
from protocol.chain.events import Event
from protocol.chain.log_reader import ANSWER_BYTES, REREAD_BLOCKS, SOON_SECONDS, LogReader
from protocol.chain.standing import REORG_BLOCKS
from protocol.chain.types import Block
from protocol.errors import RpcUnavailable, WrongChain

_RANGE = 2_000  # blocks in a page; fewer where the endpoint refuses
_Place = tuple[int, int, bytes]


@dataclass(frozen=True)
class Happened:
    """An event and the block time it happened at; or, `taken_back`, that it is of the chain no longer."""

    event: Event
    time: int
    taken_back: bool = False


class Follower:
    """Poll from one thread. Memory holds what was told of the newest REORG_BLOCKS blocks."""

    def __init__(
        self, chain: Chain, run: int, first_block: int, *, others: Mapping[str, str] | None = None, stakes: bool = False
    ) -> None:
        """`others`: as of LogReader. `stakes`: also what Bonds emits, which names accounts and no run."""
        self._chain, self._chain_id = chain, chain.chain_id
        self._reader = LogReader(chain, run, others=others)
        self._stakes = stakes
        self._first = self._next = first_block
        self._range = _RANGE
        self._read_at = float("-inf")  # monotonic, when all was told last
        self._marks: dict[int, bytes] = {}
        """Hashes of blocks that were read, by number, in order."""
        self._told: dict[_Place, Happened] = {}
        """In the order of the chain, but for what came late."""

    def poll(self) -> Iterator[Happened]:
        """What is new up to the newest block. Raises RpcUnavailable, after which polling again goes on where it stopped, and
        WrongChain where the chain took back more than REORG_BLOCKS or is another one."""
        with self._asked_ahead():
            head = self._chain.block()
            gone = list(self._take_back(head.number))
            page = self._next_page(head)
        yield from gone
        while page is not None:
            yield from page
            page = self._next_page(head)
        self._read_at = self._chain.provider.clock.monotonic()

    def _asked_ahead(self) -> AbstractContextManager[None]:
        """As Book.poll: what a look asks that finds new blocks and nothing in them, as one request."""
        if not self._marks or self._chain.provider.clock.monotonic() - self._read_at > SOON_SECONDS:
            return nullcontext()
        first = max(self._first, self._next - REREAD_BLOCKS)
        asked = (newest_block(), numbered_block(max(self._marks)), self._reader.request(first))
        return self._chain.ahead(*asked, cap=ANSWER_BYTES)

    def _next_page(self, head: Block) -> list[Happened] | None:
        """None where everything up to the head was told."""
        while self._next <= head.number:
            first, last = max(self._first, self._next - REREAD_BLOCKS), min(head.number, self._next + self._range - 1)
            try:
                page = self._page(first, last, head)
            except RpcUnavailable:
                if last > self._next:
                    self._range = max(1, (last - self._next + 1) // 4)
                    continue
                page = self._page(last, last, head)
            self._range = min(_RANGE, 2 * self._range)
            self._next = last + 1
            self._forget(last - REORG_BLOCKS)
            return page
        return None

    def _page(self, first: int, last: int, head: Block) -> list[Happened]:
        """What of blocks first … last was not told yet; noted as told. Where that is nothing, up to the head, the next poll takes the second
        look: it begins with whether that block still stands."""
        end = head if last == head.number else self._chain.block(last)
        events = self._read(first, last)
        new = [event for event in events if (event.block, event.log_index, event.block_hash) not in self._told]
        times = {number: self._chain.block(number).time for number in {event.block for event in new}}
        if (new or end is not head) and self._chain.block_hash(last) != end.hash:
            raise RpcUnavailable(f"reading events: {self._chain.rpc} answers of two forks")
        page = [Happened(event, times[event.block]) for event in new]
        for news in page:
            self._told[news.event.block, news.event.log_index, news.event.block_hash] = news
            self._marks[news.event.block] = news.event.block_hash
        self._marks[last] = end.hash
        self._marks = dict(sorted(self._marks.items()))
        return page

    def _read(self, first: int, last: int) -> list[Event]:
        found = [
            Event(log.kind(*log.values), log.block, log.block_hash, log.log_index, log.transaction)
            for log in self._reader.read(first, last)
        ]
        if self._stakes:
            found += self._read_stakes(first, last)
        return sorted(found, key=lambda event: (event.block, event.log_index))

    def _read_stakes(self, first: int, last: int) -> list[Event]:
        query: dict[str, Any] = {
            "address": self._chain.bonds.address,
            "fromBlock": hex(first),
            "toBlock": hex(last),
        }
        with self._chain.errors("reading events"):
            return [
                Event(
                    decoded, quantity(entry["blockNumber"]), data(entry["blockHash"], 32), quantity(entry["logIndex"]),
                    data(entry["transactionHash"], 32),
                )
                for entry in self._chain.ask("eth_getLogs", [query])
                if (decoded := self._chain.decode(entry)) is not None and first <= quantity(entry["blockNumber"]) <= last
            ]  # fmt: skip

    def _take_back(self, head: int) -> Iterator[Happened]:
        """Goes back to the newest block that was read and still stands, and says what stood above it."""
        known = [number for number in self._marks if number <= head]
        stands = next((n for n in reversed(known) if self._chain.block_hash(n) == self._marks[n]), None)
        if not known or stands == known[-1]:
            return
        if self._chain.ask_chain_id() != self._chain_id:
            raise WrongChain(f"{self._chain.rpc} is another chain than before")
        if stands is None and known[-1] - known[0] >= REORG_BLOCKS:
            raise WrongChain(f"{self._chain.rpc} has none of the last {REORG_BLOCKS} blocks that were read")
        self._next = self._first if stands is None else stands + 1
        self._marks = {number: hash for number, hash in self._marks.items() if number < self._next}
        gone = {place: news for place, news in self._told.items() if place[0] >= self._next}
        self._told = {place: news for place, news in self._told.items() if place not in gone}
        for place in sorted(gone, reverse=True):
            yield Happened(gone[place].event, gone[place].time, taken_back=True)

    def _forget(self, before: int) -> None:
        self._marks = {number: hash for number, hash in self._marks.items() if number >= before}
        self._told = {place: news for place, news in self._told.items() if place[0] >= before}
