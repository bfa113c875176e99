"""The hub's database holds what a deadline of the protocol can still reach: it does not grow with the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.hub.listing import Listing
from protocol.hub.wire import Refused
from tests.hub.desk import Desk
from trainer.hub.database import Database

KEPT = 100
"""Seconds for which entries are kept; one of each kind comes every second."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "hub.sqlite")
    made._db.execute("PRAGMA synchronous=OFF")
    yield made
    made.close()


def live(database: Database, seconds: int) -> None:
    """So long a run, forgetting every now and then."""
    for now in range(seconds):
        name = now.to_bytes(32, "big")
        database.add_stored(name, name, 1, "{}", now)
        database.add_receipt(name, "0x", b"{}", now)
        database.add_opinion(name, "0x", now)
        if now % KEPT == 0:
            forget(database, now - KEPT)


def forget(database: Database, time: int, *, pays: bool = False) -> None:
    while database.forget_before(time, pays=pays):
        pass


def sizes(database: Database) -> list[int]:
    tables = ("stored", "receipts", "opinions", "marks", "nonces", "undecided")
    return [database._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]


@pytest.mark.parametrize("seconds", [10**3, 10**4])
def test_a_long_run_leaves_no_more_in_the_database_than_a_short_one(database: Database, seconds: int) -> None:
    live(database, seconds)
    assert sizes(database) == [2 * KEPT] * 3 + [1, 0, 0]


def test_what_is_old_goes_in_bounded_parts_however_much_it_is(database: Database) -> None:
    for now in range(2500):
        database.add_receipt(now.to_bytes(32, "big"), "0x", b"{}", now)
    assert [database.forget_before(2400, pays=False) for _ in range(3)] == [True, True, False]
    assert sizes(database)[1] == 100
    assert database.since == 2400
    database.forget_before(2300, pays=False)  # the block time of another endpoint, say
    assert database.since == 2400


def test_nothing_of_a_submission_in_an_open_case_is_forgotten(database: Database) -> None:
    live(database, 5)
    disputed = (3).to_bytes(32, "big")
    while database.forget_before(1000, pays=False, disputed=[disputed]):
        pass
    assert sizes(database)[:3] == [1, 1, 1]
    assert database.stored(disputed)
    forget(database, 1000)
    assert sizes(database)[:3] == [0, 0, 0]


def test_a_receipt_that_pay_waits_for_is_kept(database: Database) -> None:
    for number in range(4):
        database.add_receipt(bytes([number]), "0x", bytes([number]), 0)
    numbers = [number for number, _ in database.receipts(0, 10)]
    database.take(numbers[2], [(numbers[1], 0, 50)])  # the first is settled, the last was not looked at yet
    forget(database, 1000, pays=True)
    assert [data for _, data in database.receipts(0, 10)] == [b"\x01", b"\x03"]
    database.settle(numbers[1], "0x", 0, is_earned=True)
    database.take(numbers[3], [])
    forget(database, 1000, pays=True)
    assert database.receipts(0, 10) == []
    assert database.earned(10) == {"0x": 1}


def test_a_follower_that_was_away_for_too_long_goes_on_with_the_oldest_that_is_left(desk: Desk) -> None:
    desk.database.add_receipt(bytes(32), "early", b'{"n":0}', 0)
    late, prompt = Listing(), Listing()
    for follower in (late, prompt):
        list(follower.news(desk.client().receipts))
    now = desk.now()
    for n in range(1, 4):
        desk.database.add_receipt(bytes([n]) * 32, "later", b'{"n":%d}' % n, now - 10 + n)
    assert list(prompt.news(desk.client().receipts)) == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    forget(desk.database, now - 8)
    assert list(late.news(desk.client().receipts)) == [b'{"n":2}', b'{"n":3}']
    assert list(prompt.news(desk.client().receipts)) == []
    assert desk.get("receipts").json()["since"] == now - 8
    forget(desk.database, now)


def test_a_forgotten_receipt_is_not_taken_a_second_time(desk: Desk) -> None:
    """It could be paid for twice."""
    node, validator = desk.node(), desk.validator()
    old = desk.commit(node, b"old")
    receipt = desk.receipt(validator, old)
    desk.client(validator).post_receipt(receipt)
    desk.world.anvil.advance(100)
    fresh = desk.commit(node, b"fresh", sequence=1)
    desk.hub.learn()
    forget(desk.database, desk.now() - 10)
    assert not desk.database.has_receipt(desk.submission(old), validator.address)
    with pytest.raises(Refused, match="not judged any more"):
        desk.client(validator).post_receipt(receipt)
    desk.client(validator).post_receipt(desk.receipt(validator, fresh))
    assert [number for number, data in desk.database.receipts(0, 1000) if data == receipt] == []
