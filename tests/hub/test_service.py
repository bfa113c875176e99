"""The running hub: what it refuses to start with, and that nothing on the way ends it or leaves it half alive."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from swarm.processes import wait_until
from swarm.world import World

from protocol.chain.sync import Book
from protocol.chain.transaction_log import MINED, Attempt, TransactionLog
from protocol.errors import IntegrityError, MurmurationError, PreflightError
from protocol.exporter import Exporter, Health
from protocol.hub.client import HubClient
from protocol.identity import Key
from protocol.metrics import MetricsSettings
from protocol.model_files import CONFIG, TOKENIZER, WEIGHTS
from protocol.p2p import Host
from protocol.runspec import RunSpec
from protocol.shell.home import read_json
from tests.chain.paying import noted
from tests.clock import VirtualClock, eventually
from tests.hub.desk import run_settings, small_spec
from trainer.config import Layout
from trainer.hub.database import Database
from trainer.hub.publisher import Publisher
from trainer.hub.service import HubService
from trainer.hub.store import Store


@pytest.fixture
def spec() -> RunSpec:
    return small_spec()


@pytest.fixture
def world(anvil: Any, spec: RunSpec) -> World:
    return World.fresh(anvil, spec.digest)


def make(
    world: World, folder: Path, spec: RunSpec, key: Key | None = None, exporter: Exporter | None = None
) -> tuple[HubService, Layout]:
    settings, layout = run_settings(world, folder / "run.toml")
    return HubService(settings, layout, spec, key or world.trainer.key, exporter), layout


class Running:
    def __init__(self, service: HubService, layout: Layout) -> None:
        self.service = service
        self.layout = layout
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.service.run()
        except MurmurationError as error:
            self.error = error

    def told(self) -> dict[str, Any]:
        return read_json(self.layout.hub_status) or {}

    def published(self) -> int | None:
        return self.told().get("published")


@contextmanager
def running(service: HubService, layout: Layout) -> Iterator[Running]:
    made = Running(service, layout)
    made.thread.start()
    try:
        wait_until(
            lambda: bool(made.told().get("url")) or not made.thread.is_alive(), deadline=30, what="the hub serves"
        )
        yield made
    finally:
        service.stop()
        made.thread.join(20)
        assert not made.thread.is_alive()


def seated(world: World) -> Key:
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    return node


def put(layout: Layout, step: int) -> None:
    final = layout.outgoing / str(step)
    partial = layout.outgoing / f".writing-{step}"
    partial.mkdir(parents=True)
    for name in (CONFIG, TOKENIZER, WEIGHTS):
        (partial / name).write_text(f"{name} {step}")
    partial.rename(final)


def test_a_first_version_waits_for_a_seat_that_may_work_on_it(
    world: World, spec: RunSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(*make(world, tmp_path, spec)) as hub:
        put(hub.layout, 0)
        wait_until(lambda: "once a node has a seat" in caplog.text, deadline=20, what="it says what it waits for")
        assert world.chain.published(world.run) == 0
        node = seated(world)
        wait_until(lambda: hub.published() == 0, deadline=20, what="version 0 is out")
    assert world.chain.seat(world.run, node.address).since < world.chain.publication(world.run, 0).block
    assert caplog.text.count("once a node has a seat") == 1


def test_it_serves_and_publishes_whatever_appears_in_the_outbox(world: World, spec: RunSpec, tmp_path: Path) -> None:
    seated(world)
    with running(*make(world, tmp_path, spec)) as hub:
        client = HubClient(hub.told()["url"], world.run, world.chain.domain)
        assert client.spec(world.spec_digest) == spec
        for step in range(2):
            put(hub.layout, step)
            wait_until(lambda step=step: hub.published() == step, deadline=20, what=f"version {step} is out")
        assert world.chain.published(world.run) == 2
    assert hub.error is None


def test_it_shows_a_page_of_its_run_beside_its_own_routes(world: World, spec: RunSpec, tmp_path: Path) -> None:
    seated(world)
    with running(*make(world, tmp_path, spec)) as hub:
        page = hub.told()["page"]
        assert page == f"{hub.told()['url']}/run/{world.run}/"
        assert httpx.get(page, timeout=60).headers["content-type"] == "text/html; charset=utf-8"
        put(hub.layout, 0)

        def is_shown() -> bool:
            answer = httpx.get(f"{page}api/v1/run", timeout=60)
            return answer.status_code == 200 and answer.json()["version"] == 0

        wait_until(is_shown, deadline=30, what="the page shows the version that is out")
        assert httpx.get(f"{page}api/v1/money", timeout=60).json()["free"] == str(world.chain.funds(world.run).free)
        assert httpx.get(page, headers={"host": "stranger.example"}, timeout=60).status_code == 403


def test_it_goes_to_the_bootnodes_of_its_spec(anvil: Any, spec: RunSpec, tmp_path: Path) -> None:
    """Its settings name none."""
    with Host(Key.generate(), "/ip4/127.0.0.1/tcp/0") as bootnode:
        agreed = spec.model_copy(update={"bootnodes": bootnode.addresses})
        with running(*make(World.fresh(anvil, agreed.digest), tmp_path, agreed)):
            wait_until(lambda: bootnode.status().peers == 1, deadline=20, what="the hub in the bootnode's table")


def test_it_shows_what_it_does_and_that_it_follows_the_chain(world: World, spec: RunSpec, tmp_path: Path) -> None:
    clock = VirtualClock()
    health = Health("a look at the chain", 600, clock)
    with (
        Exporter(MetricsSettings(port=0), health) as exporter,
        running(*make(world, tmp_path, spec, exporter=exporter)) as hub,
    ):
        url = hub.told()["metrics_url"]
        assert url == exporter.url
        httpx.get(f"{hub.told()['url']}/v1/runs/{world.run}/spec", timeout=60)
        httpx.get(f"{hub.told()['url']}/of/a/stranger", timeout=60)
        text = httpx.get(f"{url}/metrics", timeout=60).text
        assert 'murmur_hub_requests_total{route="/spec",status="200"}' in text
        assert 'murmur_hub_requests_total{route="unknown",status="404"}' in text
        assert "stranger" not in text
        wait_until(
            lambda: "\nmurmur_gas_eth " in httpx.get(f"{url}/metrics", timeout=60).text, deadline=20, what="its ETH"
        )
        clock.advance(601)
        wait_until(lambda: bool(health), deadline=20, what="the hub has looked at the chain since")


def test_a_key_that_is_not_the_runs_trainer_is_refused(world: World, spec: RunSpec, tmp_path: Path) -> None:
    service, _ = make(world, tmp_path, spec, Key.generate())
    with pytest.raises(PreflightError, match="is trained by"):
        service.run()


def test_another_spec_than_the_chains_is_refused(world: World, tmp_path: Path) -> None:
    service, _ = make(world, tmp_path, small_spec(name="another"))
    with pytest.raises(IntegrityError, match="not the spec of run"):
        service.run()


def test_a_fault_nobody_thought_of_does_not_end_publishing_in_silence(
    world: World, spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original, failures = Publisher.turn, iter([ZeroDivisionError("who would have thought")])

    def turn(self: Publisher) -> bool:
        if self._outbox.waiting() and (failure := next(failures, None)):
            raise failure
        return original(self)

    monkeypatch.setattr(Publisher, "turn", turn)
    seated(world)
    with running(*make(world, tmp_path, spec)) as hub:
        put(hub.layout, 0)
        wait_until(lambda: hub.published() == 0, deadline=20, what="version 0 is out after all")
    assert "who would have thought" in caplog.text


def test_weights_that_contradict_the_chain_end_it_with_the_reason(world: World, spec: RunSpec, tmp_path: Path) -> None:
    world.publish(0, b"\x0c" * 32)
    service, layout = make(world, tmp_path, spec)
    put(layout, 0)
    with running(service, layout) as hub:
        hub.thread.join(20)
    assert isinstance(hub.error, IntegrityError)


def test_uploads_are_taken_at_once_however_many_confirmations_the_trainer_waits_for(
    world: World, spec: RunSpec, tmp_path: Path
) -> None:
    """A node uploads right after its transaction was mined; refused work would be lost."""
    settings, layout = run_settings(world, tmp_path / "run.toml")
    chain = settings.chain.model_copy(update={"confirmations": 1000})
    service = HubService(settings.model_copy(update={"chain": chain}), layout, spec, world.trainer.key)
    node = seated(world)
    with running(service, layout) as hub:
        put(layout, 0)
        wait_until(lambda: hub.published() == 0, deadline=20, what="version 0 is out")
        world.anvil.request("anvil_mine", hex(2))  # the beacon's block, and one that can look back at it
        file = tmp_path / "rollouts.parquet"
        file.write_bytes(b"rollouts")
        ref = world.submit(node, 0, 0, hashlib.sha256(b"rollouts").digest())
        client = HubClient(
            hub.told()["url"], world.run, world.chain.domain, key=node, now=lambda: world.chain.block().time
        )
        stored = client.upload(ref.submission_id(world.run), ref.root, file, world.trainer.key.address)
        assert stored.receipt.size == len(b"rollouts")


# ---- the disk ------------------------------------------------------------------------------------------------------------


HORIZON = 10 + 3 * 20 + 2 * 30


@dataclass
class Shelf:
    """A hub's store in a run whose newest version is 5, of which versions up to 3 are trained on."""

    world: World
    service: HubService
    layout: Layout
    store: Store

    def keep(self, name: str, time: float) -> Path:
        """A file that was stored at `time`."""
        path = self.store.root / name
        path.write_bytes(b"rollouts")
        os.utime(path, (time, time))
        return path

    def book(self) -> Book:
        """What the running hub's would hold."""
        book = Book(self.world.chain, self.world.run)
        book.poll()
        return book

    def forget(self, database: Database, transactions: TransactionLog | None = None) -> None:
        policy = self.world.chain.policy(self.world.run)
        self.service._forget(self.book(), policy, database, transactions or TransactionLog())

    def tidy(self) -> None:
        self.service._tidy(self.book(), self.world.chain.policy(self.world.run), self.store)


