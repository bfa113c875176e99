"""What a book keeps of events that a chain took back: until all who follow have heard of it, and not for ever."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from protocol.chain import book_schema
from protocol.chain.book_entries import Entries
from protocol.chain.decoding import Log
from protocol.chain.events import Submitted
from protocol.chain.standing import REORG_BLOCKS
from protocol.chain.types import Block
from protocol.chain.view import View
from protocol.identity import Key

NODE = Key.generate().address
RUN = 1


class Chain:
    """A book that is written as sync.py writes it, of a chain with one submission every so many blocks."""

    def __init__(self) -> None:
        db = book_schema.connect(None)
        self.view, self.entries = View(db), Entries(db, RUN)
        self.block = 0
        self.cursor = 0

    def submit(self, fork: int) -> bytes:
        """A commitment in a block of its own, which follows the last; returns the submission's root."""
        self.block += 1
        root = b"%016d%016d" % (self.block, fork)
        event = Submitted(RUN, NODE, root, 0, self.block, 1)  # type: ignore[arg-type]
        with self.entries.transaction():
            self.entries.enter([Log(self.block, 0, root, root, Submitted, astuple(event))])
        return root

    def take_back(self) -> None:
        self.block -= 1
        with self.entries.transaction():
            self.entries.remove_above(self.block)

    def end_poll(self, blocks: int = 0) -> None:
        """The book is at the head, which is so many blocks further."""
        self.block += blocks
        with self.entries.transaction():
            self.entries.set_head(Block(self.block, bytes(32), self.block))
            self.entries.forget_removed(self.block - REORG_BLOCKS)

    def hear(self) -> tuple[list[bytes], list[bytes]]:
        """Roots that are (gone, new) to one who follows."""
        changes = self.view.changes_since(self.cursor)
        self.cursor = changes.cursor
        return [s.root for s in changes.gone_submissions], [s.root for s in changes.submissions]

    @property
    def kept(self) -> int:
        return int(self.view.row("SELECT count(*) FROM removed")[0])


@pytest.mark.parametrize("reorgs", [1_000, 10_000])
def test_what_reorgs_took_back_is_not_kept_for_ever(reorgs: int) -> None:
    chain, most = Chain(), 0
    for _ in range(reorgs):
        old = chain.submit(fork=0)
        chain.end_poll()
        assert chain.hear() == ([], [old])
        chain.take_back()
        new = chain.submit(fork=1)
        chain.end_poll(blocks=300)
        assert chain.hear() == ([old], [new]), "each is told once"
        most = max(most, chain.kept)
    assert most <= 6


def test_what_went_in_one_long_catching_up_is_told_before_it_is_forgotten() -> None:
    chain = Chain()
    old = [chain.submit(fork=0) for _ in range(3)]
    chain.end_poll()
    chain.hear()
    for _ in old:
        chain.take_back()
    chain.end_poll(blocks=10 * REORG_BLOCKS)
    assert chain.hear() == ([*reversed(old)], [])


def test_a_position_is_never_given_twice() -> None:
    """What followed a position that was forgotten would never be heard of."""
    chain = Chain()
    chain.submit(fork=0)
    chain.end_poll()
    chain.take_back()
    chain.hear()
    for _ in range(3):
        chain.end_poll(blocks=2 * REORG_BLOCKS)
    chain.entries = Entries(chain.view._db, RUN)  # a restart
    new = chain.submit(fork=1)
    assert chain.hear() == ([], [new])
