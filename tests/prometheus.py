"""Prometheus itself, Debian's: it checks what is written for it, and reads what roles show."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarm.processes import Process, free_port, wait_until

WHY_NOT = "needs Prometheus and promtool (Debian: apt install prometheus)"
IS_HERE = shutil.which("prometheus") is not None and shutil.which("promtool") is not None


def promtool(*arguments: str | Path) -> str:
    """What it says. AssertionError where it refuses."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: Any) -> Any:
        """The data of its answer. HTTPError where it refuses."""
        with urllib.request.urlopen(
            f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30
        ) as answer:
            return json.load(answer)["data"]

    def numbers(self, expression: str, since: float, until: float) -> list[float]:
        """All finite values of all series in that time, as Grafana would draw them."""
        found = self.ask("query_range", query=expression, start=since, end=until, step=1)["result"]
        return [value for series in found for _, text in series["values"] if math.isfinite(value := float(text))]


@contextmanager
def running(config: Path, folder: Path) -> Iterator[Prometheus]:
    port = free_port()
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    process = Process("prometheus", command, folder / "prometheus.log")
    found = Prometheus(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        process.require_running()
        try:
            return bool(found.ask("status/buildinfo"))
        except OSError:
            return False

    try:
        wait_until(answers, deadline=30, what="Prometheus")
        yield found
    finally:
        process.stop()
