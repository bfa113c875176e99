"""Following a listing of the hub: nothing twice, nothing missed, and nothing read again that is known."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest

from protocol.errors import Unavailable
from protocol.hub.listing import Listing, Mark


class Hub:
    """Entries under numbers, listed as the hub lists them; counts what it hands out."""

    def __init__(self, first: int, *entries: bytes) -> None:
        self.entries = dict(enumerate(entries, first))
        self.read_from: list[int] = []
        self.fails_at: int | None = None

    def __call__(self, mark: Mark) -> Iterator[tuple[int, bytes]]:
        self.read_from.append(mark.number)
        entry = self.entries.get(mark.number)
        is_there = (
            mark.number <= max(self.entries, default=0) if entry is None else sha256(entry).digest() == mark.digest
        )
        for number, entry in sorted(self.entries.items()):
            if number > mark.number * is_there:
                if number == self.fails_at:
                    raise Unavailable("gone")
                yield number, entry


def test_what_is_known_is_not_asked_for_again_after_a_restart() -> None:
    hub, first = Hub(100, b"a", b"b"), Listing()
    assert list(first.news(hub)) == [b"a", b"b"]
    hub.entries[102] = b"c"
    again = Listing(first.mark)
    assert list(again.news(hub)) == [b"c"]
    assert list(again.news(hub)) == []
    assert hub.read_from == [0, 101, 102], "no entry again"


@pytest.mark.parametrize("first", [1, 90, 101, 500], ids=["lower", "overlapping", "same last number", "higher"])
def test_a_hub_that_numbers_anew_is_read_from_the_start(first: int) -> None:
    listing = Listing()
    list(listing.news(Hub(100, b"a", b"b")))
    rebuilt = Hub(first, b"c", b"a", b"b")
    assert list(listing.news(rebuilt)) == [b"c", b"a", b"b"]


def test_an_empty_hub_is_followed_from_its_first_entry() -> None:
    listing = Listing()
    list(listing.news(Hub(100, b"a", b"b")))
    empty = Hub(7)
    assert list(listing.news(empty)) == []
    empty.entries[7] = b"c"
    assert list(listing.news(empty)) == [b"c"]


def test_a_failure_half_way_loses_nothing_and_repeats_only_what_it_interrupted() -> None:
    hub, listing = Hub(1, b"a", b"b", b"c"), Listing()
    hub.fails_at = 3
    taken: list[bytes] = []
    with pytest.raises(Unavailable):
        taken.extend(listing.news(hub))
    assert listing.mark == Mark(2, sha256(b"b").digest())
    with pytest.raises(Unavailable):
        list(listing.news(hub))
    hub.fails_at = None
    assert hub.read_from == [0, 2]
    assert taken + list(listing.news(hub)) == [b"a", b"b", b"c"]


def test_an_entry_whose_reader_failed_comes_again() -> None:
    hub, listing = Hub(1, b"a", b"b"), Listing()
    for entry in listing.news(hub):
        if entry == b"b":
            break
    assert list(listing.news(hub)) == [b"b"]


def test_a_hub_that_forgot_the_last_entry_known_is_not_read_from_the_start() -> None:
    hub, listing = Hub(100, b"a", b"b"), Listing()
    list(listing.news(hub))
    del hub.entries[101]
    hub.entries[102] = b"c"
    assert list(listing.news(hub)) == [b"c"]
