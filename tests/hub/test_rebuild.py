"""The database is an index: it can be lost, damaged or thrown away, and comes back from chain and store."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from swarm.anvil import Anvil

from protocol.errors import IntegrityError
from protocol.identity import Key
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.hub.desk import Desk, open_desk, run_settings, some_file
from trainer.hub import store as store_module
from trainer.hub.database import Database
from trainer.hub.service import Rebuilt, rebuild


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a run's hub keeps everything, as trainer.config.Layout says."""
    made = tmp_path / "output/hub"
    made.mkdir(parents=True)
    return made


def rebuilt_in_full(desk: Desk) -> Rebuilt:
    settings, layout = run_settings(desk.world, desk.folder.parent.parent / "run.toml")
    assert layout.hub == desk.folder
    return rebuild(settings, layout, desk.spec, desk.key)


def rebuilt(desk: Desk) -> tuple[int, int]:
    found = rebuilt_in_full(desk)
    return found.files, found.receipts


def filled(desk: Desk) -> tuple[Key, list[SubmissionRef], Key]:
    """Three uploads of a node; a validator accepted two of them and changed its mind on one."""
    node, validator = desk.node(), desk.validator()
    refs = []
    for sequence in range(3):
        data = some_file()
        refs.append(desk.commit(node, data, sequence=sequence))
        assert desk.upload(node, refs[-1], data).status_code == 200
    desk.client(validator).post_receipt(desk.receipt(validator, refs[0]))
    desk.client(validator).post_receipt(desk.receipt(validator, refs[1], Outcome.SOFT))
    desk.client(validator).post_receipt(desk.receipt(validator, refs[1], Outcome.ACCEPT))
    return node, refs, validator


def everything(database: Database, submissions: list[bytes]) -> tuple[list[str | None], list[bytes]]:
    return [database.stored(submission) for submission in submissions], [data for _, data in database.receipts(0, 100)]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    "harm", [lambda path: None, Path.unlink, lambda path: path.write_bytes(b"no database at all" * 100), truncate],
    ids=["unharmed", "lost", "overwritten", "truncated"],
)  # fmt: skip
def test_rebuilding_brings_everything_back(anvil: Anvil, folder: Path, harm: Callable[[Path], object]) -> None:
    with open_desk(anvil, folder) as desk:
        _, refs, _ = filled(desk)
        submissions = [desk.submission(ref) for ref in refs]
        before = everything(desk.database, submissions)
        newest = max(number for number, _ in desk.database.receipts(0, 100))
        desk.database.close()
        harm(folder / "hub.sqlite")
        assert rebuilt(desk) == (3, 2)
        after = Database(folder / "hub.sqlite")
        assert everything(after, submissions) == before
        # Followers remember a number in the old listing: what is new must come after it, or they would never see it.
        assert min(number for number, _ in after.receipts(0, 100)) > newest
        after.close()


def test_rebuilding_trusts_packs_and_not_their_catalogue(
    anvil: Anvil, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_LEAST", 1)
    with open_desk(anvil, folder) as desk:
        filled(desk)
        assert desk.store.pack(time.time() + 60) > 0
        desk.store.close()
        desk.database.close()
        with closing(sqlite3.connect(folder / "store/packs.sqlite")) as db, db:
            assert db.execute("DELETE FROM members").rowcount > 0
        assert rebuilt(desk) == (3, 2)


def test_what_the_chain_does_not_know_or_the_hub_did_not_sign_is_left_out(anvil: Anvil, folder: Path) -> None:
    with open_desk(anvil, folder) as desk:
        node, refs, validator = filled(desk)
        stored = folder / "store/stored"
        receipt = next(stored.iterdir())
        (stored / f"{'ab' * 32}.json").write_text("{}")
        (stored / f"{'cd' * 32}.json").write_text("[[[")
        (stored / f"{'ef' * 32}.json").write_text(receipt.read_text().replace('"size": 1000', '"size": 999'))
        receipts = folder / "store/receipts"
        (receipts / "garbage.json").write_bytes(b"\xff\x00")
        uncommitted = SubmissionRef(node.address, desk.step, 7, bytes(32))
        (receipts / "uncommitted.json").write_bytes(desk.receipt(validator, uncommitted))
        (folder / "store/files" / refs[0].root.hex()).unlink()
        desk.database.close()
        assert rebuilt(desk) == (2, 2)


def test_what_is_gone_and_still_needed_is_named(anvil: Anvil, folder: Path) -> None:
    with open_desk(anvil, folder) as desk:
        node, refs, _ = filled(desk)
        never = desk.commit(node, b"never uploaded", sequence=3)
        desk.store.file(refs[0].root).unlink()
        gone = next((folder / "store/receipts").iterdir())
        gone.unlink()
        desk.database.close()
        found = rebuilt_in_full(desk)
        assert [s.id for s in found.lost] == [desk.submission(refs[0])]
        assert [s.id for s in found.absent] == [desk.submission(never)]
        assert found.lost_receipts == (gone.stem,)
        assert (found.files, found.receipts) == (2, 1)


def test_what_left_because_nobody_can_need_it_is_not_named(anvil: Anvil, folder: Path) -> None:
    with open_desk(anvil, folder) as desk:
        _, refs, _ = filled(desk)
        desk.store.file(refs[0].root).unlink()
        desk.pass_span()
        for _ in range(desk.spec.max_lag + 1):
            desk.node()
        desk.world.anvil.advance(desk.world.chain.policy(desk.world.run).span)
        desk.database.close()
        found = rebuilt_in_full(desk)
        assert (found.lost, found.absent, found.files) == ((), (), 2)


def test_a_damaged_database_names_the_command_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "hub.sqlite"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(IntegrityError) as caught:
        Database(path)
    assert caught.value.hint == "murmur trainer hub rebuild"


def test_a_spent_nonce_stays_spent_until_its_write_has_expired_and_is_then_forgotten(tmp_path: Path) -> None:
    database = Database(tmp_path / "hub.sqlite")
    assert database.use_nonce(b"a", expiry=100, now=50)
    assert not database.use_nonce(b"a", expiry=100, now=100)
    assert database.use_nonce(b"b", expiry=200, now=101)
    assert database._db.execute("SELECT count(*) FROM nonces").fetchone() == (1,)
    database.close()


def test_a_reopened_database_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Database(tmp_path / "hub.sqlite")
    assert first.add_receipt(b"1", "v", b"one", 1)
    first.close()
    second = Database(tmp_path / "hub.sqlite")
    assert not second.add_receipt(b"1", "v", b"two", 2)
    assert second.add_receipt(b"2", "v", b"two", 2)
    assert [data for _, data in second.receipts(0, 10)] == [b"one", b"two"]
    second.close()


def test_what_came_while_another_key_was_the_trainers_is_here_all_the_same(anvil: Anvil, folder: Path) -> None:
    """Nodes and validators believe the present key alone, so it promises anew what the former one did."""
    with open_desk(anvil, folder) as desk:
        node, refs, _ = filled(desk)
        world, successor = desk.world, Key.generate()
        world.owner.send(world.chain.appoint(world.run, successor.address))
        anvil.advance(world.chain.policy(world.run).notice)
        desk.hub._key = successor
        assert desk.client(node).stored(desk.submission(refs[0]), successor.address) is not None
        desk.database.close()
        settings, layout = run_settings(world, desk.folder.parent.parent / "run.toml")
        assert rebuild(settings, layout, desk.spec, successor).files == 3
