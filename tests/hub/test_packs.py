"""Small objects of past steps lie in packs: nothing is lost on the way there, and they are read as if they lay where they did."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from protocol import canonical
from protocol.errors import HashMismatch, Malformed, PreflightError, Unavailable
from tests.hub.cloud import Cloud, archived
from tests.hub.desk import some_file
from trainer.hub import packs as packs_module
from trainer.hub import store as store_module
from trainer.hub.archive import ArchivedStore
from trainer.hub.packs import opened, write
from trainer.hub.store import Store

OLD = 1_000_000_000.0
PAST = OLD + 1000


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four are a pack."""
    monkeypatch.setattr(store_module, "_LEAST", 4)


def put(store: Store, kind: str, data: bytes, age: int = 0) -> str:
    """Something stored that many seconds after OLD."""
    name = hashlib.sha256(data).hexdigest() + ("" if kind == "files" else ".json")
    store.put(kind, name, data)
    os.utime(store.root / kind / name, (OLD + age, OLD + age))
    return name


def filled(store: Store, count: int = 6) -> list[bytes]:
    """Files of a past step."""
    made = [some_file(100 + number) for number in range(count)]
    for number, data in enumerate(made):
        put(store, "files", data, number)
    return made


def root_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def read(store: Store, data: bytes) -> bytes | None:
    path = asyncio.run(store.fetch(root_of(data)))
    return None if path is None else path.read_bytes()


def loose(store: Store, kind: str = "files") -> int:
    return len(list((store.root / kind).iterdir()))


def packed(store: Store) -> list[Path]:
    return sorted((store.root / "packs").iterdir())


