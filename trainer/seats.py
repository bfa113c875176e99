"""Seats of a run's nodes, as a book of the chain has them: who holds one, with which key, and since which block.

A seat works on versions that were published after that block, and on no others (contracts/src/Runs.sol, `SeatTooYoung`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from protocol.chain.events import Event, HandedOver, Joined, Left, Rotated
from protocol.chain.view import View

SEAT_EVENTS: Final = (Joined, Rotated, HandedOver, Left)


@dataclass(frozen=True)
class HeldSeat:
    name: str
    """Its first key, which it keeps through all later ones."""
    node: str
    """The key that works."""
    since: int
    """Block in which the seat was taken, got this key or changed hands."""
    until: int | None = None
    """Block time at which it ends or ended; None: no end is in sight."""

    def serves(self, now: int) -> bool:
        """Whether it is held at this block time."""
        return self.until is None or now < self.until


def held_seats(book: View) -> list[HeldSeat]:
    """All that ever were, those that have ended too. Reads every event of a seat: for now and then, not for each turn."""
    events = [event for kind in SEAT_EVENTS for event in book.events(kind)]
    found: dict[str, HeldSeat] = {}  # by the seat's name, which is its first key
    names: dict[str, str] = {}  # of keys rotated in
    for event in sorted(events, key=lambda event: (event.block, event.log_index)):
        _follow(event, found, names)
    return list(found.values())


def serving_seats(book: View) -> list[HeldSeat]:
    """Those that are held as of the book's newest block."""
    head = book.head
    return [] if head is None else [seat for seat in held_seats(book) if seat.serves(head.time)]


def may_have_seats(book: View) -> bool:
    """Whether a node holds one, or may: a book that begins after the run does not know all of them."""
    return not book.begins_with_run or bool(serving_seats(book))


def _follow(event: Event, found: dict[str, HeldSeat], names: dict[str, str]) -> None:
    data = event.data
    if isinstance(data, Joined):
        name = names.get(data.node, data.node)
        found[name] = HeldSeat(name, data.node, event.block)
    elif data.seat not in found:  # older than the book
        return
    elif isinstance(data, Rotated):
        names[data.node] = data.seat
        found[data.seat] = replace(found[data.seat], node=data.node, since=event.block)
    elif isinstance(data, HandedOver):
        found[data.seat] = replace(found[data.seat], since=event.block)
    else:
        found[data.seat] = replace(found[data.seat], until=data.until)
