"""A bucket as the hub's store, over real HTTP: nothing is lost, nobody waits for it, and nothing wrong comes out of it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from swarm.anvil import Anvil
from swarm.pace import Patience
from swarm.processes import wait_until
from swarm.world import World

from protocol.errors import ConfigError, PreflightError, Unavailable
from protocol.hub.client import HubClient
from protocol.identity import Key
from protocol.shell.connection import is_fatal
from tests.hub.cloud import SECRET, Cloud, archived, bucket, point_at
from tests.hub.desk import damaged, open_desk, run_settings, small_spec, some_file
from tests.hub.shop import Shop
from tests.hub.test_service import put, running
from trainer.config import HubSettings, Layout, RunSettings
from trainer.hub import archive as archive_module
from trainer.hub.archive import ArchivedStore
from trainer.hub.service import HubService, open_store, rebuild
from trainer.hub.store import Store
from trainer.location import Location

LONG_AGO = 1_000_000_000.0


def receive(store: Store, data: bytes) -> bytes:
    async def parts() -> AsyncIterator[bytes]:
        yield data

    root = hashlib.sha256(data).digest()
    asyncio.run(store.receive(root, parts(), cap=len(data)))
    return root


def age(path: Path, seconds: float = 3600) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


# ---- in and out ----------------------------------------------------------------------------------------------------------


def test_an_uploaded_file_and_its_receipt_are_in_the_bucket_after_a_turn(shop: Shop) -> None:
    root, data = shop.deliver()
    assert shop.store.waiting == 2
    assert shop.store.turn() is False
    assert shop.cloud.read(f"files/{root.hex()}") == data
    (stored,) = (shop.store.root / "stored").iterdir()
    assert shop.cloud.read(f"stored/{stored.name}") == stored.read_bytes()
    assert shop.store.waiting == 0


def test_a_file_that_only_the_bucket_has_is_served_in_full_and_in_ranges(shop: Shop) -> None:
    root, data = shop.deliver(5000)
    shop.store.turn()
    shop.lose_locally(root)
    assert shop.serve(root).content == data
    shop.lose_locally(root)
    part = shop.serve(root, Range="bytes=1000-1999")
    assert (part.status_code, part.content) == (206, data[1000:2000])


def test_a_file_of_many_parts_goes_there_and_back(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store")
    data = os.urandom(21 << 20)
    root = receive(store, data)
    store.turn()
    assert cloud.read(f"files/{root.hex()}") == data
    other = archived(tmp_path / "other")
    path = asyncio.run(other.fetch(root))
    assert path is not None
    assert path.read_bytes() == data


def test_many_who_ask_for_a_file_at_once_cost_one_download(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived(tmp_path / "store")
    root = receive(store, some_file())
    store.turn()
    store.file(root).unlink()
    gets: list[str] = []
    original = store._bucket.get

    def get(one: Any, target: Path) -> bool:
        gets.append(one.name)
        return original(one, target)

    monkeypatch.setattr(store._bucket, "get", get)

    async def ask() -> list[Path | None]:
        return await asyncio.gather(*(store.fetch(root) for _ in range(20)))

    assert set(asyncio.run(ask())) == {store.file(root)}
    assert gets == [f"files/{root.hex()}"]


def test_what_was_never_uploaded_costs_no_request(shop: Shop) -> None:
    """Or any stranger could run up the bill."""
    with shop.cloud.away():
        assert shop.serve(b"\xab" * 32).status_code == 404


# ---- a bucket that is away or refuses --------------------------------------------------------------------------------------


def test_a_bucket_that_is_away_costs_nobody_anything(shop: Shop, tmp_path: Path) -> None:
    old_root, old_data = shop.deliver()
    shop.store.turn()
    shop.lose_locally(old_root)
    with shop.cloud.away():
        root, data = shop.deliver()  # in time, with a signed receipt
        with pytest.raises(Unavailable):
            shop.store.turn()
        assert shop.store.waiting == 2
        assert shop.serve(root).content == data
        assert (
            shop.serve(old_root).status_code == 503
        )  # to be asked again: nothing that a validator would hold against a node
        with pytest.raises(Unavailable):
            shop.desk.client().download(old_root, tmp_path / "x", cap=5000)
    assert shop.serve(old_root).content == old_data
    shop.store.turn()
    assert shop.cloud.read(f"files/{root.hex()}") == data


def test_what_a_killed_hub_had_not_brought_there_goes_there_after_its_restart(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store")
    root = receive(store, b"rollouts")
    store.put("receipts", "ab.json", b"{}")
    again = archived(tmp_path / "store")
    again.turn()
    assert (cloud.read(f"files/{root.hex()}"), cloud.read("receipts/ab.json")) == (b"rollouts", b"{}")


def test_a_hub_that_starts_while_the_bucket_is_away_serves_and_catches_up(
    anvil: Anvil, cloud: Cloud, tmp_path: Path
) -> None:
    first = archived(tmp_path / "store")
    old = some_file()
    old_root = receive(first, old)
    first.turn()
    first.file(old_root).unlink()
    with cloud.away():
        store = archived(tmp_path / "store")
        with open_desk(anvil, tmp_path, store=store) as desk:
            shop = Shop(desk, store, cloud)
            root, data = shop.deliver()
            assert shop.serve(root).content == data
            assert shop.serve(old_root).status_code == 503  # perhaps the bucket has it: not a 404, which would count
            with pytest.raises(Unavailable):
                store.turn()
            cloud.start()
            store.turn()
            assert shop.serve(old_root).content == old
            assert shop.serve(b"\xab" * 32).status_code == 404
            assert cloud.read(f"files/{root.hex()}") == data
            cloud.stop()


def test_rebuilding_without_the_bucket_leaves_the_database_alone(anvil: Anvil, cloud: Cloud, tmp_path: Path) -> None:
    settings, _ = run_settings(World.fresh(anvil, small_spec().digest), tmp_path / "run.toml")
    settings = settings.model_copy(update={"hub": HubSettings(store="s3://rollouts/mine")})
    layout = Layout(tmp_path / "run.toml", settings)
    layout.hub.mkdir(parents=True)
    (layout.hub / "hub.sqlite").write_bytes(b"precious")
    with cloud.away(), pytest.raises(Unavailable):
        rebuild(settings, layout, small_spec(), Key.generate())
    assert (layout.hub / "hub.sqlite").read_bytes() == b"precious"


def test_what_changes_while_it_is_on_its_way_goes_there_again(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived(tmp_path / "store")
    store.put("vouchers", "0xab.json", b"old")
    original = store._bucket.put

    def slow(name: str, source: Path) -> None:
        original(name, source)
        monkeypatch.setattr(store._bucket, "put", original)
        store.put("vouchers", "0xab.json", b"new")

    monkeypatch.setattr(store._bucket, "put", slow)
    store.turn()
    assert store.waiting == 1
    store.turn()
    assert cloud.read("vouchers/0xab.json") == b"new"


def test_credentials_that_expire_end_no_running_hub(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    old_root, _ = shop.deliver()
    shop.store.turn()
    shop.lose_locally(old_root)
    with shop.cloud.refusing():
        shop.deliver()
        with pytest.raises(Unavailable, match="refuses these credentials") as caught:
            shop.store.turn()
        assert not is_fatal(caught.value)
        with pytest.raises(Unavailable):
            shop.store.remove_files_before(time.time() + 3600)
        assert shop.serve(old_root).status_code == 503
    shop.store.put("receipts", "ab.json", b"{}")
    shop.store.turn()
    assert SECRET not in caplog.text


def test_a_silent_bucket_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        point_at(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        patience = Patience(10)
        with pytest.raises(Unavailable, match="no answer in time"):
            bucket(timeout=0.5).require_writable()
        assert not patience.ended()


def test_a_fetch_that_takes_too_long_is_answered_and_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    root, data = shop.deliver()
    shop.store.turn()
    shop.lose_locally(root)
    go_on, original = threading.Event(), shop.store._bucket.get

    def slow(one: Any, target: Path) -> bool:
        assert go_on.wait(10)
        return original(one, target)

    monkeypatch.setattr(shop.store._bucket, "get", slow)
    monkeypatch.setattr(archive_module, "_FETCH_SECONDS", 0.2)
    assert shop.serve(root).status_code == 503
    go_on.set()
    wait_until(lambda: shop.store.file(root).exists(), deadline=10, what="the fetch has ended")
    assert shop.serve(root).content == data


# ---- what the hub starts with ----------------------------------------------------------------------------------------------


def test_a_missing_bucket_is_said_at_once_with_what_to_do(cloud: Cloud, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no bucket nowhere") as caught:
        archived(tmp_path / "store", location=Location("nowhere", "mine"))
    assert "create it" in caught.value.hint


def test_wrong_credentials_are_said_at_once_with_what_to_do_and_without_them(cloud: Cloud, tmp_path: Path) -> None:
    with cloud.refusing(), pytest.raises(ConfigError, match="refuses these credentials") as caught:
        archived(tmp_path / "store")
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    assert SECRET not in f"{caught.value!r}{caught.value.hint}"
    assert caught.value.__cause__ is None


def test_a_bucket_without_encryption_must_be_asked_for(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(ConfigError, match="not https"):
        bucket()


@pytest.mark.parametrize(
    "place", ["s3://", "s3:///x", "s3://me:pw@host/x", "gs://bucket", "s3://Bucket", "s3://b?x=1", ""]
)
def test_a_store_that_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(ValidationError, match="expected a folder or s3://"):
        HubSettings(store=place)


def test_the_store_is_where_the_settings_say(tmp_path: Path) -> None:
    assert Location.parse("s3://b-1/x/y/") == Location("b-1", "x/y")
    assert HubSettings().bucket is None
    assert HubSettings(store="rollouts").bucket is None
    settings = RunSettings.model_validate(
        {
            "chain": {"contract": "0x", "chain_id": 1, "run": 1},
            "trainer": {"steps": 1},
            "hub": {"store": "rollouts"},
        }
    )
    assert Layout(tmp_path / "run.toml", settings).store == tmp_path / "rollouts"
    assert HubSettings(store="s3://rollouts").bucket == Location("rollouts", "")


def test_an_empty_folder_is_filled_from_the_bucket(anvil: Anvil, cloud: Cloud, tmp_path: Path) -> None:
    """The hub's machine is gone: bucket and chain are enough, and receipts come back in their order."""
    folder = tmp_path / "old/output/hub"
    folder.mkdir(parents=True)
    spec = small_spec()
    with open_desk(anvil, folder, spec=spec) as desk:
        settings, _ = run_settings(desk.world, tmp_path / "old/run.toml")
        settings = settings.model_copy(update={"hub": HubSettings(store="s3://rollouts/mine")})
        layout = Layout(tmp_path / "old/run.toml", settings)
        node, validators = desk.node(), [desk.validator() for _ in range(3)]
        data = some_file()
        ref = desk.commit(node, data)
        assert desk.upload(node, ref, data).status_code == 200
        for index, validator in enumerate(validators):
            receipt = desk.receipt(validator, ref)
            desk.client(validator).post_receipt(receipt)
            path = desk.store.root / "receipts" / f"{hashlib.sha256(receipt).hexdigest()}.json"
            os.utime(path, (LONG_AGO + 10 * index,) * 2)
        told = [one for _, one in desk.database.receipts(0, 100)]
        desk.database.close()
        store = open_store(settings, layout)  # what was a folder so far
        assert isinstance(store, ArchivedStore)
        store.turn()
        new = Layout(tmp_path / "new/run.toml", settings)
        found = rebuild(settings, new, spec, desk.key)
        assert (found.files, found.receipts, found.lost, found.lost_receipts) == (1, 3, (), ())
        again = open_store(settings, new)
        assert sorted(one for _, one in again.objects("receipts")) == sorted(told)
        path = asyncio.run(again.fetch(ref.root))
        assert path is not None
        assert path.read_bytes() == data


