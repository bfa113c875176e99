"""A real Prometheus scrapes every role of a small swarm: each panel of a board has something to draw, and each alert something to look at."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana.alerts import ALERTS
from grafana.boards import BOARDS
from grafana.catalogue import JOB, catalogue
from grafana.expressions import asked, selectors
from swarm.ending import finish_judging
from swarm.pace import Patience
from swarm.processes import wait_until
from swarm.settings import SwarmSettings
from swarm.swarm import Swarm
from swarm.watch import Watch

from protocol.shell.home import read_json
from tests.prometheus import IS_HERE, WHY_NOT, Prometheus, running
from tests.swarm.training import await_training

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.chain,
    pytest.mark.long,
    pytest.mark.prometheus,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(not IS_HERE, reason=WHY_NOT),
]
HERE = Path(__file__).resolve().parents[2] / "scripts/grafana"
STEPS = 3
SECONDS = 240
"""Of a free machine, for set-up and all steps."""
PORTS = {"MURMUR_METRICS__PORT": "0", "MURMUR_HUB__METRICS__PORT": "0"}


@dataclass(frozen=True)
class Scraped:
    """`worked`: when the training ended, after which the nodes are stopped."""

    prometheus: Prometheus
    since: float
    worked: float
    until: float

    def numbers(self, expression: str) -> list[float]:
        return self.prometheus.numbers(expression, self.since, self.until)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """What Prometheus has seen of a training, from its beginning to the last verdict."""
    folder = tmp_path_factory.mktemp("scraped")
    environment = SwarmSettings().environment | PORTS
    swarm = Swarm(
        folder / "swarm", SwarmSettings(steps=STEPS, honest=2, cheats=(), relays=1, evaluate_every=1, environment=environment)
    )  # fmt: skip
    patience = Patience(SECONDS)
    try:
        swarm.up(print)
        since = time.time()
        with scraping(swarm, folder) as prometheus:
            await_training(swarm, STEPS, patience)
            worked = time.time()
            watch = Watch(swarm)
            finish_judging(swarm, watch, print, lambda: print(*watch.poll(), sep="\n"))
            time.sleep(2)  # two scrapes, so that the last word is in
            yield Scraped(prometheus, since, worked, time.time())
    finally:
        swarm.down()


@contextmanager
def scraping(swarm: Swarm, folder: Path) -> Iterator[Prometheus]:
    """By the example of a configuration, with the ports that the roles took and a look each second."""
    config: dict[str, Any] = yaml.safe_load((HERE / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(HERE / "rules.yml")]
    found = targets(swarm)
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": found[job["job_name"].removeprefix(JOB)]}]
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))
    with running(file, folder) as prometheus:
        yield prometheus


def targets(swarm: Swarm) -> dict[str, list[str]]:
    """Where each role shows its metrics, by its name."""
    homes = {
        "node": [node.home for node in swarm.nodes], "validator": [validator.home for validator in swarm.validators],
        "relay": [swarm.folder / relay for relay in swarm.relays], "bootnode": [swarm.folder / "bootnode"],
        "hub": [swarm.folder / "output/hub"], "trainer": [swarm.folder / "output"],
    }  # fmt: skip

    def told(home: Path) -> str | None:
        swarm.require_running()
        return (read_json(home / "status.json") or {}).get("metrics_url")

    def all_told() -> bool:
        return all(told(home) for each in homes.values() for home in each)

    wait_until(all_told, deadline=120, what="every role says where its metrics are", poll=0.5)
    return {role: [str(told(home)).removeprefix("http://") for home in each] for role, each in homes.items()}


def test_every_role_is_scraped(scraped: Scraped) -> None:
    up = scraped.prometheus.ask("query", query="sum by (job) (up)", time=scraped.worked)["result"]
    assert {each["metric"]["job"]: each["value"][1] for each in up} == {
        "murmur-node": "2", "murmur-validator": "3", "murmur-relay": "1", "murmur-bootnode": "1", "murmur-hub": "1", "murmur-trainer": "1",
    }  # fmt: skip


def test_every_panel_has_something_to_draw(scraped: Scraped) -> None:
    empty = [
        f"{board.name}: {panel.title}: {query.legend}"
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
        if not scraped.numbers(asked(board.expression(query)))
    ]
    assert empty == []


def test_every_alert_can_be_evaluated_and_what_it_looks_at_is_there(scraped: Scraped) -> None:
    (*groups,) = scraped.prometheus.ask("rules")["groups"]
    alerts = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert alerts.keys() == {alert.name for group in ALERTS.values() for alert in group}
    assert {name: rule["lastError"] for name, rule in alerts.items() if rule["health"] != "ok"} == {}
    asked_for = {
        selector.text for group in ALERTS.values() for alert in group for selector in selectors(alert.expression)
    }
    assert [selector for selector in sorted(asked_for) if not scraped.numbers(selector)] == []


def test_a_healthy_swarm_wakes_nobody(scraped: Scraped) -> None:
    firing = 'count by (alertname) (ALERTS{urgency="urgent",alertstate="firing"})'
    assert scraped.prometheus.numbers(firing, scraped.since, scraped.worked) == []


def test_the_table_of_metrics_names_the_roles_that_show_them(scraped: Scraped) -> None:
    known = {series: metric for metric in catalogue() for series in metric.series()}
    names = [
        name for name in scraped.prometheus.ask("label/__name__/values") if name.startswith(("murmur_", "process_"))
    ]
    assert [name for name in names if name not in known] == []
    wrong = {}
    for name in names:
        used = scraped.prometheus.ask(
            "query", query=f"count by (job) (max_over_time({name}[1h]) != 0)", time=scraped.until
        )["result"]
        roles = {each["metric"]["job"].removeprefix(JOB) for each in used}
        if extra := roles - set(known[name].roles):
            wrong[name] = sorted(extra)
    assert wrong == {}