@pytest.fixture
def shelf(anvil: Any, spec: RunSpec, tmp_path: Path) -> Shelf:
    assert spec.max_lag == 2
    world = World.fresh(anvil, spec.digest, window=10, appeal=20, vote=30)
    for step in range(6):
        world.publish(step)
        anvil.advance(1000)
    service, layout = make(world, tmp_path, spec)
    return Shelf(world, service, layout, Store(layout.hub / "store"))


@pytest.fixture
def clock(shelf: Shelf) -> VirtualClock:
    """The machine's clock, a minute ahead of the chain's until a test changes that."""
    shelf.service._clock = VirtualClock(wall=shelf.world.chain.block().time + 60)
    return shelf.service._clock


def test_files_out_of_reach_of_challenge_and_training_are_removed_and_receipts_stay(
    shelf: Shelf, clock: VirtualClock
) -> None:
    since = shelf.world.chain.publication(shelf.world.run, 3).time
    old, trainable = shelf.keep("files/" + "aa" * 32, since - 1), shelf.keep("files/" + "bb" * 32, since)
    receipts = [shelf.keep(f"{kind}/cc.json", since - 1) for kind in ("receipts", "stored")]
    shelf.tidy()
    assert not old.exists()
    assert trainable.exists()
    assert all(receipt.exists() for receipt in receipts)


