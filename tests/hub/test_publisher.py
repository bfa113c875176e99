"""Publishing: in order, each step once, the same weights whatever crashes in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from swarm.world import World

from protocol.chain import Sender
from protocol.chain.calls import Call
from protocol.chain.events import Drawn
from protocol.chain.sender import Sent
from protocol.chain.sync import Book
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.types import Publication
from protocol.errors import DeadlineExceeded, IntegrityError, TransactionReverted, Unavailable
from protocol.model_files import CONFIG, TOKENIZER, WEIGHTS
from protocol.shardcast.manifest import digest_of
from protocol.shardcast.origin import Origin
from protocol.shardcast.store import VersionStore
from trainer.hub.outbox import Outbox, _boot
from trainer.hub.publisher import Publisher

KEPT = 2


class Bench:
    """Everything on disk that outlives the hub's process; `life` is one such process."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.outbox = Outbox(folder / "outgoing", folder)

    def put(self, step: int, weights: str | None = None) -> None:
        made = self.outbox.folder / str(step)
        made.mkdir()
        for name in (CONFIG, TOKENIZER, WEIGHTS):
            (made / name).write_text(f"{name} {weights or step}")

    @contextmanager
    def life(self, sender: Sender | None = None) -> Iterator[Publisher]:
        key = self.world.trainer.key
        with VersionStore(self.folder / "weights", KEPT, reserve=0) as store:
            self.store = store
            origin = Origin(store, key, self.world.chain.domain, self.world.run, anchor_every=1000)
            book = Book(self.world.chain, self.world.run)
            book.poll()
            yield Publisher(sender or self.world.trainer, book, origin, self.outbox, KEPT)

    @property
    def on_chain(self) -> list[bytes]:
        count = self.world.chain.published(self.world.run)
        return [self.world.chain.publication(self.world.run, step).manifest for step in range(count)]

    def served(self, step: int) -> bytes:
        return digest_of(self.store.manifest(step))


@pytest.fixture
def bench(world: World, tmp_path: Path) -> Bench:
    return Bench(world, tmp_path)


def turn_until_idle(publisher: Publisher) -> None:
    while publisher.turn():
        pass


class Crash(BaseException):
    """The end of the process at this very place."""


class Crashing(Sender):
    """Ends the process before or after a transaction was mined."""

    when = "before"

    def send(self, call: Call, *, name: str | None = None) -> Sent:
        if self.when == "after":
            super().send(call, name=name)
        raise Crash


def test_versions_are_served_and_published_in_order(bench: Bench) -> None:
    for step in (2, 0, 1):
        bench.put(step)
    with bench.life() as publisher:
        for step in range(3):
            assert publisher.turn()
            assert publisher.published == step
            assert bench.on_chain[step] == bench.served(step)
        assert not publisher.turn()
    assert len(set(bench.on_chain)) == 3
    assert bench.outbox.waiting() == [1, 2]


def test_whoever_sees_the_event_can_fetch_at_once(bench: Bench) -> None:
    held: list[bool] = []

    class Watching(Sender):
        def send(self, call: Call, *, name: str | None = None) -> Sent:
            held.append(bench.store.holds(0))
            return super().send(call, name=name)

    bench.put(0)
    with bench.life(Watching(bench.world.chain, bench.world.trainer.key)) as publisher:
        publisher.turn()
    assert held == [True]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("crash_at", range(4))
def test_a_crash_between_serving_and_publishing_changes_nothing(bench: Bench, when: str, crash_at: int) -> None:
    """At every age of the store: the outbox may then hold a version that the store is too young to take again."""
    for step in range(crash_at):
        bench.put(step)
        with bench.life() as publisher:
            turn_until_idle(publisher)
    bench.put(crash_at)
    crashing = Crashing(bench.world.chain, bench.world.trainer.key)
    crashing.when = when
    with pytest.raises(Crash), bench.life(crashing) as publisher:
        turn_until_idle(publisher)
    digest = bench.served(crash_at)
    for step in (crash_at + 1, crash_at + 2):
        bench.put(step)
    with bench.life() as publisher:
        turn_until_idle(publisher)
        assert publisher.published == crash_at + 2
        assert list(bench.store.steps()) == [crash_at + 1, crash_at + 2]
    assert len(bench.on_chain) == crash_at + 3
    assert bench.on_chain[crash_at] == digest


