"""What concerns one node, over one poll: its receipts and nobody else's, its challenge, and what the trainer needs."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from swarm.processes import wait_until

from protocol.hub.client import Heard, News
from protocol.hub.listing import Mark
from protocol.identity import Key
from protocol.shell.home import write_json
from tests.hub.desk import Desk
from trainer.hub.database import Database

NEED = {"step": 0, "last": 9, "groups": 2, "ahead": 100, "ready": 0, "settled": 0, "usable": 1000}
NOWHERE = Path("/nonexistent/need.json")


def ask(desk: Desk, node: Key, mark: Mark = Mark(), **more: Any) -> News:
    return desk.client().news(node.address, mark, trainer=desk.key.address, **more)


def receipts(news: News) -> list[bytes]:
    return [data for _, data in news.receipts]


@pytest.fixture
def need(desk: Desk) -> Path:
    path = desk.folder / "need.json"
    path.unlink(missing_ok=True)
    return path


def test_a_node_is_listed_its_own_receipts_and_those_of_its_earlier_keys(desk: Desk) -> None:
    one, other, third = desk.nodes(3)
    validator = desk.validator()
    posted = {}
    for node in (one, other, third):
        posted[node] = desk.receipt(validator, desk.commit(node, node.address.encode()))
        desk.client(validator).post_receipt(posted[node])
    assert receipts(ask(desk, one)) == [posted[one]]
    assert receipts(ask(desk, other, also=[third.address])) == [posted[other], posted[third]]


def test_a_poll_is_answered_by_a_receipt_of_the_node_and_sleeps_through_others(desk: Desk) -> None:
    one, other = desk.nodes(2)
    validator = desk.validator()
    heard: list[News] = []
    thread = threading.Thread(target=lambda: heard.append(ask(desk, one, wait=30)))
    thread.start()
    wait_until(lambda: desk.hub.bells.waits(("receipts", one.address)), deadline=10, what="it waits")
    desk.client(validator).post_receipt(desk.receipt(validator, desk.commit(other, b"other")))
    assert desk.hub.bells.waits(("receipts", one.address))
    own = desk.receipt(validator, desk.commit(one, b"own"))
    desk.client(validator).post_receipt(own)
    thread.join(10)
    assert receipts(heard[0]) == [own]


def test_a_poll_is_answered_when_the_trainer_says_something_else_and_not_when_it_repeats_itself(
    desk: Desk, need: Path
) -> None:
    node = desk.node()
    assert ask(desk, node).need is None
    write_json(need, NEED)
    first = ask(desk, node, wait=30)
    assert first.need is not None
    assert first.need.need.ready == 0
    heard: list[News] = []
    thread = threading.Thread(target=lambda: heard.append(ask(desk, node, tag=first.tag, wait=30)))
    thread.start()
    wait_until(lambda: desk.hub.bells.waits("need"), deadline=10, what="it waits")
    desk.world.anvil.advance(100)
    desk.hub.learn()  # its time is renewed
    write_json(need, NEED)
    assert ask(desk, node, tag=first.tag).tag == first.tag
    assert not heard
    write_json(need, {**NEED, "ready": 7})
    thread.join(10)
    assert heard[0].need is not None
    assert heard[0].need.need.ready == 7
    assert heard[0].tag != first.tag


def test_a_challenge_is_told_once(desk: Desk, need: Path) -> None:
    node, name = desk.node(), "ab" * 32
    assert ask(desk, node).challenge == ""
    desk.client(desk.validator()).say(node.address, {"say": "ask", "challenge": name, "side": 64})
    assert ask(desk, node, wait=30).challenge == name
    heard: list[News] = []
    thread = threading.Thread(target=lambda: heard.append(ask(desk, node, challenge=name, wait=1)))
    thread.start()
    wait_until(lambda: desk.hub.bells.waits(("challenge", node.address)), deadline=10, what="it waits")
    thread.join(10)
    assert heard[0].challenge == name


@pytest.mark.parametrize(
    "query",
    ["mark=zz", "mark=" + "ab" * 33, "need=x", "need=" + "a" * 17, "challenge=1", "also=0x1", "also=" + "a" * 1000,
     "after=-1", "wait=61", "also=%00"],
)  # fmt: skip
def test_nonsense_is_refused(desk: Desk, query: str) -> None:
    assert desk.get(f"nodes/{Key.generate().address}?{query}".split("?")[0]).status_code == 200
    name, _, value = query.partition("=")
    assert desk.get(f"nodes/{Key.generate().address}", **{name: value}).status_code == 422
    assert desk.get("nodes/0x12").status_code == 422


# ---- where a reader goes on ----------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "hub.sqlite")


def fill(database: Database, *entries: bytes) -> int:
    for entry in entries:
        assert database.add_receipt(entry * 32, "0x", entry, 5)
    return database.newest("receipts")


def test_a_reader_goes_on_after_the_entry_it_knows_also_where_it_was_forgotten(database: Database) -> None:
    last, digest = fill(database, b"a", b"b"), sha256(b"b").digest()
    assert database.start("receipts", last, digest) == last
    while database.forget_before(10, pays=False):
        pass
    assert database.start("receipts", last, digest) == last
    assert database.start("receipts", last + 1, digest) == 0, "it never came so far: a copy of earlier was restored"


def test_a_reader_begins_anew_where_another_entry_stands(database: Database) -> None:
    last = fill(database, b"a", b"b")
    assert database.start("receipts", last, sha256(b"c").digest()) == 0
    assert database.start("receipts", last - 1, sha256(b"a").digest()) == last - 1
    assert database.start("opinions", 2**61, b"") == 2**61, "who names no entry is believed"


def test_a_rebuilt_database_is_heard_in_full_by_who_followed_the_old_one(tmp_path: Path, database: Database) -> None:
    last = fill(database, b"a", b"b")
    database.close()
    rebuilt = Database.anew(tmp_path / "hub.sqlite")
    fill(rebuilt, b"a", b"b", b"c")
    start = rebuilt.start("receipts", last, sha256(b"b").digest())
    assert [data for _, data in rebuilt.receipts(start, 10)] == [b"a", b"b", b"c"]
    rebuilt.close()


def test_a_database_of_an_earlier_version_knows_whose_its_receipts_are(tmp_path: Path, desk: Desk) -> None:
    node = desk.node()
    receipt = desk.receipt(Key.generate(), desk.commit(node, b"file"))
    old = sqlite3.connect(tmp_path / "old.sqlite")
    old.executescript(
        "CREATE TABLE receipts (id INTEGER PRIMARY KEY AUTOINCREMENT, submission BLOB NOT NULL, validator TEXT NOT NULL,"
        " receipt BLOB NOT NULL, time INTEGER NOT NULL, UNIQUE (submission, validator))"
    )
    for number, data in enumerate((receipt, b"no JSON")):
        old.execute("INSERT INTO receipts VALUES (?, ?, '0x', ?, 1)", (7 + number, bytes([number]), data))
    old.commit()
    old.close()
    for _ in range(2):  # and is opened again
        database = Database(tmp_path / "old.sqlite")
        assert database.receipts_of([node.address], 0, 10) == [(7, receipt)]
        database.close()


def test_what_changes_every_moment_is_told_to_a_few_at_once(desk: Desk, need: Path) -> None:
    """Or every change of what the trainer needs would make each of thousands of nodes ask again."""

    async def told() -> int:
        hub, nodes = desk.hub, [Key.generate().address for _ in range(60)]
        write_json(need, NEED)
        tag = hub._needs(need)[0]
        polls = [asyncio.create_task(hub.news([node], 0, b"", "", tag, 30, need)) for node in nodes]
        while len(hub.bells) < 3 * len(nodes):
            await asyncio.sleep(0.01)
        write_json(need, {**NEED, "ready": 1})
        while not any(poll.done() for poll in polls):
            await asyncio.sleep(0.01)
        done = sum(poll.done() for poll in polls)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        return done

    assert 1 <= asyncio.run(told()) <= 12


def test_receipts_and_requests_for_opinions_come_over_one_request_that_waits_for_either(desk: Desk) -> None:
    said, asked = Mark(desk.database.newest("receipts")), Mark(desk.database.newest("opinions"))
    client = desk.client()
    assert client.heard(said, asked) == Heard([], [])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.heard, said, asked, wait=30)
        wait_until(lambda: len(desk.hub.bells) == 2, deadline=20, what="it waits for both")
        desk.database.add_opinion(b"\x07" * 32, "0x", desk.now())
        waiting_too = desk.client().heard(said, asked)
        assert [submission for _, submission in waiting_too.opinions] == [b"\x07" * 32]
        node, validator = desk.node(), desk.validator()
        receipt = desk.receipt(validator, desk.commit(node, b"x"))
        desk.client(validator).post_receipt(receipt)
        told = waiting.result(timeout=20)
    assert ([data for _, data in told.receipts], told.opinions) == ([receipt], waiting_too.opinions)
