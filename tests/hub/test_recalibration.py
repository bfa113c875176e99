"""Replacing a calibration from the owner's side: asked for by a command, signed with the next version, repeated by every later one, whatever crashes in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.world import World

from protocol import calibration
from protocol.calibration import Calibration
from protocol.calibration_notice import CalibrationNotice
from protocol.chain.sync import Book
from protocol.errors import ConfigError, Unavailable, UsageError
from protocol.notice_book import NoticeBook
from protocol.runspec import RunSpec, from_table
from protocol.shardcast.manifest import digest_of, stored
from protocol.shardcast.origin import Origin
from protocol.shardcast.store import MANIFEST_NAME, VersionStore, version_folder
from tests.hub.test_publisher import KEPT, Bench, turn_until_idle
from tests.hub.test_service import make, put, running, seated, wait_until
from trainer.hub.publisher import Publisher
from trainer.hub.recalibration import Recalibrations

SHIPPED = Path(calibration.__file__).parent / "calibrations/tiny-qwen3-float32-cpu.json"


def spec(**bounds: str) -> RunSpec:
    table = json.loads((Path(__file__).parents[1] / "vectors/spec_digests.json").read_text())[0]["spec"]
    limits = json.loads(SHIPPED.read_text())["limits"]
    table["verification"] |= {**limits, "recalibration": bounds, "calibration": Calibration(json.loads(SHIPPED.read_text())).digest}  # fmt: skip
    return from_table(table)


def measured(margin: str = "0.2", hard: str = "0.8") -> Calibration:
    content = json.loads(SHIPPED.read_text())
    content["limits"]["sampling"]["token_margin"] = {"soft": margin, "hard": hard}
    return Calibration(content)


class Home(Bench):
    """The bench of a hub whose run takes other calibrations."""

    spec = spec()

    @contextmanager
    def life(self, sender: Any = None) -> Iterator[Publisher]:
        with VersionStore(self.folder / "weights", KEPT, reserve=0) as store:
            self.store = store
            key, chain = self.world.trainer.key, self.world.chain
            origin = Origin(store, key, chain.domain, self.world.run, anchor_every=1000)
            book = Book(chain, self.world.run)
            book.poll()
            found = Recalibrations(self.spec, self.folder)
            yield Publisher(self.world.trainer, book, origin, self.outbox, KEPT, recalibrations=found)

    def ask(self, asked: Calibration, earliest: int) -> CalibrationNotice:
        found = Recalibrations(self.spec, self.folder)
        head = self.world.chain.published(self.world.run) - 1
        notice = found.notice(asked, earliest, head)
        found.request(notice)
        return notice

    def publish(self, *steps: int) -> list[CalibrationNotice | None]:
        """What the manifests of these versions say, each published in a process of its own."""
        said = []
        for step in steps:
            self.put(step)
            with self.life() as publisher:
                turn_until_idle(publisher)
                assert self.on_chain[step] == self.served(step)
                said.append(stored(self.store.manifest(step)).notice)
        return said


@pytest.fixture
def home(world: World, tmp_path: Path) -> Home:
    return Home(world, tmp_path)


def test_a_calibration_holds_from_the_version_that_was_asked_for_and_is_repeated_until_replaced(home: Home) -> None:
    assert home.publish(0, 1) == [None, None]
    first = home.ask(measured(), 3)
    assert (first.number, first.since, first.sampling.token_margin.hard) == (1, 3, "0.8")
    assert home.publish(2, 3, 4) == [None, first, first]
    second = home.ask(Calibration(json.loads(SHIPPED.read_text())), 5)  # back to the spec's own limits, by a notice too
    assert (second.number, second.since, second.sampling.token_margin.hard) == (2, 5, "0.5")
    assert home.publish(5, 6) == [second, second]


def test_one_that_was_asked_for_late_holds_from_the_version_that_it_comes_with(home: Home) -> None:
    """A version that was signed when the owner asked, though it is not on chain yet, stays as it is."""
    home.publish(0)
    home.put(1)
    asked = home.ask(measured(), 1)
    with home.life() as publisher:
        publisher._origin.publish(home.outbox.folder / "1", 1, link=True, remember=True)  # before the owner asked
        turn_until_idle(publisher)
        assert stored(home.store.manifest(1)).notice is None
    (said,) = home.publish(2)
    assert said == asked.model_copy(update={"since": 2})


def test_a_hub_that_lost_its_store_and_its_notes_says_the_same_again(home: Home) -> None:
    home.publish(0)
    asked = home.ask(measured(), 1)
    assert home.publish(1, 2) == [asked, asked]
    shutil.rmtree(home.folder / "weights")
    (home.folder / "calibrations.json").unlink()
    with home.life() as publisher:
        turn_until_idle(publisher)
        assert home.on_chain[2] == home.served(2)
    assert home.publish(3) == [asked]


def test_what_is_asked_for_by_hand_and_not_allowed_is_published_by_nobody(home: Home) -> None:
    home.publish(0)
    home.ask(measured(), 1)
    request = home.folder / "recalibration.json"
    request.write_text(request.read_text().replace('"0.8"', '"0.2"'))
    assert home.publish(1) == [None]
    request.write_text("{")
    assert home.publish(2) == [None]


@pytest.mark.parametrize(
    ("asked", "earliest", "refused"),
    [
        (measured(), 1, (UsageError, "version 1 is published", "--from-version 2 is the earliest")),
        (measured("0.01"), 2, (ConfigError, "token_margin.soft would be 0.01, and must be within 0.0625 and 0.5", "recalibration")),
        (measured("0.2", "0.3"), 2, (ConfigError, "token_margin.hard would be 0.3", "recalibration")),
        (Calibration(json.loads(SHIPPED.read_text())), 2, (UsageError, "is in force already", "")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_to_do(
    home: Home, asked: Calibration, earliest: int, refused: tuple[type[Exception], str, str]
) -> None:
    home.publish(0, 1)
    kind, message, hint = refused
    with pytest.raises(kind, match=message) as caught:
        home.ask(asked, earliest)
    assert hint in caught.value.hint  # type: ignore[attr-defined]
    assert not (home.folder / "recalibration.json").exists()


def test_the_running_hub_takes_up_what_the_owner_asks_for(anvil: Anvil, tmp_path: Path) -> None:
    own = spec()
    world = World.fresh(anvil, own.digest)
    seated(world)
    with running(*make(world, tmp_path, own)) as hub:
        for step in range(3):
            put(hub.layout, step)
            wait_until(lambda step=step: hub.published() == step, deadline=20, what=f"version {step} is out")
            if not step:
                asked = Recalibrations(own, hub.layout.hub)
                notice = asked.notice(measured(), 1, 0)
                asked.request(notice)
        folders = [version_folder(hub.layout.hub / "weights", step) for step in range(3)]
        said = [stored((folder / MANIFEST_NAME).read_bytes()).notice for folder in folders]
    assert said == [None, notice, notice]


def lose(home: Home) -> None:
    """All that the hub's folder had."""
    for folder in (home.folder / "weights", home.outbox.folder):
        shutil.rmtree(folder)
        folder.mkdir()
    (home.folder / "calibrations.json").unlink(missing_ok=True)
    (home.folder / "recalibration.json").unlink(missing_ok=True)


