"""Who committed to how much lately, read off the chain as far as advice needs it.

One endpoint is believed: what it leaves out or invents costs time and nothing else (wanted.py). So this is no book, and nothing is kept.
"""

from __future__ import annotations

from collections import Counter

from node.contributor.wanted import Commitments
from protocol.chain import Chain
from protocol.chain.events import Submitted
from protocol.chain.log_reader import REREAD_BLOCKS, LogReader
from protocol.chain.transport import Request

LATELY = 16
"""Versions over which turns are shared out. Changing it breaks: nothing; who made less in them goes first."""
_RANGE = 1_000  # blocks of a request

Place = tuple[int, int]
"""Block, and index in it."""


class RecentCommitments:
    """For one thread."""

    def __init__(self, chain: Chain, run: int) -> None:
        self._chain = chain
        self._run = run
        self._reader: LogReader | None = None
        self._found: dict[Place, tuple[str, int]] = {}  # → (node, step)
        self._next = -1  # the first block that was not read
        self._start: tuple[int, int] = (-1, 0)  # a step, and the block of its version
        self._is_followed = False  # whether there was a look since `requests` were told

    def requests(self) -> list[Request]:
        """What the next `look` asks, beside the newest block, where one follows the other; nothing where the last was long ago."""
        is_followed, self._is_followed = self._is_followed, False
        return [self._reader.request(self._first_unread(self._start[1]))] if is_followed and self._reader else []

    def look(self, oldest: int) -> Commitments:
        """What was committed of the versions from `oldest` on, and of some before. Raises RpcUnavailable."""
        self._is_followed = True
        first = max(0, oldest - LATELY)
        self._read_on(self._block_of(first))
        self._found = {place: of for place, of in self._found.items() if of[1] >= first}
        window = Counter(node for node, step in self._found.values() if step >= oldest)
        return Commitments(window, Counter(node for node, _ in self._found.values()))

    def _block_of(self, step: int) -> int:
        """The block of a version: nobody works on one before it is out."""
        if self._start[0] != step:
            self._start = step, self._chain.publication(self._run, step).block
        return self._start[1]

    def _first_unread(self, start: int) -> int:
        return max(start, self._next - REREAD_BLOCKS)

    def _read_on(self, start: int) -> None:
        if self._reader is None:
            self._reader = LogReader(self._chain, self._run)
        head = self._chain.block().number
        first = self._first_unread(start)
        while first <= head:
            last = min(head, first + _RANGE - 1)
            found = self._reader.read(first, last)
            self._found = {place: of for place, of in self._found.items() if place[0] < first}
            for log in found:
                if log.kind is Submitted:
                    _, node, _, step, *_ = log.values
                    self._found[log.block, log.log_index] = node, step
            first = self._next = last + 1