def test_small_objects_keep_their_order_when_they_come_back(cloud: Cloud, tmp_path: Path) -> None:
    first = archived(tmp_path / "first")
    names = [f"{secret}.json" for secret in ("cc", "aa", "bb")]
    for name in names:
        first.put("receipts", name, name.encode())
        first.turn()
        time.sleep(1.1)  # the bucket's own times have seconds
    assert [name for name, _ in archived(tmp_path / "second").objects("receipts")] == names


def test_names_that_are_not_ours_are_left_alone(cloud: Cloud, tmp_path: Path) -> None:
    for name in ("receipts/.hidden.json", "receipts/deep/er.json", "strange/ab.json", "files/ab.partial"):
        cloud.write(name, b"x")
    cloud.write("receipts/ab.json", b"{}")
    store = archived(tmp_path / "a/store")
    assert [name for name, _ in store.objects("receipts")] == ["ab.json"]
    found = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in found if not name.startswith("packs.sqlite")} == {"ab.json"}


# ---- what is damaged, and room ---------------------------------------------------------------------------------------------


def test_a_damaged_object_is_never_served(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    root, data = shop.deliver()
    shop.store.turn()
    shop.lose_locally(root)
    shop.cloud.write(f"files/{root.hex()}", damaged(data))
    with caplog.at_level(logging.ERROR):
        assert shop.serve(root).status_code == 404
    assert "lost or damaged" in caplog.text
    assert not any("partial" in str(path) for path in shop.store.root.rglob("*") if path.is_file())


def test_the_folder_keeps_to_its_size_and_what_is_not_in_the_bucket(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store", cache_bytes=1500)
    roots = [receive(store, some_file(1000)) for _ in range(3)]
    for number, root in enumerate(roots):
        age(store.file(root), 3600 - number)
    with cloud.away(), pytest.raises(Unavailable):
        store.turn()
    assert all(store.file(root).exists() for root in roots)
    store.turn()
    assert [store.file(root).exists() for root in roots] == [False, False, True]
    assert all(store.holds(root) for root in roots)


def test_a_full_disk_is_cleared_of_what_the_bucket_has_and_of_nothing_else(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived(tmp_path / "store")
    known = receive(store, some_file())
    store.turn()
    fresh = receive(store, some_file())
    again = receive(store, store.file(known).read_bytes())  # stored anew, so it waits for the bucket anew
    for root in (known, fresh):
        age(store.file(root))
    full = SimpleNamespace(free=0)
    with monkeypatch.context() as patch:
        patch.setattr("trainer.hub.store.shutil.disk_usage", lambda _: full)
        with pytest.raises(PreflightError, match="disk is full"):
            receive(store, some_file())
    assert again == known
    assert store.file(known).exists()
    assert store.file(fresh).exists()
    store.turn()
    with monkeypatch.context() as patch:
        free = lambda _: SimpleNamespace(free=0 if store.file(known).exists() else 1 << 40)  # noqa: E731
        patch.setattr("trainer.hub.store.shutil.disk_usage", free)
        receive(store, some_file())
    assert not store.file(known).exists()


def test_old_files_leave_bucket_and_folder_and_receipts_and_other_runs_stay(cloud: Cloud, tmp_path: Path) -> None:
    store = archived(tmp_path / "store")
    other = archived(tmp_path / "other", location=Location("rollouts", "mine").below("31337", "0xab", "2"))
    root, theirs = receive(store, some_file()), receive(other, some_file())
    store.put("receipts", "ab.json", b"{}")
    store.turn()
    other.turn()
    assert store.remove_files_before(time.time() - 3600) == set()
    assert store.remove_files_before(time.time() + 3600) == {root.hex()}
    assert not store.holds(root)
    assert not store.file(root).exists()
    assert cloud.read(f"files/{root.hex()}") is None
    assert cloud.read("receipts/ab.json") == b"{}"
    assert archived(tmp_path / "again", location=other._bucket.location).holds(theirs)


@pytest.mark.parametrize("moment", ["while it arrives", "on its way to the bucket", "after the old one was chosen"])
def test_a_file_committed_again_stays_when_the_old_one_goes(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Two submissions may name one root: the hub has signed that it keeps the file for the second."""
    store = archived(tmp_path / "store")
    data = some_file()
    root = receive(store, data)
    store.turn()
    name = f"files/{root.hex()}"
    store._archived[name] = replace(store._archived[name], modified=LONG_AGO)
    age(store.file(root))
    tidy = lambda: store.remove_files_before(time.time() - 600)  # noqa: E731
    put, delete, arrive = store._bucket.put, store._bucket.delete, Store.receive

    async def arriving(self: Store, *arguments: Any, **named: Any) -> int:
        size = await arrive(self, *arguments, **named)
        tidy()
        return size

    def putting(name: str, source: Path) -> None:
        put(name, source)
        tidy()

    def deleting(names: list[str]) -> None:
        assert names == [name]
        receive(store, data)
        store.turn()
        delete(names)

    with monkeypatch.context() as patch:
        match moment:
            case "while it arrives":
                patch.setattr(Store, "receive", arriving)
                receive(store, data)
            case "on its way to the bucket":
                receive(store, data)
                patch.setattr(store._bucket, "put", putting)
                store.turn()
            case _:
                patch.setattr(store._bucket, "delete", deleting)
                tidy()
    store.turn()
    assert cloud.read(name) == data
    assert archived(tmp_path / "again").holds(root)
    assert store.file(root).read_bytes() == data
    assert tidy() == set()


# ---- the whole hub -----------------------------------------------------------------------------------------------------------


def test_the_running_hub_fills_the_bucket(anvil: Anvil, cloud: Cloud, tmp_path: Path) -> None:
    spec = small_spec()
    world = World.fresh(anvil, spec.digest)
    settings, _ = run_settings(world, tmp_path / "run.toml")
    hub = settings.hub.model_copy(update={"store": "s3://rollouts/mine"})
    settings = settings.model_copy(update={"hub": hub})
    layout = Layout(tmp_path / "run.toml", settings)
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    file = tmp_path / "rollouts.parquet"
    file.write_bytes(b"rollouts")
    with running(HubService(settings, layout, spec, world.trainer.key), layout) as started:
        put(layout, 0)
        wait_until(lambda: started.published() == 0, deadline=20, what="version 0 is out")
        anvil.request("anvil_mine", hex(2))  # the beacon's block, and one that can look back at it
        ref = world.submit(node, 0, 0, hashlib.sha256(b"rollouts").digest())
        now = lambda: world.chain.block().time  # noqa: E731
        client = HubClient(started.told()["url"], world.run, world.chain.domain, key=node, now=now)
        client.upload(ref.submission_id(world.run), ref.root, file, world.trainer.key.address)
        chain = settings.chain
        prefix, name = f"mine/{chain.chain_id}/{chain.contract.lower()}/{chain.run}", f"files/{ref.root.hex()}"
        wait_until(lambda: cloud.read(name, prefix) == b"rollouts", deadline=20, what="it is there")
        wait_until(lambda: started.told()["waiting_for_bucket"] == 0, deadline=20, what="nothing waits any more")
        with cloud.away():
            assert client.stored(ref.submission_id(world.run), world.trainer.key.address) is not None
    assert started.error is None