def test_a_hub_that_lost_its_disk_learns_from_others_what_is_in_force(home: Home, tmp_path: Path) -> None:
    """Whoever has read the versions before takes what comes after; so does whoever has read none."""
    seen = NoticeBook(tmp_path / "validator/calibrations.json")
    home.publish(0)
    asked = home.ask(measured(), 1)
    home.publish(1, 2)
    kept = {digest_of(data): data for data in (home.store.manifest(step) for step in (1, 2))}
    for step in (1, 2):
        seen.take(step, asked)
    lose(home)
    home.put(3)
    with home.life() as publisher, pytest.raises(Unavailable, match="in force with version 2 is not known") as caught:
        publisher.turn()
    assert caught.value.hint is not None and "calibrations.json" in caught.value.hint
    assert len(home.on_chain) == 3, "nothing that contradicts version 2 is published"
    with home.life() as publisher:
        publisher._fetch = lambda step, digest: stored(kept[digest])
        turn_until_idle(publisher)
        assert stored(home.store.manifest(3)).notice == asked
    seen.take(3, asked)
    replaced = home.ask(Calibration(json.loads(SHIPPED.read_text())), 4)
    assert (replaced.number, home.publish(4)) == (2, [replaced])


def test_a_hub_learns_it_at_its_start_before_there_is_anything_to_publish(home: Home) -> None:
    home.publish(0)
    asked = home.ask(measured(), 1)
    home.publish(1)
    kept = home.store.manifest(1)
    lose(home)
    with home.life() as publisher:
        publisher._fetch = lambda step, digest: stored(kept)
        assert not publisher.turn()
    assert Recalibrations(home.spec, home.folder).book.newest == asked


def test_notes_of_a_party_that_read_the_newest_version_do_as_well(home: Home, tmp_path: Path) -> None:
    home.publish(0)
    asked = home.ask(measured(), 1)
    home.publish(1)
    lose(home)
    NoticeBook(home.folder / "calibrations.json").take(1, asked)
    assert home.publish(2) == [asked]


def test_where_the_newest_version_is_refused_a_hub_goes_on_from_a_party_s_notes(home: Home, tmp_path: Path) -> None:
    """It was published without notes: nobody who has read version 1 takes version 2."""
    home.publish(0)
    asked = home.ask(measured(), 1)
    home.publish(1)
    (home.folder / "calibrations.json").unlink()
    (home.folder / "recalibration.json").unlink()
    home.put(2)
    with home.life() as publisher:
        publisher._recalibrations = None
        turn_until_idle(publisher)
    assert stored(home.store.manifest(2)).notice is None
    NoticeBook(home.folder / "calibrations.json").take(1, asked)
    assert home.publish(3) == [asked]


def test_notes_from_before_the_newest_version_are_not_enough(home: Home) -> None:
    """A backup of the disk, say."""
    home.publish(0)
    before = (home.folder / "calibrations.json").read_text()
    home.ask(measured(), 1)
    home.publish(1)
    lose(home)
    (home.folder / "calibrations.json").write_text(before)
    with home.life() as publisher, pytest.raises(Unavailable, match="version 1"):
        home.put(2)
        publisher.turn()
