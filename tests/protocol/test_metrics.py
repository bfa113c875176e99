"""What a role counts is read back as Prometheus reads it, and what goes wrong with a metric stays with that metric."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from protocol.errors import PreflightError, Unavailable
from protocol.exporter import Exporter, Health
from protocol.metrics import OTHER, REGISTRY, SERIES_MAX, MetricsSettings, Registry, host_of
from tests.clock import VirtualClock
from trainer.telemetry.record import NUMBERS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def health(clock: VirtualClock) -> Health:
    return Health("a turn", 600.0, clock)


@pytest.fixture
def exporter(registry: Registry, health: Health) -> Iterator[Exporter]:
    with Exporter(MetricsSettings(port=0), health, registry) as made:
        yield made


def get(exporter: Exporter, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{exporter.url}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(exporter: Exporter) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus' own parser makes of /metrics, by name and labels."""
    families = text_string_to_metric_families(get(exporter, "/metrics")[1])
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


# ---- writing -----------------------------------------------------------------------------------------------------------


def test_what_was_counted_is_what_prometheus_reads(registry: Registry, exporter: Exporter) -> None:
    submissions = registry.counter("murmur_node_submissions_total", "Submissions.", "outcome")
    submissions.add(outcome="accepted")
    submissions.add(2, outcome="accepted")
    submissions.add(outcome='odd "words"\nand lines')
    registry.gauge("murmur_node_step", "Step.").set(7)
    seconds = registry.histogram("murmur_node_generation_seconds", "Seconds.", bounds=(1.0, 10.0))
    for value in (0.5, 1.0, 3.0, 99.0):
        seconds.observe(value)
    found = samples(exporter)
    assert found["murmur_node_submissions_total", (("outcome", "accepted"),)] == 3
    assert found["murmur_node_submissions_total", (("outcome", 'odd "words"\nand lines'),)] == 1
    assert found["murmur_node_step", ()] == 7
    buckets = {le: found["murmur_node_generation_seconds_bucket", (("le", le),)] for le in ("1.0", "10.0", "+Inf")}
    assert buckets == {"1.0": 2, "10.0": 3, "+Inf": 4}
    assert found["murmur_node_generation_seconds_sum", ()] == 103.5
    assert found["murmur_node_generation_seconds_count", ()] == 4


def test_a_counter_is_there_before_anything_was_counted_and_a_gauge_is_not(
    registry: Registry, exporter: Exporter
) -> None:
    registry.counter("murmur_things_total", "Things.")
    registry.gauge("murmur_height", "Height.")
    found = samples(exporter)
    assert found["murmur_things_total", ()] == 0
    assert ("murmur_height", ()) not in found


def test_a_counter_may_begin_at_zero_with_the_values_that_its_label_may_have(
    registry: Registry, exporter: Exporter
) -> None:
    registry.counter("murmur_submissions_total", "Submissions.", "state").from_zero("made", "lost")
    found = samples(exporter)
    assert {found["murmur_submissions_total", (("state", state),)] for state in ("made", "lost")} == {0}


def test_how_long_a_role_stands_still_is_measured_and_the_room_on_its_disk(
    tmp_path: Path, clock: VirtualClock, health: Health
) -> None:
    with Exporter(MetricsSettings(port=0), health, folder=tmp_path) as exporter:
        clock.advance(42)
        found = samples(exporter)
        assert (found["murmur_role_idle_seconds", ()], found["murmur_role_idle_limit_seconds", ()]) == (42, 600)
        assert found["murmur_disk_free_bytes", ()] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
        exporter.progress()
        assert samples(exporter)["murmur_role_idle_seconds", ()] == 0


def test_the_process_itself_is_measured(exporter: Exporter) -> None:
    assert samples(exporter)["process_resident_memory_bytes", ()] > 1 << 20


def test_a_counter_never_goes_back(registry: Registry) -> None:
    counter = registry.counter("murmur_bytes_total", "Bytes.")
    counter.reach(10)
    counter.reach(3)
    with pytest.raises(ValueError, match="only grows"):
        counter.add(-1)
    assert counter.values() == {(): 10}


