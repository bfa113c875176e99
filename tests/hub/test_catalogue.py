"""The catalogue of packs lies on the disk: a start opens what is new, and what is lost of it comes back from the packs."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from protocol.errors import IntegrityError, Unavailable
from tests.hub.cloud import Cloud, archived
from tests.hub.test_packs import OLD, PAST, filled, packed, put, read, root_of
from trainer.hub import packs as packs_module
from trainer.hub import store as store_module
from trainer.hub.catalogue import Packs
from trainer.hub.packs import Member, Pack
from trainer.hub.store import Store


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four are a pack."""
    monkeypatch.setattr(store_module, "_LEAST", 4)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of packs whose index is read, as it happens."""
    names: list[str] = []
    really = packs_module.opened

    def noted(name: str, read: packs_module.Read) -> Pack:
        names.append(name)
        return really(name, read)

    monkeypatch.setattr(packs_module, "opened", noted)
    return names


def closed(store: Store) -> Path:
    """The catalogue of a hub that has ended."""
    store.close()
    return store.root / "packs.sqlite"


def all_names(store: Store) -> set[str]:
    return {path.name for path in packed(store)}


def test_a_start_opens_only_packs_that_are_new(tmp_path: Path, opened: list[str]) -> None:
    store, other = Store(tmp_path / "a"), Store(tmp_path / "b")
    made = filled(store)
    store.pack(PAST)
    more = [b"more %d" % number for number in range(4)]
    for data in more:
        put(other, "files", data)
    other.pack(PAST)
    closed(store)
    assert opened == []
    closed(Store(store.root))
    assert opened == []
    (new,) = packed(other)
    shutil.copy(new, store.root / "packs")
    again = Store(store.root)
    assert opened == [new.name]
    assert [read(again, data) for data in made + more] == made + more


def test_members_are_not_held_in_memory(tmp_path: Path) -> None:
    def held() -> int:
        gc.collect()
        return sum(isinstance(one, Member | Pack) for one in gc.get_objects())

    before = held()
    store = Store(tmp_path)
    filled(store)
    store.pack(PAST)
    assert held() == before
    again = Store(tmp_path)
    assert held() == before
    assert again.root == store.root


def lose(path: Path, packs: Iterable[Path]) -> None:
    path.unlink()


def overwrite(path: Path, packs: Iterable[Path]) -> None:
    path.write_bytes(b"no database at all" * 1000)


def cut_off(path: Path, packs: Iterable[Path]) -> None:
    path.write_bytes(path.read_bytes()[:100])


def empty(path: Path, packs: Iterable[Path]) -> None:
    path.write_bytes(b"")


def lack_one(path: Path, packs: Iterable[Path]) -> None:
    """As a hub leaves it that is killed between a pack and its entry."""
    with closing(Packs(path)) as catalogue:
        catalogue.remove(next(iter(packs)).name)


def name_one_that_is_gone(path: Path, packs: Iterable[Path]) -> None:
    with closing(Packs(path)) as catalogue:
        catalogue.add(Pack("ab" * 32, (Member("files/" + "cd" * 32, 5, 1, "00" * 32, 100),)))


def mistake_a_size(path: Path, packs: Iterable[Path]) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE packs SET size = size + 1")


@pytest.mark.parametrize(
    "harm", [lose, overwrite, cut_off, empty, lack_one, name_one_that_is_gone, mistake_a_size], ids=lambda one: one.__name__
)  # fmt: skip
def test_a_catalogue_that_is_lost_wrong_or_damaged_costs_nothing(
    tmp_path: Path, harm: Callable[[Path, Iterable[Path]], None]
) -> None:
    store = Store(tmp_path)
    made = filled(store)
    receipts = [b"%d" % number for number in range(5)]
    for number, data in enumerate(receipts):
        put(store, "receipts", data, number)
    store.pack(PAST)
    harm(closed(store), packed(store))
    again = Store(tmp_path)
    assert [read(again, data) for data in made] == made
    assert [data for _, data in again.objects("receipts")] == receipts
    assert again.packs.names() == all_names(again)
    assert not again.holds(bytes.fromhex("cd" * 32))
    assert again.remove_files_before(PAST) == set(), "they were taken out just now"
    again.pack(PAST)


def test_a_hub_that_is_killed_between_a_pack_and_its_entry_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    store = Store(tmp_path)
    made = filled(store)
    with monkeypatch.context() as patch:
        patch.setattr(Packs, "add", killed)
        with pytest.raises(Killed):
            store.pack(PAST)
    assert len(packed(store)) == 1
    again = Store(tmp_path)
    assert again.packs.names() == all_names(again)
    again.pack(PAST)
    assert not list((tmp_path / "files").iterdir())
    assert [read(again, data) for data in made] == made


def test_a_catalogue_that_is_damaged_within_is_made_anew_by_the_next_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = filled(store)
    store.pack(PAST)
    path = closed(store)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        size = db.execute("PRAGMA page_size").fetchone()[0]
        pages = [
            db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()[0]
            for name in ("members", "members_by_name")
        ]
    data = bytearray(path.read_bytes())
    for page in pages:
        data[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(data)
    again = Store(tmp_path)
    with pytest.raises(IntegrityError, match="made anew"):
        again.holds(root_of(made[0]))
    closed(again)
    again = Store(tmp_path)
    assert [read(again, data) for data in made] == made


def test_a_pack_that_is_removed_leaves_the_catalogue_and_what_another_has_too_stays(tmp_path: Path) -> None:
    catalogue = Packs(tmp_path / "packs.sqlite")
    both, one = (Member(f"files/{letter * 64}", 5, 1, "00", 100) for letter in "ab")
    first, second = Pack("01", (both, one)), Pack("02", (both,))
    for pack in (first, second):
        catalogue.add(pack)
        catalogue.add(pack)
    assert [catalogue.get(pack.name) for pack in (first, second)] == [first, second]
    catalogue.remove("02")
    assert catalogue.find(both.name) == ("01", both)
    assert catalogue.get("02") is None
    catalogue.remove("01")
    assert (both.name in catalogue, one.name in catalogue) == (False, False)
    assert catalogue.names() == set()


def test_members_are_found_while_another_pack_is_being_entered(tmp_path: Path) -> None:
    catalogue = Packs(tmp_path / "packs.sqlite")
    first, second = (Pack(name, (Member(f"files/{name}", 5, 1, "00", 100),)) for name in ("01", "02"))
    catalogue.add(first)
    with catalogue._writing, catalogue._writer as db:
        db.execute("DELETE FROM members")
        assert "files/01" in catalogue
    catalogue.add(second)
    assert ("files/01" in catalogue, "files/02" in catalogue) == (False, True)


def test_members_are_found_by_an_index_of_their_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert "files/01" not in store.packs
    plan = store.packs._db.execute("EXPLAIN QUERY PLAN SELECT 1 FROM members WHERE name = ?", ("files/01",)).fetchall()
    assert "members_by_name" in plan[0][3]


def test_packs_of_files_are_due_when_their_newest_is(tmp_path: Path) -> None:
    catalogue = Packs(tmp_path / "packs.sqlite")
    times = (round(OLD * 1e6), round(OLD * 1e6) + 5_000_000)
    for kind, name in (("files", "01"), ("receipts", "02")):
        catalogue.add(Pack(name, tuple(Member(f"{kind}/{time}", 0, time, "00", 100) for time in times)))
    assert catalogue.files_before(OLD + 5) == []
    assert catalogue.files_before(OLD + 5.1) == ["01"]


# ---- in a bucket -----------------------------------------------------------------------------------------------------------


def test_a_start_does_not_open_packs_of_the_bucket_that_it_knows(
    cloud: Cloud, tmp_path: Path, opened: list[str]
) -> None:
    store = archived(tmp_path / "store")
    made = filled(store)
    for number in range(4):
        put(store, "receipts", b"%d" % number)
    store.pack(PAST)
    store.turn()
    for path in packed(store):  # of files, as when the folder is full; of receipts, lost
        path.unlink()
    closed(store)
    again = archived(tmp_path / "store")
    (receipts,) = packed(again)
    assert opened == [receipts.name], "of receipts comes back whole"
    assert [read(again, data) for data in made] == made
    assert len(list(again.objects("receipts"))) == 4


def test_packs_that_only_an_unreachable_bucket_has_are_waited_for(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store")
    made = filled(store)
    store.pack(PAST)
    store.turn()
    packed(store)[0].unlink()
    closed(store)
    with cloud.away():
        again = archived(tmp_path / "store")
        with pytest.raises(Unavailable):
            read(again, made[0])
    again.turn()
    assert [read(again, data) for data in made] == made


def test_packs_that_have_left_the_bucket_leave_the_catalogue(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store")
    made = filled(store)
    store.pack(PAST)
    store.turn()
    packed(store)[0].unlink()
    closed(store)
    assert archived(tmp_path / "other").remove_files_before(PAST) == {root_of(data).hex() for data in made}
    again = archived(tmp_path / "store")
    assert again.packs.names() == set()
    assert not again.holds(root_of(made[0]))
    closed(again)
    assert Store(tmp_path / "store").packs.names() == set()


def test_a_pack_that_was_cut_short_since_it_was_entered_comes_back_from_the_bucket(
    cloud: Cloud, tmp_path: Path
) -> None:
    store = archived(tmp_path / "store")
    made = filled(store)
    store.pack(PAST)
    store.turn()
    os.truncate(packed(store)[0], 20)
    closed(store)
    again = archived(tmp_path / "store")
    assert [read(again, data) for data in made] == made
