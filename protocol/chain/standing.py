"""Which blocks of a book its chain still holds: what a reorganisation is measured by."""

from __future__ import annotations

from collections.abc import Callable

from protocol.chain.view import View
from protocol.chain.witnesses import Footing, Witnesses
from protocol.errors import RpcUnavailable

REORG_BLOCKS = 1_024
"""Blocks that a chain may take back; twice the depth at which Base's are final on Ethereum. Blocks."""

Known = tuple[int, bytes]
"""Number and hash of a block that the book knows."""


class StandingBlocks:
    def __init__(self, view: View, witnesses: Witnesses, agreed: Callable[[], int]) -> None:
        """`agreed`: the newest block of the book that two endpoints have told."""
        self._view = view
        self._witnesses = witnesses
        self._agreed = agreed

    def below(self, number: int) -> Known | None:
        """The newest block below that the book knows."""
        query = "SELECT number, hash FROM blocks WHERE number < ? ORDER BY number DESC LIMIT 1"
        return self._view.row(query, (number,))

    def stands(self, block: Known, footing: Footing) -> bool:
        """Whether the chain still holds a block of the book; that it does not is no single endpoint's to say. One that a single
        endpoint had told stands where two say so, when there are two."""
        is_open = footing.witness is not None and block[0] > self._agreed()
        if is_open and block[0] > footing.head.number:
            return False
        if not is_open and footing.source.block_hash(block[0]) == block[1]:
            return True
        found = self._witnesses.block(block[0])
        if found is None and block[0] <= footing.head.number:  # a chain that is that long has such a block
            raise RpcUnavailable(f"{footing.source.rpc} has block {footing.head.number}, and no block {block[0]}")
        return found is not None and found.hash == block[1]

    def newest(self, bad: int, footing: Footing) -> int | None:
        """Number of the newest remembered block that still stands, below `bad`, which does not. None where none does, or one
        more than REORG_BLOCKS deep does not; what one endpoint alone had told is no depth."""
        stride, top = 1, min(bad, self._agreed() + 1)
        below = self.below(bad)
        while below is not None and not self.stands(below, footing):
            bad, stride = below[0], 2 * stride
            below = None if top - bad > REORG_BLOCKS else self.below(bad - stride) or self.below(bad)
        if below is None:
            return None
        good = below[0]
        while (middle := self._between(good, bad)) is not None:
            if self.stands(middle, footing):
                good = middle[0]
            else:
                bad = middle[0]
        return None if top - bad > REORG_BLOCKS else good

    def _between(self, good: int, bad: int) -> Known | None:
        """A remembered block between two, near the middle."""
        middle = (good + bad) // 2
        found = self.below(middle + 1)
        if found is not None and found[0] > good:
            return found
        query = "SELECT number, hash FROM blocks WHERE number > ? AND number < ? ORDER BY number LIMIT 1"
        return self._view.row(query, (middle, bad))