def test_labels_that_get_out_of_hand_are_counted_together(registry: Registry) -> None:
    counter = registry.counter("murmur_strangers_total", "Strangers.", "name")
    for number in range(SERIES_MAX + 50):
        counter.add(name=number)
    assert len(counter.values()) == SERIES_MAX + 1
    assert counter.values()[OTHER,] == 50
    assert sum(counter.values().values()) == SERIES_MAX + 50


def test_a_metric_is_declared_once_and_written_as_declared(registry: Registry) -> None:
    counter = registry.counter("murmur_once_total", "Once.", "outcome")
    with pytest.raises(ValueError, match="declared twice"):
        registry.gauge("murmur_once_total", "Again.")
    with pytest.raises(ValueError, match="labels"):
        counter.add(result="fine")
    with pytest.raises(ValueError, match="_total"):
        registry.counter("murmur_once", "A counter by another name.")


def test_an_endpoint_is_named_without_its_key() -> None:
    assert host_of("https://user:secret@base.example.com:8545/v2/secret?key=secret") == "base.example.com:8545"
    assert host_of("https://base.example.com/v2/secret") == "base.example.com"
    assert host_of("http://[::1") == OTHER
    assert host_of("secret") == OTHER


def test_a_gauge_may_be_looked_at_when_somebody_asks(registry: Registry, exporter: Exporter) -> None:
    peers = registry.gauge("murmur_peers", "Peers.")

    def broken() -> None:
        raise Unavailable("the host is not running")

    with registry.looking(broken), registry.looking(lambda: peers.set(3)):
        assert samples(exporter)["murmur_peers", ()] == 3
    peers.set(4)
    assert samples(exporter)["murmur_peers", ()] == 4, "nobody looks any more"


# ---- serving -----------------------------------------------------------------------------------------------------------


def test_health_is_lost_without_progress_and_comes_back_with_it(
    exporter: Exporter, health: Health, clock: VirtualClock
) -> None:
    assert get(exporter, "/healthz")[0] == 200
    clock.advance(601)
    status, text = get(exporter, "/healthz")
    found = json.loads(text)
    assert (status, found["healthy"], found["seconds_since"]) == (503, False, 601.0)
    assert found["reason"] == "a turn: none for 601 s, and 600 s is the most"
    health.progress()
    status, text = get(exporter, "/healthz")
    assert (status, json.loads(text)["healthy"]) == (200, True)


def test_nothing_is_served_unless_a_port_is_set(registry: Registry, health: Health) -> None:
    with Exporter(MetricsSettings(), health, registry) as made:
        assert made.url is None


def test_a_port_that_is_taken_is_said_at_once(registry: Registry, health: Health, exporter: Exporter) -> None:
    port = int((exporter.url or "").rsplit(":", 1)[1])
    with (
        pytest.raises(PreflightError, match=f"metrics at 127.0.0.1:{port}"),
        Exporter(MetricsSettings(port=port), health, registry),
    ):
        pass


def test_unknown_paths_and_methods_are_refused(exporter: Exporter) -> None:
    assert get(exporter, "/")[0] == 404
    request = urllib.request.Request(f"{exporter.url}/metrics", method="POST", data=b"x")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    assert caught.value.code == 501


def test_readers_that_say_nothing_keep_nobody_else_out_for_long(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int((exporter.url or "").rsplit(":", 1)[1])
    silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(40)]
    try:
        with monkeypatch.context() as patch:
            patch.setattr("protocol.exporter._REQUEST_SECONDS", 0.0)
            assert all(connection.recv(1) == b"" for connection in silent), "each is refused or cut"
        assert get(exporter, "/healthz")[0] == 200
    finally:
        for connection in silent:
            connection.close()


# ---- the whole ---------------------------------------------------------------------------------------------------------


def test_a_module_that_only_counts_brings_no_server() -> None:
    code = "import sys, protocol.metrics; sys.exit('prometheus_client' in sys.modules or 'http.server' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


def test_every_metric_that_a_role_declares_is_documented() -> None:
    for role in ("node.contributor.worker", "node.validator.service", "node.relay.service", "trainer.hub.service"):
        import_module(role)
    import_module("trainer.loop.train")
    documented = set(re.findall(r"^\| `(murmur_\w+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
    of_a_step = {f"murmur_trainer_{number.name}" for number in NUMBERS}
    assert documented == {metric.name for metric in REGISTRY} | of_a_step