def test_a_file_stays_as_long_as_its_submission_can_be_disputed(shelf: Shelf, clock: VirtualClock) -> None:
    """Through window, appeal and vote, however many versions came out meanwhile."""
    for step in range(6, 9):
        shelf.world.publish(step)
    now = shelf.world.chain.block().time
    assert shelf.world.chain.publication(shelf.world.run, 6).time > now - HORIZON
    disputed, settled = shelf.keep("files/aa", now - HORIZON + 5), shelf.keep("files/bb", now - HORIZON - 5)
    shelf.tidy()
    assert disputed.exists()
    assert not settled.exists()


def test_a_file_is_as_old_as_its_submission_whatever_this_machines_clock_said(
    shelf: Shelf, clock: VirtualClock
) -> None:
    """It came while the clock was behind: set right, it would go while its work can be disputed."""
    node = Key.generate()
    shelf.world.seat_node(Key.generate(), node)
    shelf.world.publish(6)
    root = hashlib.sha256(b"rollouts").digest()
    shelf.world.submit(node, 6, 0, root)
    file = shelf.keep(f"files/{root.hex()}", 1.0)
    shelf.tidy()
    assert file.exists()
    for step in range(7, 12):
        shelf.world.anvil.advance(1000)
        shelf.world.publish(step)
    clock.advance(10_000)
    shelf.tidy()
    assert not file.exists()


