"""A version travels while its trainer still writes it; it counts only when the chain names it, and what never becomes one is gone."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol import signing
from protocol.errors import BadSignature, DiskFailed, LockHeld, Malformed, MurmurationError, PreflightError, Unavailable
from protocol.identity import Key
from protocol.shardcast import ahead as ahead_module
from protocol.shardcast import opening as opening_module
from protocol.shardcast import partial as partial_module
from protocol.shardcast import stream as stream_module
from protocol.shardcast import tellers as tellers_module
from protocol.shardcast.ahead import Ahead
from protocol.shardcast.client import Client
from protocol.shardcast.connection import Timeouts
from protocol.shardcast.manifest import Manifest, ManifestLimits
from protocol.shardcast.opened import OpenedVersion
from protocol.shardcast.opening import NO_OPENING, ChunkList, Opening, OpeningAnswer, Trusted
from protocol.shardcast.origin import Origin
from protocol.shardcast.partial import Partial
from protocol.shardcast.server import ShardServer
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore

from .conftest import CHUNK, DEADLINE, QUICK, RUN, Cast, contents, origin_at, relay_at, wait_until
from .faults import Request, hang, not_have_it

CHUNKS = 9
STEP = 1


class Writer:
    """A trainer that writes version 1 from front to back, as far as it is told, and an origin that follows it."""

    def __init__(self, cast: Cast, model: bytes, name: str = "writing") -> None:
        self.cast, self.files = cast, {"config.json": b"{}", "model": model}
        self.folder: Path = cast.root / name
        self.folder.mkdir()
        (self.folder / "config.json").write_bytes(b"{}")
        self.store: VersionStore = cast.store(f"{name}-origin")
        self.origin: Origin = cast.publisher(self.store)
        cast.stack.callback(self.origin.forget)
        self.server: ShardServer = cast.serve(self.store)
        self.written = 0
        self.attempt = "0" * 32

    def write(self, chunks: int) -> None:
        """So many chunks of the model more, and what the origin makes of it."""
        ends = min(len(self.files["model"]), self.written + chunks * CHUNK)
        with (self.folder / "model").open("ab") as file:
            file.write(self.files["model"][self.written : ends])
        self.written = ends
        self.follow()

    def follow(self) -> None:
        sizes = [(name, len(content)) for name, content in self.files.items()]
        while self.origin.follow(self.folder, STEP, sizes, self.attempt):
            pass

    def publish(self) -> Manifest:
        return self.origin.publish(self.folder, STEP, link=True)

    @property
    def source(self) -> Source:
        return origin_at(self.server.url)


class Party:
    """A relay or node that fetches version 1 ahead, in a thread of its own."""

    def __init__(
        self, cast: Cast, name: str, sources: list[Source], *, relays: bool = False, timeouts: Timeouts = QUICK, **options: Any
    ) -> None:  # fmt: skip
        self.cast, self.sources = cast, sources
        self.store: VersionStore = cast.store(name, **options)
        self.server: ShardServer = cast.serve(self.store)
        self.client: Client = cast.client(self.store, relays=relays, patience=DEADLINE, timeouts=timeouts)
        cast.stack.callback(self.client.close)
        self.ended: list[object] = []
        self.thread = threading.Thread(target=self._look)
        self.thread.start()

    def _look(self) -> None:
        """Until there is something, as a role does."""
        try:
            while not self.client.is_closed:
                if self.client.fetch_ahead(STEP, self.sources):
                    self.ended.append(True)
                    return
        except MurmurationError as error:
            self.ended.append(error)

    @property
    def present(self) -> int:
        """Chunks that are here."""
        return 0 if self.client._ahead is None else len(self.client._ahead.verified)

    @property
    def drafts(self) -> list[str]:
        return [path.name for path in (self.store.root / "drafts").iterdir()]

    def fetch(self, manifest: Manifest, sources: list[Source] | None = None) -> dict[str, bytes]:
        folder = self.client.fetch(STEP, manifest.digest, sources or self.sources, DEADLINE)
        return contents(folder)

    def finish(self) -> object:
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()
        return self.ended[-1]


@pytest.fixture
def writer(cast: Cast) -> Writer:
    return Writer(cast, cast.bytes(CHUNKS * CHUNK - 100))


def test_the_first_chunk_travels_before_the_last_is_written_and_none_travels_twice(
    cast: Cast, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Party(cast, "relay", [writer.source], relays=True)
    node = Party(cast, "node", [relay_at(relay.server.url), writer.source])
    writer.write(1)
    wait_until(lambda: node.present == 2)
    writer.write(4)
    wait_until(lambda: node.present == relay.present == 6)
    assert not (node.store.steps() or relay.store.steps() or writer.store.steps()), "no version before the chain has it"
    writer.write(CHUNKS)
    wait_until(lambda: node.present == relay.present == CHUNKS + 1)
    hashed: list[object] = []
    monkeypatch.setattr("protocol.shardcast.manifest._describe_file", lambda *a: hashed.append(a))
    manifest = writer.publish()
    assert not hashed, "what was hashed beside the writing is not hashed again"
    sent = writer.server.counts.bytes_served
    assert relay.fetch(manifest) == node.fetch(manifest) == writer.files
    assert writer.server.counts.bytes_served == sent, "all of it was here"
    assert node.client.statistics.resumed_chunks == CHUNKS + 1
    assert set(node.client.statistics.bytes_from) == {"relay"}
    assert node.finish() is relay.finish() is True
    assert node.drafts == relay.drafts == []


def test_a_fetch_goes_on_with_half_a_version_that_was_fetched_ahead(cast: Cast, writer: Writer) -> None:
    node = Party(cast, "node", [writer.source])
    writer.write(4)
    wait_until(lambda: node.present == 5)
    (writer.folder / "model").write_bytes(writer.files["model"])  # as far as this follows, the rest is there at once
    manifest = writer.publish()
    assert node.fetch(manifest) == writer.files
    assert node.client.statistics.resumed_chunks >= 5
    assert not node.client.statistics.violations


def test_what_a_killed_node_had_ahead_is_found_again_by_its_hash(cast: Cast, writer: Writer) -> None:
    node = Party(cast, "node", [writer.source])
    writer.write(4)
    wait_until(lambda: node.present == 5)
    node.client.close()
    node.finish()
    assert node.drafts == ["1-ahead"], "as a kill leaves it"
    writer.write(CHUNKS)
    again = cast.client(node.store)
    assert contents(again.fetch(STEP, writer.publish().digest, [writer.source], DEADLINE)) == writer.files
    assert again.statistics.resumed_chunks == 5


# ---- what was verified in one draft says nothing of another


def ahead_of_all(cast: Cast, writer: Writer, *, relays: bool = False) -> tuple[Party, Manifest]:
    """Somebody who has fetched all of version 1 ahead, and its manifest."""
    party = Party(cast, "party", [writer.source], relays=relays)
    writer.write(CHUNKS)
    wait_until(lambda: party.present == CHUNKS + 1)
    return party, writer.publish()


def test_another_manifest_for_a_step_that_was_fetched_ahead_is_fetched_where_the_first_became_a_version(
    cast: Cast, writer: Writer
) -> None:
    """The chain replaced it; both share all chunks but the last."""
    node, first = ahead_of_all(cast, writer)
    assert node.fetch(first) == writer.files
    files = writer.files | {"model": writer.files["model"][:-50] + bytes(50)}
    second, server = cast.origin(files, STEP)
    assert node.fetch(second, [origin_at(server.url)]) == files


def test_a_version_that_was_fetched_ahead_and_removed_is_fetched_again_and_served_right(
    cast: Cast, writer: Writer
) -> None:
    relay, manifest = ahead_of_all(cast, writer, relays=True)
    assert relay.fetch(manifest) == writer.files
    relay.store.discard(STEP)
    assert relay.fetch(manifest) == writer.files
    client = cast.client()
    folder = client.fetch(STEP, manifest.digest, [relay_at(relay.server.url), writer.source], DEADLINE)
    assert contents(folder) == writer.files
    assert not client.statistics.violations, "an honest relay"


@pytest.mark.parametrize("attempted", [False, True])
def test_a_version_whose_draft_gave_way_to_a_newer_one_is_fetched_whole_after_it(
    cast: Cast, writer: Writer, attempted: bool
) -> None:
    node, manifest = ahead_of_all(cast, writer)
    if attempted:
        with pytest.raises(MurmurationError):
            node.client.fetch(STEP, manifest.digest, [origin_at("http://127.0.0.1:1")], 0.2)
    newer, server = cast.origin({"model": cast.bytes(CHUNK)}, STEP + 1)
    node.client.fetch(STEP + 1, newer.digest, [origin_at(server.url)], DEADLINE)
    assert node.fetch(manifest) == writer.files


def test_where_nothing_is_on_disk_nothing_is_present_whatever_was_verified(cast: Cast) -> None:
    manifest, server = cast.origin({"model": cast.bytes(3 * CHUNK)})
    client = cast.client()
    verified = {(chunk.file.name, chunk.offset): chunk.blake3 for chunk in manifest.chunks()}
    fetch = client.attempt(1, manifest.digest, [origin_at(server.url)], float("inf"))
    with client.store.draft(1, "label", manifest.total_bytes) as draft, Partial(draft, manifest) as partial:
        assert fetch.present(partial, manifest, verified) == []


def test_a_version_that_the_trainer_gives_up_is_gone_everywhere_and_nobody_is_blamed(
    cast: Cast, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead_module, "_GONE_SECONDS", 0.5)
    relay = Party(cast, "relay", [writer.source], relays=True)
    node = Party(cast, "node", [relay_at(relay.server.url)])
    writer.write(3)
    wait_until(lambda: node.present == 4)
    writer.origin.forget_unpublished()
    assert isinstance(relay.finish(), Unavailable)
    assert isinstance(node.finish(), Unavailable)
    assert relay.drafts == node.drafts == []
    assert relay.store.opened(STEP) is node.store.opened(STEP) is None
    assert not (relay.client.statistics.violations or node.client.statistics.violations)


def test_one_that_stands_still_is_given_up_while_its_origin_cannot_be_reached(
    cast: Cast, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Party(cast, "relay", [writer.source], relays=True)
    writer.write(3)
    wait_until(lambda: relay.present == 4)
    monkeypatch.setattr(ahead_module, "_STALL_SECONDS", 0.0)
    writer.server.close()
    assert isinstance(relay.finish(), Unavailable)
    assert relay.drafts == []


def test_the_origin_no_longer_shows_what_does_not_grow_until_it_does(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write(2)
    assert writer.store.opened(STEP) is not None
    monkeypatch.setattr(stream_module, "_STALL_SECONDS", -1.0)
    writer.follow()
    assert writer.store.opened(STEP) is None
    writer.write(1)
    assert writer.store.opened(STEP) is None, "it stands still again by this clock"
    monkeypatch.setattr(stream_module, "_STALL_SECONDS", DEADLINE)
    writer.write(1)
    assert writer.store.opened(STEP) is not None


def test_chunks_that_the_manifest_on_chain_does_not_name_are_thrown_away_without_blame(
    cast: Cast, writer: Writer
) -> None:
    """The trainer crashed, and wrote the step anew: other weights, another file less."""
    relay = Party(cast, "relay", [writer.source], relays=True)
    node = Party(cast, "node", [relay_at(relay.server.url), writer.source])
    writer.write(5)
    wait_until(lambda: node.present == 6)
    files = {"model": writer.files["model"][:CHUNK] + cast.bytes(6 * CHUNK)}
    writer.origin.forget()
    manifest = writer.origin.publish(cast.folder(files, "anew"), STEP)
    assert relay.fetch(manifest) == node.fetch(manifest) == files
    assert relay.client.statistics.resumed_chunks == node.client.statistics.resumed_chunks == 1
    assert not (relay.client.statistics.violations or node.client.statistics.violations)


def test_a_file_that_was_replaced_after_it_was_shown_is_hashed_anew(cast: Cast, writer: Writer) -> None:
    writer.write(CHUNKS)
    other = cast.bytes(len(writer.files["model"]))
    (writer.folder / "model").unlink()
    (writer.folder / "model").write_bytes(other)
    manifest = writer.publish()
    assert writer.store.opened(STEP) is None
    client = cast.client()
    assert contents(client.fetch(STEP, manifest.digest, [writer.source], DEADLINE))["model"] == other


def test_an_attempt_that_begins_anew_is_another_opening(writer: Writer) -> None:
    writer.write(3)
    first = writer.store.opened(STEP)
    writer.attempt = "1" * 32
    writer.follow()
    second = writer.store.opened(STEP)
    assert first is not None and second is not None
    assert first.id != second.id


# ---- lies


def forged(cast: Cast, writer: Writer, key: Key) -> OpenedVersion:
    """The same version, signed by another key, as a relay might tell of it."""
    sizes = tuple((name, len(content)) for name, content in writer.files.items())
    listing = ChunkList(Opening(RUN, STEP, sizes, "0" * 32, STEP, CHUNK))
    listing.sign([bytes(32)], key, cast.domain)
    return OpenedVersion(listing, lambda name: None)


def test_a_relay_with_an_opening_of_its_own_making_is_not_believed_and_nothing_of_it_is_kept(
    cast: Cast, writer: Writer
) -> None:
    liar = cast.store("liar")
    liar.show_opened(STEP, forged(cast, writer, Key.generate()))
    sources = [relay_at(cast.serve(liar).url, "liar")]
    client = cast.client()
    assert not client.fetch_ahead(STEP, sources)
    assert not list((client.store.root / "drafts").iterdir())


def test_a_relay_with_other_bytes_than_the_trainer_signed_is_blamed_and_it_alone(cast: Cast, writer: Writer) -> None:
    writer.write(CHUNKS)
    honest = writer.store.opened(STEP)
    assert isinstance(honest, OpenedVersion)
    wrong = cast.root / "wrong"
    wrong.write_bytes(bytes(len(writer.files["model"])))
    liar = cast.store("liar")

    def reopen(name: str) -> int:
        return os.open(wrong, os.O_RDONLY)

    liar.show_opened(STEP, OpenedVersion(honest.listing, reopen))
    sources = [relay_at(cast.serve(liar).url, "liar"), writer.source]
    node = Party(cast, "node", sources)
    wait_until(lambda: node.present == CHUNKS + 1)
    assert set(node.client.statistics.violations) == {"liar"}
    assert node.fetch(writer.publish()) == writer.files


def test_a_relay_never_shows_a_chunk_that_it_does_not_have(cast: Cast, writer: Writer) -> None:
    relay = Party(cast, "relay", [writer.source], relays=True)
    writer.write(2)
    wait_until(lambda: relay.present == 3)
    shown = relay.store.opened(STEP)
    assert shown is not None
    assert shown.open_range("model", 0, 2 * CHUNK - 1) is not None
    assert shown.open_range("model", 2 * CHUNK, 3 * CHUNK - 1) is None
    assert shown.open_range("model", 0, CHUNKS * CHUNK) is None
    assert np.flatnonzero(shown.holding(0, 0.0).coming).size == 0, "what is not listed is not on its way"


def test_a_relay_that_no_longer_shows_what_it_told_of_is_not_taken_for_one_that_fails(
    cast: Cast, writer: Writer
) -> None:
    """Relays know before nodes that a version is whole; whose requests are refused at that moment must not turn to the origin for the version."""
    writer.write(CHUNKS)
    honest, relay = writer.store.opened(STEP), cast.store("relay")
    assert isinstance(honest, OpenedVersion)
    refused: list[str] = []
    relay.show_opened(STEP, OpenedVersion(honest.listing, refused.append))  # type: ignore[arg-type]
    node = Party(cast, "node", [relay_at(cast.serve(relay).url), writer.source], timeouts=Timeouts(idle=DEADLINE))
    wait_until(lambda: len(refused) >= 4)
    standing = node.client._standings["relay"]
    assert standing.success(0.0) == 1.0 and not standing.has_only_failed
    assert "origin" not in node.client.statistics.bytes_from
    relay.hide_opened(STEP, relay.opened(STEP))  # type: ignore[arg-type]
    relay.show_opened(STEP, honest)
    wait_until(lambda: node.present == CHUNKS + 1)
    assert not node.client.statistics.violations


def test_a_relay_that_tells_of_all_and_refuses_each_chunk_keeps_no_node_from_the_origin(
    cast: Cast, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead_module, "_HIDDEN_SECONDS", 0.2)
    writer.write(3)
    honest, liar = writer.store.opened(STEP), cast.store("liar")
    assert isinstance(honest, OpenedVersion)
    liar.show_opened(STEP, OpenedVersion(honest.listing, lambda name: None))
    node = Party(cast, "node", [relay_at(cast.serve(liar).url, "liar"), writer.source])
    for chunks in (4, 5, 6, 7):
        wait_until(lambda chunks=chunks: node.present == chunks)  # while it is written on, and without it
        writer.write(1)
    assert node.client.statistics.bytes_from["origin"]


def drip(request: Request) -> None:
    """Never idle, never done."""
    request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not request.closing.wait(0.05):
        request.send(b"\0")


@pytest.mark.parametrize("liars", [2, 8])
def test_tellers_that_drip_keep_no_node_from_the_news(
    cast: Cast, writer: Writer, monkeypatch: pytest.MonkeyPatch, liars: int
) -> None:
    late = 0.5 if liars > 2 else float("inf")  # two leave a third that is asked beside them
    monkeypatch.setattr(tellers_module, "_LATE_SECONDS", late)
    relay = Party(cast, "relay", [writer.source], relays=True)
    drips = [cast.scripted(b"", {}, drip, drip) for _ in range(liars)]
    sources = [relay_at(relay.server.url), *(relay_at(liar.url, f"liar {n}") for n, liar in enumerate(drips))]
    node = Party(cast, "node", sources, timeouts=Timeouts(idle=10 * DEADLINE))
    for chunks in range(1, 6):
        writer.write(1)
        wait_until(lambda chunks=chunks: node.present == chunks + 1)  # type: ignore[misc]
    assert any(liar.requests for liar in drips), "they still hang"
    assert set(node.client.statistics.bytes_from) == {"relay"}


def test_an_older_word_of_the_trainers_that_is_repeated_at_once_keeps_nobody_from_the_news_nor_busy(
    cast: Cast, writer: Writer
) -> None:
    relay = Party(cast, "relay", [writer.source], relays=True)
    writer.write(1)
    honest = writer.store.opened(STEP)
    assert isinstance(honest, OpenedVersion)
    body = honest.tell(NO_OPENING, 0)

    def repeat(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    parrots = [cast.scripted(b"", {}, repeat, not_have_it) for _ in range(2)]
    sources = [relay_at(relay.server.url), *(relay_at(parrot.url, f"parrot {n}") for n, parrot in enumerate(parrots))]
    node = Party(cast, "node", sources)
    for chunks in range(2, 6):
        writer.write(1)
        wait_until(lambda chunks=chunks: node.present == chunks + 1)  # type: ignore[misc]

    def asked() -> int:
        return sum("/opening?" in target for parrot in parrots for target in parrot.requests)

    began, before = time.monotonic(), asked()
    wait_until(lambda: asked() > before + 2)  # so one of the two was asked twice
    assert time.monotonic() > began + 0.5, "one that had no news is left alone for a moment"


def test_a_teller_with_news_is_asked_again_at_once_and_one_without_after_a_moment() -> None:
    now, asked = [1000.0], []

    def ask(source: Source, of: str, after: int) -> OpeningAnswer:
        asked.append(source)
        return OpeningAnswer(b"", 1, 0, b"", b"")

    teller = origin_at("http://127.0.0.1:1")
    tellers = tellers_module.Tellers(lambda: [teller], ask, random.Random(0), lambda: now[0])
    assert tellers.next(NO_OPENING, 0, DEADLINE) is not None
    assert tellers.next(NO_OPENING, 0, 0.0) is None
    assert len(asked) == 1
    now[0] += 1.0
    assert tellers.next(NO_OPENING, 0, DEADLINE) is not None
    tellers.had_news(teller)
    assert tellers.next(NO_OPENING, 0, DEADLINE) is not None
    assert len(asked) == 3


def test_a_version_is_not_given_up_while_its_teller_does_not_answer(cast: Cast, writer: Writer) -> None:
    writer.write(1)
    honest = writer.store.opened(STEP)
    assert isinstance(honest, OpenedVersion)
    body = honest.tell(NO_OPENING, 0)

    def tell_once(request: Request) -> None:
        if "after=0" not in request.target:
            hang(request)
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    teller = cast.scripted(b"", {}, tell_once, not_have_it)
    client = cast.client(timeouts=Timeouts(idle=10 * DEADLINE))
    now, looks = [1000.0], [0]

    def clock() -> float:
        looks[0] += 1
        return now[0]

    ahead = Ahead(client, STEP, [relay_at(teller.url)], clock)
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(ahead.run())
        except MurmurationError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: any("opening" in target and "after=0" not in target for target in teller.requests))
    for _ in range(3):
        now[0] += ahead_module._GONE_SECONDS + 1
        seen = looks[0]
        wait_until(lambda: looks[0] > seen + 10 or not thread.is_alive())  # noqa: B023
    assert not ended
    ahead.end()
    thread.join()
    assert ended == [True]


# ---- when not


def test_a_full_disk_leaves_nothing_of_it(cast: Cast, writer: Writer) -> None:
    writer.write(3)
    node = Party(cast, "node", [writer.source], free_space=lambda folder: 0)
    assert isinstance(node.finish(), PreflightError)
    assert node.drafts == []


def test_what_was_fetched_ahead_onto_a_disk_that_fails_while_it_is_ended_is_fetched_anew(
    cast: Cast, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Party(cast, "node", [writer.source])
    writer.write(3)
    wait_until(lambda: node.present == 4)
    syncing, ending = threading.Event(), threading.Event()
    stop = Ahead.stop

    def fail(_: int) -> None:
        if not ending.is_set():
            syncing.set()
            assert ending.wait(DEADLINE)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Ahead, "stop", lambda self: (stop(self), ending.set()))
    monkeypatch.setattr(partial_module, "_SYNC_BYTES", 1)
    monkeypatch.setattr(os, "fdatasync", fail)
    writer.write(CHUNKS)
    assert syncing.wait(DEADLINE)
    manifest = writer.publish()
    node.client.statistics.bytes_from.clear()
    assert node.fetch(manifest) == writer.files
    assert isinstance(node.finish(), DiskFailed)
    assert node.client.statistics.resumed_chunks == 0
    assert (
        node.client.statistics.bytes_from["origin"] >= manifest.total_bytes
    )  # more: chunks that were on their way when it ended


def test_where_a_delta_will_do_nothing_is_fetched_ahead(cast: Cast) -> None:
    writer = Writer(cast, cast.bytes(4 * CHUNK))
    base = writer.origin.publish(cast.folder({"config.json": b"{}", "model": cast.bytes(4 * CHUNK)}, "base"), 0)
    writer.write(2)
    has_base = cast.client(cast.store("has-base"))
    has_base.fetch(0, base.digest, [writer.source], DEADLINE)
    assert not has_base.fetch_ahead(STEP, [writer.source])
    newcomer = Party(cast, "newcomer", [writer.source])
    wait_until(lambda: newcomer.present == 3)
    newcomer.client.close()
    newcomer.finish()


def test_one_look_at_a_time(cast: Cast, writer: Writer) -> None:
    node = Party(cast, "node", [writer.source])
    writer.write(1)
    wait_until(lambda: node.present == 2)
    with pytest.raises(LockHeld):
        node.client.fetch_ahead(STEP, [writer.source])
    writer.write(CHUNKS)
    assert node.fetch(writer.publish()) == writer.files


def test_nothing_of_an_opening_is_parsed_before_the_trainers_signature_is_checked(cast: Cast) -> None:
    trusted = Trusted(RUN, cast.key.address, cast.domain, ManifestLimits(), CHUNK)
    listing = ChunkList(Opening(RUN, STEP, (("model", CHUNKS * CHUNK),), "0" * 32, STEP, CHUNK))
    listing.sign([bytes(32)], cast.key, cast.domain)
    told = OpeningAnswer.parse(listing.tell(NO_OPENING, 0))
    assert ChunkList.begun(STEP, told, trusted).count == 1
    with pytest.raises(BadSignature):
        ChunkList.begun(STEP, replace(told, opening=b"garbage"), trusted)


class Hashed:
    """SHA-256 that counts the bytes it is given."""

    count = 0

    def __init__(self, data: bytes = b"", state: Any = None) -> None:
        self.state = state or hashlib.sha256()
        self.update(data)

    def update(self, data: bytes) -> None:
        Hashed.count += len(data)
        self.state.update(data)

    def copy(self) -> Hashed:
        return Hashed(state=self.state.copy())

    def digest(self) -> bytes:
        digest: bytes = self.state.digest()
        return digest


def test_a_list_that_grows_is_not_hashed_anew_for_each_signature(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_module, "hashlib", SimpleNamespace(sha256=Hashed))
    trusted = Trusted(RUN, cast.key.address, cast.domain, ManifestLimits(), CHUNK)
    hashes = [hashlib.sha256(bytes([number])).digest() for number in range(100)]
    opening = Opening(RUN, STEP, (("model", 100 * CHUNK),), "0" * 32, STEP, CHUNK)
    signed = ChunkList(opening)
    signed.sign(hashes[:1], cast.key, cast.domain)
    taken = ChunkList.begun(STEP, OpeningAnswer.parse(signed.tell(NO_OPENING, 0)), trusted)
    assert taken.opening.digest == opening.digest
    signed._listed, taken._listed = Hashed(hashes[0]), Hashed(hashes[0])  # type: ignore[assignment]
    Hashed.count = 0
    for each in hashes[1:]:
        signed.sign([each], cast.key, cast.domain)
        taken.take(OpeningAnswer.parse(signed.tell(opening.id, taken.count)), trusted)
    assert Hashed.count <= 2 * 2 * 32 * 99, "of each new hash twice: before it is listed, and with it, by each side"
    assert [taken.hash_of(number) for number in range(100)] == [each.hex() for each in hashes]
    message = signing.ListedChunks(RUN, STEP, opening.digest, 100, hashlib.sha256(b"".join(hashes)).digest())
    message.require(signed.tell(opening.id, 100)[-65:], cast.domain, cast.key.address, "list of chunks")


def test_a_trainer_that_lists_more_chunks_than_there_are_is_not_believed(cast: Cast) -> None:
    trusted = Trusted(RUN, cast.key.address, cast.domain, ManifestLimits(), CHUNK)
    opening = Opening(RUN, STEP, (("model", CHUNK),), "0" * 32, STEP, CHUNK)
    hashes = bytes(2 * 32)
    signed = signing.ListedChunks(RUN, STEP, opening.digest, 2, hashlib.sha256(hashes).digest()).sign(
        cast.key, cast.domain
    )
    told = OpeningAnswer(opening.encode(), 2, 0, hashes, signed)
    with pytest.raises(Malformed, match="2 chunks of an opening that has 1"):
        ChunkList.begun(STEP, told, trusted)
    listing = ChunkList(opening)
    with pytest.raises(Malformed, match="2 chunks of an opening that has 1"):
        listing.take(told, trusted)
    assert (listing.count, listing.hash_of(0)) == (0, "")
