"""Boards and alerts ask for what roles show: names and labels by the catalogue, expressions and alarms by Prometheus' own tool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana import generated
from grafana.alerts import ALERTS, Alert
from grafana.boards import BOARDS, Board, Panel
from grafana.catalogue import BY_PROMETHEUS, ROLES, catalogue
from grafana.expressions import asked, grouped, selectors, shown

from tests.prometheus import IS_HERE, WHY_NOT, promtool

HERE = Path(__file__).resolve().parents[2] / "scripts/grafana"
PANELS = [pytest.param(board, panel, id=f"{board.name}: {panel.title}") for board in BOARDS for panel in board.panels]
EVERY_ALERT = [alert for alerts in ALERTS.values() for alert in alerts]
SERIES = {series: metric for metric in catalogue() for series in metric.series()}
needs_prometheus = pytest.mark.skipif(not IS_HERE, reason=WHY_NOT)


def unknown(expression: str, text: str) -> Iterator[str]:
    """Metrics and labels of an expression, and labels shown of it, that no role has."""
    of_it = set(BY_PROMETHEUS)
    for selector in selectors(expression):
        if selector.metric == "up":
            yield from set(selector.labels) - set(BY_PROMETHEUS)
        elif selector.metric not in SERIES:
            yield selector.metric
        else:
            allowed = SERIES[selector.metric].allowed
            of_it |= allowed
            yield from (f"{selector.metric}{{{label}}}" for label in selector.labels if label not in allowed)
    yield from (grouped(expression) | shown(text)) - of_it


# ---- where the files go -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("installed_from", ["clone", "release"])
def test_what_the_docs_say_to_copy_lies_where_prometheus_and_grafana_look(installed_from: str, tmp_path: Path) -> None:
    folder, root = HERE, HERE.parents[1]
    if installed_from == "release":
        folder = tmp_path / "grafana"
        (line,) = re.findall(r"^cp .*/grafana/.*$", (root / "scripts/release").read_text(), re.MULTILINE)
        folder.mkdir()
        subprocess.run(["bash", "-c", f"output={tmp_path}; {line}"], cwd=root, check=True, timeout=10)
    chapter = (root / "docs/running.md").read_text().split("### With Prometheus and Grafana")[1]
    etc = tmp_path / "etc"
    for program in ("prometheus", "grafana"):
        (etc / program).mkdir(parents=True)
    for copies in re.findall(r"^sudo (cp [^#\n]*)", chapter, re.MULTILINE):
        subprocess.run(["bash", "-c", copies.replace("/etc", str(etc))], cwd=folder, check=True, timeout=10)
    (told,) = (etc / "grafana/provisioning/dashboards").iterdir()
    (provider,) = yaml.safe_load(told.read_text())["providers"]
    boards = Path(provider["options"]["path"].replace("/etc", str(etc)))
    assert {file.stem for file in boards.iterdir()} == {board.name for board in BOARDS}
    (rules,) = yaml.safe_load((etc / "prometheus/prometheus.yml").read_text())["rule_files"]
    assert (etc / "prometheus" / rules).is_file()


# ---- what the tables name is there --------------------------------------------------------------------------------------


def test_a_made_up_name_or_label_is_noticed() -> None:
    assert list(unknown("sum by (job) (murmur_node_step)", "{{instance}}")) == []
    assert list(unknown("murmur_node_stp", "")) == ["murmur_node_stp"]
    assert list(unknown('murmur_node_step{state="made"}', "")) == ["murmur_node_step{state}"]
    assert list(unknown("sum by (state) (murmur_node_step)", "")) == ["state"]
    assert list(unknown("murmur_node_step", "{{ $labels.state }} {{ $value }}")) == ["state"]
    assert list(unknown("murmur_hub_request_seconds", "")) == ["murmur_hub_request_seconds"], "it has buckets"


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_every_metric_and_label_of_a_panel_is_shown_by_its_role(board: Board, panel: Panel) -> None:
    for query in panel.queries:
        expression = board.expression(query)
        assert list(unknown(expression, query.legend)) == []
        roles = {role for role in ROLES if re.fullmatch(board.jobs, f"murmur-{role}")}
        assert all(roles & set(SERIES[selector.metric].roles) for selector in selectors(expression))


@pytest.mark.parametrize("alert", EVERY_ALERT, ids=lambda alert: alert.name)
def test_every_metric_and_label_of_an_alert_is_there(alert: Alert) -> None:
    assert list(selectors(alert.expression))
    assert list(unknown(alert.expression, f"{alert.summary} {alert.next}")) == []


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_every_panel_has_a_unit_and_one_sentence(board: Board, panel: Panel) -> None:
    assert panel.unit
    assert re.fullmatch(r"[A-Z].*[^.]\.", panel.text), panel.text
    assert re.search(r"\. [A-Z]", panel.text) is None


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_board_has_at_most_twelve_panels_that_do_not_overlap(board: Board) -> None:
    made: dict[str, Any] = json.loads((HERE / f"boards/{board.name}.json").read_text())
    assert len(made["panels"]) == len(board.panels) <= 12
    taken = [
        (x, y)
        for panel in made["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


def test_commands_that_an_alert_names_exist() -> None:
    reference = (HERE.parents[1] / "docs/reference-cli.md").read_text()
    for alert in EVERY_ALERT:
        for command in re.findall(r"\b(?:murmur|node) [a-z]+(?: [a-z]+)?\b", alert.next):
            words = command.removeprefix("murmur ")
            assert re.search(rf"^### `murmur {words.removesuffix(' where')}`$", reference, re.MULTILINE), command


def test_the_page_counts_the_alerts_and_names_the_ports() -> None:
    page = (HERE.parents[1] / "docs/running.md").read_text()
    assert f"has {len(EVERY_ALERT)} alerts" in page
    example = (HERE / "prometheus.yml").read_text()
    named = re.findall(r"\b91\d\d\b", page.partition("### With Prometheus")[2])
    assert named
    assert all(f"127.0.0.1:{port}" in example for port in named)


def test_each_metric_says_what_it_means_in_a_sentence() -> None:
    names = [metric.name for metric in catalogue()]
    assert len(names) == len(set(names))
    assert [metric.name for metric in catalogue() if not re.fullmatch(r"[A-Z`].{12,}[.]", metric.text)] == []


# ---- as Prometheus reads them -------------------------------------------------------------------------------------------


@needs_prometheus
@pytest.mark.prometheus
def test_prometheus_takes_its_configuration_with_all_rules() -> None:
    said = promtool("check", "config", HERE / "prometheus.yml")
    assert f"{len(EVERY_ALERT)} rules found" in said
    jobs = re.findall(r"job_name: ([\w-]+)", (HERE / "prometheus.yml").read_text())
    assert jobs == [f"murmur-{role}" for role in ROLES]


@needs_prometheus
@pytest.mark.prometheus
def test_every_expression_of_a_board_is_one(tmp_path: Path) -> None:
    expressions = [
        asked(board.expression(query)) for board in BOARDS for panel in board.panels for query in panel.queries
    ]
    rules = [{"record": f"panel:{place}", "expr": expression} for place, expression in enumerate(expressions)]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(expressions)} rules found" in promtool("check", "rules", file)


OF_NODE = 'job="murmur-node",instance="here"'
OF_VALIDATOR = 'job="murmur-validator",instance="here"'
OF_TRAINER = 'job="murmur-trainer",instance="here"'
WAITING = 'phase="waiting for rollouts"'
TROUBLE: dict[str, list[dict[str, str]]] = {
    "RoleDown": [{"up{job='murmur-relay'}": "0x150"}],
    "RoleStandsStill": [{"murmur_role_idle_seconds": "0+60x150", "murmur_role_idle_limit_seconds": "600x150"}],
    "DiskLow": [{"murmur_disk_free_bytes": "4000000000x150"}],
    "GasLow": [{"murmur_gas_eth": "0.0004x150"}, {"murmur_gas_eth": "1-0.001x150"}],
    "ChainEndpointDisagrees": [{'murmur_rpc_errors_total{reason="contradicted",endpoint="a"}': "0+1x150"}],
    "BookBehindChain": [{"murmur_book_lag_blocks": "301x150"}],
    "NobodyConnected": [{"murmur_p2p_connections": "0x150"}],
    "NodeHasNoAcceptedWork": [
        {f"murmur_node_accepted_timestamp_seconds{{{OF_NODE}}}": "0x150"},
        {
            f"murmur_node_accepted_timestamp_seconds{{{OF_NODE}}}": "0x150",
            f"murmur_node_suspended_seconds{{{OF_NODE}}}": "0x150",
            f"murmur_node_wanted_submissions{{{OF_NODE}}}": "3x150",
        },
    ],
    "NodeSuspended": [{"murmur_node_suspended_seconds": "60x150"}],
    "NodeCaseOpen": [{"murmur_node_open_cases": "1x150"}],
    "NodeWorkRejected": [{'murmur_node_submissions_total{state="soft"}': "0+1x150"}],
    "NodeWeightsDoNotArrive": [{"murmur_node_head_step": "9x150", "murmur_node_step": "7x150"}],
    "ValidatorSilent": [
        {
            f"murmur_validator_judged_timestamp_seconds{{{OF_VALIDATOR}}}": "0x150",
            f"murmur_validator_pending{{{OF_VALIDATOR}}}": "1x150",
        }
    ],
    "JuryWaits": [{"murmur_validator_jury_cases": "1x150"}],
    "RelayBehind": [{"murmur_relay_head_step": "9x150", "murmur_relay_newest_step": "8x150"}],
    "TrainerStalls": [{f"murmur_trainer_steps_left{{{OF_TRAINER}}}": "5x150"}],
    "TrainerStarves": [{f"murmur_trainer_running_phase_seconds{{{WAITING}}}": "0+60x150"}],
    "TrainerAlarm": [{"murmur_trainer_alarms": "1x150"}],
    "HubRefuses": [{'murmur_hub_shed_total{kind="poll"}': "0+1x150"}],
}
"""Series, a value a minute, at whose end the alert is on."""
QUIET: dict[str, list[dict[str, str]]] = {
    "RoleDown": [{"up{job='node'}": "0x150"}, {"up{job='murmur-relay'}": "1x150"}],
    "RoleStandsStill": [{"murmur_role_idle_seconds": "5x150", "murmur_role_idle_limit_seconds": "600x150"}],
    "DiskLow": [{"murmur_disk_free_bytes": "6000000000x150"}],
    "GasLow": [{"murmur_gas_eth": "0.01x150"}, {"murmur_gas_eth": "1-0.0001x150"}],
    "ChainEndpointDisagrees": [{'murmur_rpc_errors_total{reason="contradicted",endpoint="a"}': "3x150"}],
    "BookBehindChain": [{"murmur_book_lag_blocks": "2x150"}],
    "NobodyConnected": [
        {"murmur_p2p_connections": "1x150"},
        {'murmur_p2p_connections{job="murmur-bootnode"}': "0x150"},
    ],
    "NodeHasNoAcceptedWork": [
        {f"murmur_node_accepted_timestamp_seconds{{{OF_NODE}}}": "0+60x150"},
        {
            f"murmur_node_accepted_timestamp_seconds{{{OF_NODE}}}": "0x150",
            f"murmur_node_suspended_seconds{{{OF_NODE}}}": "9x150",
        },
        {
            f"murmur_node_accepted_timestamp_seconds{{{OF_NODE}}}": "0x150",
            f"murmur_node_wanted_submissions{{{OF_NODE}}}": "-1x150",
        },
    ],
    "NodeSuspended": [{"murmur_node_suspended_seconds": "0x150"}],
    "NodeCaseOpen": [{"murmur_node_open_cases": "0x150"}],
    "NodeWorkRejected": [{'murmur_node_submissions_total{state="accepted"}': "0+1x150"}],
    "NodeWeightsDoNotArrive": [{"murmur_node_head_step": "9x150", "murmur_node_step": "8x150"}],
    "ValidatorSilent": [
        {
            f"murmur_validator_judged_timestamp_seconds{{{OF_VALIDATOR}}}": "0x150",
            f"murmur_validator_pending{{{OF_VALIDATOR}}}": "0x150",
        }
    ],
    "JuryWaits": [{"murmur_validator_jury_cases": "1x20 0x130"}],
    "RelayBehind": [{"murmur_relay_head_step": "9x150", "murmur_relay_newest_step": "9x150"}],
    "TrainerStalls": [
        {f"murmur_trainer_steps_left{{{OF_TRAINER}}}": "200-1x150"},
        {f"murmur_trainer_steps_left{{{OF_TRAINER}}}": "0x150"},
    ],
    "TrainerStarves": [{f"murmur_trainer_running_phase_seconds{{{WAITING}}}": "20x150"}],
    "TrainerAlarm": [{"murmur_trainer_alarms": "0x150"}],
    "HubRefuses": [{'murmur_hub_shed_total{kind="poll"}': "7x150"}],
}
"""Series at whose end it is not."""
_MINUTES = 150


def played(name: str, series: dict[str, str], is_on: bool) -> dict[str, Any]:
    """As promtool plays it: whether the alert is on at the end."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                "eval_time": f"{_MINUTES}m",
                "exp_samples": [{"labels": "{}", "value": int(is_on)}],
            }
        ],
    }


@needs_prometheus
@pytest.mark.prometheus
def test_each_alert_is_on_in_its_trouble_and_off_without(tmp_path: Path) -> None:
    assert TROUBLE.keys() == QUIET.keys() == {alert.name for alert in EVERY_ALERT}
    plays = [
        played(name, series, is_on)
        for table, is_on in ((TROUBLE, True), (QUIET, False))
        for name, each in table.items()
        for series in each
    ]
    file = tmp_path / "plays.yml"
    told = {"rule_files": [str(HERE / "rules.yml")], "evaluation_interval": "5m", "tests": plays}
    file.write_text(json.dumps(told))
    assert "SUCCESS" in promtool("test", "rules", file)


def test_what_is_generated_is_what_lies_there() -> None:
    made = generated()
    assert {path.relative_to(HERE).as_posix() for path in HERE.glob("boards/*.json")} == made.keys() - {"rules.yml"}
    assert [name for name, text in made.items() if (HERE / name).read_text() != text] == []
