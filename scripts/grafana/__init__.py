"""Boards for Grafana and alerts for Prometheus, of every role: tables here, and what scripts/make-docs writes of them beside.

catalogue.py     every metric of every role, read from the code: docs/metrics.md, and all that may be asked for
boards.py        the panels of each board                   alerts.py   what wakes somebody, and the next command
files.py         both as Grafana and Prometheus read them: boards/*.json and rules.yml
expressions.py   which metrics and labels an expression names
prometheus.yml   an example with one job per role           provisioning/   the same boards without a click
"""

from __future__ import annotations

from grafana import files
from grafana.alerts import ALERTS
from grafana.boards import BOARDS


def generated() -> dict[str, str]:
    """Text of each generated file, by its path in this folder."""
    return {f"boards/{board.name}.json": files.board(board) for board in BOARDS} | {"rules.yml": files.rules(ALERTS)}