@pytest.mark.parametrize("sent", [False, True])
def test_a_crash_around_sending_is_made_good_from_the_journal(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    """The next life ends what was signed, whether it was mined meanwhile or never sent, and publishes nothing twice."""
    journal, finish = tmp_path / "transactions.sqlite", Sender._finish

    def crash(self: Sender, transaction: Any, **_: Any) -> Sent:
        if sent:
            self.chain.ethereum.send_raw(self._journal.attempts(transaction)[-1].raw)
        raise Crash

    bench.put(0)
    with closing(Sender(bench.world.chain, bench.world.trainer.key, TransactionLog(journal))) as sender:
        monkeypatch.setattr(Sender, "_finish", crash)
        with pytest.raises(Crash), bench.life(sender) as publisher:
            publisher.turn()
        monkeypatch.setattr(Sender, "_finish", finish)
    digest = bench.served(0)
    assert bench.on_chain == [digest] * sent
    bench.put(1)
    with closing(Sender(bench.world.chain, bench.world.trainer.key, TransactionLog(journal))) as sender:
        with bench.life(sender) as publisher:
            turn_until_idle(publisher)
            assert publisher.published == 1
        assert sender.next_nonce() == 2
    assert bench.on_chain == [digest, bench.served(1)]


def test_a_step_is_never_published_twice_with_different_weights(bench: Bench) -> None:
    bench.put(0)
    with bench.life() as publisher:
        publisher.turn()
    before = bench.on_chain
    (bench.outbox.folder / "0/model.safetensors").unlink()  # a hard link: writing into it would change what is served
    (bench.outbox.folder / "0/model.safetensors").write_text("other weights")
    with bench.life() as publisher, pytest.raises(IntegrityError, match="other bytes"):
        publisher.turn()
    assert bench.on_chain == before


def test_a_version_that_holds_more_than_its_weights_is_never_published(bench: Bench) -> None:
    """Nodes would refuse it, once it is on chain for good."""
    bench.put(0)
    (bench.outbox.folder / "0/zzz.safetensors").write_text("more weights")
    with bench.life() as publisher, pytest.raises(IntegrityError, match=r"'zzz.safetensors', which is no file"):
        publisher.turn()
    assert bench.on_chain == []
    assert bench.store.steps() == ()


def test_other_weights_than_the_chains_are_not_served_either(bench: Bench) -> None:
    """Another machine, say, with another store, goes on with this run."""
    bench.put(0)
    bench.world.publish(0, b"\x0c" * 32)
    with bench.life() as publisher, pytest.raises(IntegrityError, match="on chain with other weights"):
        publisher.turn()


def test_a_gap_in_the_outbox_is_an_error_and_never_a_jump(bench: Bench) -> None:
    bench.put(1)
    with bench.life() as publisher, pytest.raises(IntegrityError, match="the chain is at 0"):
        publisher.turn()
    assert bench.on_chain == []


def test_one_endpoint_that_lies_about_versions_does_not_end_the_hub(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = bench.world.chain
    for step in range(2):
        bench.put(step)
    with bench.life() as publisher:
        publisher.turn()
    with bench.life() as publisher:
        with monkeypatch.context() as lies:
            lies.setattr(chain, "published", lambda run: 0)
            lies.setattr(chain, "publication", lambda run, step: Publication(step, bytes(32), bytes(32), 0, 0, 0))
            turn_until_idle(publisher)
        assert publisher.published == 1
        assert len(bench.on_chain) == 2


def test_a_transaction_that_is_mined_after_its_deadline_is_found_published(bench: Bench) -> None:
    class Late(Sender):
        """Sends, gives up waiting, and is refused when it tries the same again while the first is being mined."""

        attempts = 0

        def send(self, call: Call, *, name: str | None = None) -> Sent:
            self.attempts += 1
            if self.attempts == 1:
                raise DeadlineExceeded("not mined in 60 s")
            super().send(call, name=name)
            return super().send(call, name=name)  # reverts: the step is taken

    bench.put(0)
    sender: Any = Late(bench.world.chain, bench.world.trainer.key)
    with bench.life(sender) as publisher:
        with pytest.raises(DeadlineExceeded):
            publisher.turn()
        assert publisher.turn()
        assert publisher.published == 0
        assert bench.on_chain == [bench.served(0)]


def test_a_refusal_that_published_nothing_is_told(bench: Bench) -> None:
    stranger = bench.world.sender(bench.world.anvil.bank)
    bench.put(0)
    with bench.life(Sender(bench.world.chain, stranger.key)) as publisher, pytest.raises(TransactionReverted):
        publisher.turn()
    assert publisher.published is None


def test_without_a_jury_it_waits_for_one(bench: Bench) -> None:
    """Validators come and go; a run that has too few for a while must not end."""
    bench.put(0)
    bench.world.pretend_jury(1)
    with bench.life() as publisher:
        with pytest.raises(Unavailable, match="more validators"):
            publisher.turn()
        assert bench.on_chain == []
        bench.world.pretend_jury()
        assert publisher.turn()
        assert bench.on_chain == [bench.served(0)]


def test_what_is_being_written_is_shown_and_becomes_the_version_that_is_published(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that were shown are hashed once; a version that is given up is shown no longer."""
    folder = bench.outbox.folder / ".writing-0"

    def begin(attempt: str) -> None:
        folder.mkdir()
        contents = {name: f"{name} {attempt}".encode() for name in (CONFIG, TOKENIZER, WEIGHTS)}
        files = [[name, len(content)] for name, content in contents.items()]
        plan = {"attempt": 32 * attempt, "boot": _boot(), "files": files, "step": 0}
        (bench.outbox.folder / ".plan.json").write_text(json.dumps(plan))
        for name, content in contents.items():
            (folder / name).write_bytes(content)

    with bench.life() as publisher:
        begin("a")
        assert publisher.turn(), "the first is shown"
        while publisher.turn():
            pass
        given_up = bench.store.opened(0)
        assert given_up is not None
        assert not bench.on_chain
        shutil.rmtree(folder)
        assert not publisher.turn()
        assert bench.store.opened(0) is None
        begin("b")
        while publisher.turn():
            pass
        shown = bench.store.opened(0)
        assert shown is not None
        assert shown.id != given_up.id
        folder.rename(bench.outbox.folder / "0")
        monkeypatch.setattr("protocol.shardcast.manifest._describe_file", lambda *a: pytest.fail("hashed twice"))
        assert publisher.turn()
        assert bench.on_chain == [bench.served(0)]
        assert bench.store.opened(0) is not None, "who fetches it ahead may not know yet that it is published"


def looks(publisher: Publisher, *, blocks: int) -> None:
    """So many blocks later the hub has read the chain and has a turn."""
    publisher._sender.chain.ask("anvil_mine", [hex(blocks)])
    publisher._book.poll()
    publisher.turn()


def test_the_beacon_is_drawn_once_the_block_that_it_is_made_of_is_there(bench: Bench) -> None:
    chain, run = bench.world.chain, bench.world.run
    bench.put(0)
    with bench.life() as publisher:
        turn_until_idle(publisher)
        assert not chain.publication(run, 0).is_drawn
        looks(publisher, blocks=2)
        drawn = chain.publication(run, 0)
        assert drawn.is_drawn
        assert drawn.beacon == chain.beacon(run, 0)
        looks(publisher, blocks=1)
        assert len(publisher._book.events(Drawn)) == 1


def test_a_beacon_that_everybody_missed_is_made_of_a_later_block(bench: Bench) -> None:
    chain, run = bench.world.chain, bench.world.run
    bench.put(0)
    with bench.life() as publisher:
        turn_until_idle(publisher)
        before = chain.beacon_source(run, 0)
        looks(publisher, blocks=300)
        assert not chain.publication(run, 0).is_drawn
        assert chain.beacon_source(run, 0) > before + 256
        looks(publisher, blocks=3)
        assert chain.publication(run, 0).is_drawn


def test_a_hub_that_cannot_pay_for_a_draw_goes_on_and_draws_later(bench: Bench) -> None:
    """Publishing waits for money as well; what has been published must be served meanwhile."""
    world = bench.world
    bench.put(0)
    with bench.life() as publisher:
        turn_until_idle(publisher)
        has = world.chain.balance(world.trainer.key.address)
        world.anvil.give(world.trainer.key.address, 1)
        looks(publisher, blocks=2)
        assert not world.chain.publication(world.run, 0).is_drawn
        world.anvil.give(world.trainer.key.address, has)
        looks(publisher, blocks=1)
        assert world.chain.publication(world.run, 0).is_drawn
