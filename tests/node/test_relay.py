"""The relay: follows the head, serves what hashes to the chain, and is found where it says."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.relay.service import RelayService, ServeSettings
from protocol import metrics
from protocol.errors import ConfigError, DiskFailed, PreflightError, Unavailable
from protocol.identity import Key
from protocol.shardcast import store
from protocol.shardcast.client import Client
from protocol.shardcast.source import Source
from protocol.shardcast.store import MANIFEST_NAME, VersionStore, version_folder
from protocol.shell import home, spec_file
from tests.clock import eventually
from tests.node.stage import Stage, Wired, running

LOCAL = ServeSettings(host="127.0.0.1", port=0)


class Serving:
    """A relay service and what it announced."""

    def __init__(
        self, stage: Stage, settings: ServeSettings = LOCAL, progress: Callable[[], None] = lambda: None
    ) -> None:
        self.home = stage.home("relay", "relay")
        self.connection: Wired = stage.connection(Key.generate(), kept_spec=spec_file.path_in(self.home))
        self.service = RelayService(self.connection, self.home, settings, progress=progress)
        self.run, self.stop = self.service.run, self.service.stop

    def close(self) -> None:
        pass

    @property
    def url(self) -> str:
        return eventually(lambda: self.connection.announced.get("relay"), what="the relay is announced")

    def has(self, *steps: int) -> bool:
        told = self.home.read_status() or {}
        return told.get("state") == "serving" and told.get("versions") == list(steps)


def fetched(stage: Stage, url: str, step: int, name: str) -> bytes:
    """What a node gets from the relay alone."""
    chain, run = stage.world.chain, stage.world.run
    with VersionStore(stage.folder / name, 5) as store:
        client = Client(store, chain.domain, run, stage.world.trainer.key.address)
        source = Source(url, name="relay", is_relay=True)
        folder = client.fetch(step, chain.publication(run, step).manifest, [source], 10)
        return (folder / "model.safetensors").read_bytes()


def test_it_follows_the_head_and_serves_it_without_the_origin(stage: Stage) -> None:
    stage.publish()
    relay = Serving(stage)
    with running(relay):
        eventually(lambda: relay.has(0), what="the first version")
        stage.publish(stage.variant(0.5))
        eventually(lambda: relay.has(0, 1), what="the second version")
        stage.server.close()
        assert fetched(stage, relay.url, 0, "a") == (stage.tiny.model / "model.safetensors").read_bytes()
        assert fetched(stage, relay.url, 1, "b") != fetched(stage, relay.url, 0, "c")


def test_a_relay_makes_progress_with_every_chunk_however_long_a_version_takes(stage: Stage) -> None:
    stage.publish()
    was_here: list[bool] = []
    relay = Serving(stage, progress=lambda: was_here.append(version_folder(relay.home.data / "weights", 0).exists()))
    with running(relay):
        eventually(lambda: relay.has(0), what="the version")
    assert was_here[0] is False, "a chunk is progress before the version is whole"
    assert True in was_here, "and so is the look that found it"


def test_a_restart_serves_what_was_there_though_the_origin_is_gone(stage: Stage) -> None:
    stage.publish()
    relay = Serving(stage)
    with running(relay):
        eventually(lambda: relay.has(0), what="the version")
    stage.server.close()
    relay = Serving(stage)
    with running(relay):
        assert fetched(stage, relay.url, 0, "node") == (stage.tiny.model / "model.safetensors").read_bytes()


def test_a_relay_says_that_it_serves_before_its_first_look_has_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, told, go_on = Serving(stage), threading.Event(), threading.Event()
    follow = relay.service._follow

    def look(versions: Any) -> None:
        told.set()
        go_on.wait(10)
        follow(versions)

    monkeypatch.setattr(relay.service, "_follow", look)
    with running(relay):
        assert told.wait(10)
        assert relay.has()
        go_on.set()


def test_a_restart_serves_what_was_there_though_the_hub_is_away(stage: Stage) -> None:
    stage.publish()
    relay = Serving(stage)
    with running(relay):
        eventually(lambda: relay.has(0), what="the version")
    stage.hub.stop()
    relay = Serving(stage)
    with running(relay):
        assert fetched(stage, relay.url, 0, "node") == (stage.tiny.model / "model.safetensors").read_bytes()


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff"], ids=repr)
def test_a_kept_spec_that_is_not_the_chains_is_not_used_but_replaced(stage: Stage, damage: bytes) -> None:
    file = stage.folder / "spec.json"
    file.write_bytes(damage)
    assert stage.connection(Key.generate(), kept_spec=file).spec == stage.tiny.spec
    assert file.read_bytes() == stage.tiny.spec.canonical()
    file.write_bytes(damage)
    stage.hub.stop()
    with pytest.raises(Unavailable):
        _ = stage.connection(Key.generate(), kept_spec=file).spec


def test_an_origin_that_is_down_is_waited_for(stage: Stage) -> None:
    stage.publish()
    settings = ServeSettings(host="127.0.0.1", port=0, fetch_seconds=0.2)
    port = stage.server.port
    stage.server.close()
    relay = Serving(stage, settings)
    newest_known = metrics.REGISTRY["murmur_relay_head_step"]
    newest_known.clear()
    with running(relay) as ended:
        eventually(lambda: relay.has(), what="it serves what it has: nothing")
        eventually(lambda: newest_known.values() == {(): 0.0}, what="whoever watches it sees what it lacks")
        stage.reopen_origin(port)
        eventually(lambda: relay.has(0), what="the version")
        assert not ended.event.is_set()


def test_versions_of_another_life_are_replaced(stage: Stage) -> None:
    """The chain of a new run begins at step 0 again."""
    from protocol.shardcast.origin import Origin

    other = VersionStore(stage.home("relay", "relay").data / "weights", 5)
    origin = Origin(other, stage.world.trainer.key, stage.world.chain.domain, stage.world.run, anchor_every=1000)
    for step in (0, 7):
        origin.publish(stage.variant(0.5 + step), step)
    other.close()
    stage.publish()
    relay = Serving(stage)
    with running(relay):
        eventually(lambda: relay.has(0), what="only what the chain knows")
        assert fetched(stage, relay.url, 0, "node") == (stage.tiny.model / "model.safetensors").read_bytes()


def test_a_relay_whose_disk_is_full_serves_what_it_has_and_goes_on_when_there_is_room(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.publish()
    relay, asked, usage = Serving(stage), threading.Event(), shutil.disk_usage

    def usage_of_a_full_disk(folder: Path) -> Any:
        if folder.is_relative_to(relay.home.path):
            asked.set()
            return SimpleNamespace(free=(1 << 30) - 1)
        return usage(folder)

    def refused(path: Path, value: Any) -> None:
        raise PreflightError(f"cannot write {path}: No space left on device")

    with running(relay) as ended:
        eventually(lambda: relay.has(0), what="the first version")
        with monkeypatch.context() as full:
            full.setattr("protocol.shardcast.store.shutil.disk_usage", usage_of_a_full_disk)
            stage.publish(stage.variant(0.5))
            eventually(lambda: (relay.home.read_status() or {}).get("problem"), what="it says that there is no room")
            full.setattr(home, "write_json", refused)
            asked.clear()
            assert asked.wait(20), "it tries again"
            assert fetched(stage, relay.url, 0, "a") == (stage.tiny.model / "model.safetensors").read_bytes()
            assert not ended.event.is_set()
        eventually(lambda: relay.has(0, 1), what="the second version, once there is room")
    stage.publish(stage.variant(0.25))
    monkeypatch.setattr("protocol.shardcast.store.shutil.disk_usage", usage_of_a_full_disk)
    monkeypatch.setattr(home, "write_json", refused)
    again = Serving(stage)
    with running(again) as ended:
        assert fetched(stage, again.url, 1, "b") != fetched(stage, again.url, 0, "c")
        assert not ended.event.is_set()


def test_a_relay_whose_disk_fails_rests_before_it_fetches_everything_anew(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relays come first at the origin: one that fetched a version again at each look would keep everybody else from it."""
    stage.publish()
    relay, told, fetches, write = Serving(stage), threading.Semaphore(0), [], home.write_json
    sync = store._sync

    def failing(path: Path) -> None:
        if path.is_relative_to(relay.home.path):
            fetches.append(path)
            raise DiskFailed(f"cannot use {path}: Input/output error")
        sync(path)

    def telling(path: Path, value: Any) -> None:
        write(path, value)
        if isinstance(value, dict) and value.get("problem"):
            told.release()

    monkeypatch.setattr(home, "write_json", telling)
    with running(relay) as ended:
        with monkeypatch.context() as broken:
            broken.setattr(store, "_sync", failing)
            for _ in range(5):
                assert told.acquire(timeout=20), "each look says what is the matter"
            assert [path.name for path in fetches].count(MANIFEST_NAME) == 1
        assert "Input/output error" in (relay.home.read_status() or {})["problem"]
        assert not ended.event.is_set()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_nobody_is_told_to_look_for_it_everywhere(stage: Stage, host: str) -> None:
    with pytest.raises(ConfigError, match="how others reach it"):
        RelayService(stage.connection(Key.generate()), stage.home("relay", "relay"), ServeSettings(host=host))
    RelayService(
        stage.connection(Key.generate()), stage.home("relay", "relay"),
        ServeSettings(host=host, public_url="http://relay.example:8460"),
    )  # fmt: skip


def test_a_relay_that_announces_https_and_speaks_http_says_that_it_needs_a_proxy(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    relay = Serving(stage, ServeSettings(host="127.0.0.1", port=0, public_url="https://relay.example"))
    with running(relay):
        assert relay.url == "https://relay.example"
        eventually(lambda: "a reverse proxy must take https there" in caplog.text, what="a warning")
        eventually(lambda: (relay.home.read_status() or {}).get("url") == "https://relay.example", what="its status")