def test_files_of_past_steps_become_one_and_are_read_as_before(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = filled(store)
    assert store.pack(PAST) == 6
    assert (loose(store), len(packed(store))) == (0, 1)
    for again in (store, Store(tmp_path)):
        assert all(again.holds(root_of(data)) for data in made)
        assert [read(again, data) for data in made] == made
        assert not again.holds(bytes(32))
        assert asyncio.run(again.fetch(bytes(32))) is None


def test_what_is_young_large_or_little_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_SMALL", 103)
    store = Store(tmp_path)
    made = filled(store)  # of 100 to 105 bytes
    assert store.pack(OLD + 3) == 0, "three are too few"
    assert store.pack(PAST) == 4, "two are too large"
    assert loose(store) == 2
    young = [some_file(50) for _ in range(8)]
    for data in young:
        store.put("files", root_of(data).hex(), data)
    assert store.pack(PAST) == 0
    assert [read(store, data) for data in made + young] == made + young


def test_receipts_are_listed_in_their_order_wherever_they_lie(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [b'{"n":%d}' % number for number in range(10)]
    for number in (3, 1, 0, 2):
        put(store, "receipts", made[number], number)
        store.note_arrival(made[number], number)
    for path in (store.root / "arrivals").iterdir():
        os.utime(path, (OLD, OLD))
    assert store.pack(PAST) == 8
    for number in (9, 5, 4):
        put(store, "receipts", made[number], number)
    for again in (store, Store(tmp_path)):
        assert [data for _, data in again.objects("receipts")] == [made[number] for number in (0, 1, 2, 3, 4, 5, 9)]
        assert again.lost_receipts() == []
        assert again.arrival(made[2]) == 2
        again.note_arrival(made[2], 99)
        assert again.arrival(made[2]) == 2, "the first time stands"


def test_receipts_that_came_and_are_gone_are_named_wherever_their_arrival_lies(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [b'{"n":%d}' % number for number in range(8)]
    for data in made:
        store.note_arrival(data, 1)
    for path in (store.root / "arrivals").iterdir():
        os.utime(path, (OLD, OLD))
    for number in range(3):
        put(store, "receipts", made[number])
    store.pack(PAST)
    put(store, "receipts", made[3])
    store.note_arrival(b"{}", 1)
    assert store.lost_receipts() == sorted(root_of(data).hex() for data in (*made[4:], b"{}"))


@pytest.mark.parametrize("moment", ["writing", "before it is renamed", "after it was renamed", "while the members go"])
def test_a_crash_while_packing_loses_nothing_and_the_next_time_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Killed(BaseException):
        pass

    store = Store(tmp_path)
    made = filled(store)

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        match moment:
            case "writing":
                patch.setattr(packs_module.os, "fsync", killed)
            case "before it is renamed":
                patch.setattr(store_module.os, "replace", killed)
            case "after it was renamed":
                patch.setattr(store_module, "_sync_folder", killed)
            case _:
                unlink, gone = Path.unlink, []

                def two(path: Path, missing_ok: bool = False) -> None:
                    if path.parent.name == "files":
                        gone.append(path)
                        if len(gone) > 2:
                            raise Killed
                    unlink(path, missing_ok=missing_ok)

                patch.setattr(Path, "unlink", two)
        with pytest.raises(Killed):
            store.pack(PAST)
    again = Store(tmp_path)
    assert [read(again, data) for data in made] == made
    for data in made:
        path = again.file(root_of(data))
        if path.exists():
            os.utime(path, (OLD, OLD))
    again.pack(PAST)
    assert (loose(again), len(packed(again))) == (0, 1)
    assert [read(Store(tmp_path), data) for data in made] == made


def test_a_disk_that_is_full_packs_nothing_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    made = filled(store)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "_SPARE", 1 << 60)
        with pytest.raises(PreflightError):
            store.pack(PAST)
    assert [read(store, data) for data in made] == made
    assert packed(store) == []


def test_a_pack_of_files_goes_when_none_of_them_is_needed_and_one_of_receipts_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = filled(store)
    for number in range(4):
        put(store, "receipts", b"%d" % number)
    store.pack(PAST)
    roots = {root_of(data).hex() for data in made}
    assert store.remove_files_before(OLD + 3) == set(), "some are younger"
    assert store.remove_files_before(PAST, lambda root: root == root_of(made[2])) == set(), "one is in a case"
    assert read(store, made[0]) == made[0]
    os.utime(store.file(root_of(made[0])), (OLD, OLD))
    assert store.remove_files_before(PAST) == roots
    assert not any(store.holds(root_of(data)) for data in made)
    assert len(packed(store)) == 1
    assert len(list(Store(tmp_path).objects("receipts"))) == 4


def test_a_file_that_comes_again_is_the_newer_one_and_outlives_its_pack(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = filled(store)
    store.pack(PAST)
    store.put("files", root_of(made[0]).hex(), made[0])
    assert root_of(made[0]).hex() not in store.remove_files_before(PAST)
    assert read(store, made[0]) == made[0]
    assert not store.holds(root_of(made[1]))


def lose_catalogue(store: Store) -> None:
    store.close()
    (store.root / store_module.CATALOGUE).unlink()


def spoil(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_what_is_damaged_is_not_served_and_the_rest_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = filled(store)
    store.pack(PAST)
    spoil(packed(store)[0], -1)
    assert read(store, made[5]) is None
    assert [read(store, data) for data in made[:5]] == made[:5]


@pytest.mark.parametrize("place", [0, 9, 40])
def test_a_pack_whose_index_is_damaged_is_none(tmp_path: Path, place: int) -> None:
    store = Store(tmp_path)
    made = filled(store)
    store.pack(PAST)
    spoil(packed(store)[0], place)
    again = Store(tmp_path)
    assert [read(again, data) for data in made] == made, "the catalogue says where they are"
    lose_catalogue(again)
    for path in (tmp_path / "files").iterdir():
        path.unlink()
    assert not Store(tmp_path).holds(root_of(made[0]))


def index(*members: Any) -> bytes:
    return canonical.encode({"members": list(members)})


def entry(**changes: Any) -> dict[str, Any]:
    return {"name": "files/ab", "size": 1, "time": 1, "sha256": "00", **changes}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{}", index(), index(entry(size=-1)), index(entry(size="1")), index(entry(size=True)), index(entry(time=-1)),
        index(entry(name="../../etc/passwd")), index(entry(name="files/../x")), index(entry(name=1)), index(entry(more=1)),
        index(entry(), entry()), index(entry(), entry(name="receipts/cd.json")), index(entry(size=1 << 40)), index(7),
        index(entry(start=5)), index(entry(name="vouchers/0xab.json")),
    ],
)  # fmt: skip
def test_an_index_that_makes_no_sense_is_refused(text: bytes) -> None:
    data = packs_module._HEAD.pack(packs_module._MAGIC, len(text)) + text
    with pytest.raises(Malformed):
        opened(hashlib.sha256(text).hexdigest(), lambda start, end: data[start:end])


def test_a_pack_under_another_name_or_cut_short_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"a")
    pack = write(tmp_path / "pack", [("files/ab", source)])
    data = (tmp_path / "pack").read_bytes()
    assert opened(pack.name, lambda start, end: data[start:end]) == pack
    with pytest.raises(HashMismatch):
        opened("00" * 32, lambda start, end: data[start:end])
    for size in (0, 5, 20):
        with pytest.raises((Malformed, HashMismatch)):
            opened(pack.name, lambda start, end: data[:size][start:end])  # noqa: B023


# ---- in a bucket -----------------------------------------------------------------------------------------------------------


def names_in(store: ArchivedStore) -> set[str]:
    return {one.name.partition("/")[0] for one in store._bucket.objects()}


def test_a_pack_takes_the_place_of_its_members_in_the_bucket_and_is_read_by_range(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store")
    made = filled(store)
    receipts = [b"%d" % number for number in range(4)]
    for data in receipts:
        put(store, "receipts", data)
    store.turn()
    assert names_in(store) == {"files", "receipts"}
    assert store.pack(PAST) == 10
    assert names_in(store) == {"files", "receipts"}, "nothing leaves before the pack is there"
    store.turn()
    assert names_in(store) == {"packs"}
    empty = archived(tmp_path / "empty")
    assert {data for _, data in empty.objects("receipts")} == set(receipts)
    assert len(packed(empty)) == 1, "of receipts only"
    assert [read(empty, data) for data in made] == made
    other = archived(tmp_path / "other")
    assert other.remove_files_before(PAST) == {root_of(data).hex() for data in made}
    assert len(list(other._bucket.objects())) == 1


def test_a_bucket_that_is_away_while_packing_loses_nothing(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store")
    made = filled(store)
    store.turn()
    with cloud.away():
        store.pack(PAST)
        with pytest.raises(Unavailable):
            store.turn()
        assert [read(store, data) for data in made] == made
    store = archived(tmp_path / "store")  # killed and started again
    store.turn()
    assert names_in(store) == {"packs"}
    assert [read(archived(tmp_path / "other"), data) for data in made] == made


def test_a_hub_that_was_killed_between_the_pack_and_its_members_ends_it_later(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived(tmp_path / "store")
    made = filled(store)
    store.turn()
    store.pack(PAST)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_replace", lambda name: None)
        store.turn()
    assert names_in(store) == {"files", "packs"}
    again = archived(tmp_path / "elsewhere")
    assert names_in(again) == {"packs"}
    assert [read(again, data) for data in made] == made


def test_the_folder_lets_packs_of_files_go_that_the_bucket_has(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store", cache_bytes=0)
    made = filled(store)
    for number in range(4):
        put(store, "receipts", b"%d" % number)
    store.pack(PAST)
    for path in packed(store):
        os.utime(path, (time.time() - 3600,) * 2)
    store.turn()
    assert len(packed(store)) == 1
    assert len(list(store.objects("receipts"))) == 4
    assert read(store, made[3]) == made[3]
    with cloud.away(), pytest.raises(Unavailable):
        read(store, made[4])


def test_a_pack_that_this_disk_has_spoiled_is_read_from_the_bucket(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store")
    made = filled(store)
    store.pack(PAST)
    store.turn()
    spoil(packed(store)[0], 20)
    lose_catalogue(store)
    again = archived(tmp_path / "store")
    assert [read(again, data) for data in made] == made