def test_an_entry_stays_as_long_as_a_stake_answers_for_it(shelf: Shelf, clock: VirtualClock, tmp_path: Path) -> None:
    """A span longer than the file, and for as long as its submission can be trained on."""
    database, now = Database(tmp_path / "hub.sqlite"), shelf.world.chain.block().time
    trainable = shelf.world.chain.publication(shelf.world.run, 3).time
    for came in (trainable - 1, trainable, now - 2 * HORIZON - 20):
        database.add_receipt(came.to_bytes(32, "big"), "0x", b"%d" % came, came)
    shelf.forget(database)
    assert [int(data) for _, data in database.receipts(0, 9)] == [trainable, now - 2 * HORIZON - 20]
    for step in range(6, 9):
        shelf.world.publish(step)
    now = shelf.world.chain.block().time
    database.add_receipt(bytes(32), "0x", b"%d" % (now - 2 * HORIZON + 5), now - 2 * HORIZON + 5)
    shelf.forget(database)
    assert [int(data) for _, data in database.receipts(0, 9)] == [now - 2 * HORIZON + 5]
    database.close()


def test_file_and_receipt_of_an_open_case_stay_however_old_they_are(
    shelf: Shelf, clock: VirtualClock, tmp_path: Path
) -> None:
    """Nobody has settled it yet."""
    world, node, validator = shelf.world, Key.generate(), Key.generate()
    world.seat_node(Key.generate(), node)
    world.seat_validator(validator)
    world.publish(6)
    root = hashlib.sha256(b"rollouts").digest()
    ref = world.submit(node, 6, 0, root)
    now = world.chain.block().time
    file, database = shelf.keep(f"files/{root.hex()}", now), Database(tmp_path / "hub.sqlite")
    for submission in (ref.submission_id(world.run), bytes(32)):
        database.add_receipt(submission, "0x", b"{}", now)
    world.sender(validator).send(world.chain.challenge(world.run, [ref], b"\x0e" * 32))
    for step in range(7, 12):
        world.anvil.advance(1000)
        world.publish(step)
    clock.advance(10_000)
    shelf.tidy()
    shelf.forget(database)
    assert file.exists()
    assert database.has_receipt(ref.submission_id(world.run), "0x")
    assert not database.has_receipt(bytes(32), "0x")
    database.close()


def test_transactions_are_forgotten_with_what_no_stake_answers_for(
    shelf: Shelf, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, log = Database(tmp_path / "hub.sqlite"), TransactionLog()
    now = shelf.world.chain.block().time
    for nonce, (name, age) in enumerate((("old", 2 * HORIZON + 20), ("young", 2 * HORIZON - 20))):
        monkeypatch.setattr(time, "time", lambda age=age: now - age)
        begun = noted(log, name, nonce, Attempt(name.encode(), b"", 1, 1, 0.0))
        log.finish(begun, MINED, name.encode())
    monkeypatch.undo()
    shelf.forget(database, log)
    assert (log.named("old"), log.named("young") is not None) == (None, True)
    database.close()


def test_a_chain_that_stands_still_ends_no_deadline(shelf: Shelf, clock: VirtualClock) -> None:
    for step in range(6, 9):
        shelf.world.publish(step)
    file = shelf.keep("files/aa", shelf.world.chain.block().time - 20)
    clock.advance(1e6)
    shelf.tidy()
    assert file.exists()


def test_the_running_hub_tidies_up(shelf: Shelf) -> None:
    root = hashlib.sha256(b"rollouts").digest()
    old, fresh = shelf.keep("files/" + "aa" * 32, 1.0), shelf.keep(f"files/{root.hex()}", time.time())
    with running(shelf.service, shelf.layout) as hub:
        wait_until(lambda: not old.exists(), deadline=20, what="the old file is gone")
        client = HubClient(hub.told()["url"], shelf.world.run, shelf.world.chain.domain)
        assert client.download(root, shelf.layout.hub / "x", cap=100)
    assert fresh.exists()
    assert hub.error is None


@pytest.mark.parametrize(
    ("changes", "is_warned"), [({"host": "0.0.0.0"}, True), ({"host": "0.0.0.0", "public_host": "127.0.0.1"}, False)]
)
def test_a_hub_on_all_addresses_without_a_public_host_says_that_nobody_elsewhere_reaches_it(
    world: World,
    tmp_path: Path,
    spec: RunSpec,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, str],
    is_warned: bool,
) -> None:
    settings, layout = run_settings(world, tmp_path / "run.toml")
    settings = settings.model_copy(update={"hub": settings.hub.model_copy(update=changes)})
    with running(HubService(settings, layout, spec, world.trainer.key), layout) as started:
        eventually(lambda: started.told().get("url"), what="the hub serves")
    assert ("set hub.public_host" in caplog.text) == is_warned
