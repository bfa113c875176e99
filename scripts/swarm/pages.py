"""Where a browser sees a swarm: the run's page, the trainer's, and those of the nodes, also once the nodes are stopped."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from protocol.errors import DeadlineExceeded
from protocol.shell.home import read_json
from swarm.processes import wait_until
from swarm.swarm import Swarm

_MOMENT = 60.0  # seconds in which hub and nodes begin, on a machine that does much else


def addresses(swarm: Swarm) -> dict[str, str]:
    """By whose page it is; of nodes that run, as they say."""
    return {name: url for name, url in _named(swarm).items() if url}


def awaited(swarm: Swarm, seconds: float = _MOMENT) -> dict[str, str]:
    """The same once all of them say where they serve it, which takes them a while after their start; after so many seconds, as many as do."""
    with suppress(DeadlineExceeded):
        wait_until(lambda: all(_named(swarm).values()), deadline=seconds, what="all pages are served")
    return addresses(swarm)


def _named(swarm: Swarm) -> dict[str, str | None]:
    running = {process.name for process in swarm.processes}
    return {
        "the run": _said(swarm.folder / "output/hub/status.json", "page"),
        "the trainer": _said(swarm.folder / "output/status.json", "page_url"),
        **{node.name: _said(node.home / "status.json", "page_url") for node in swarm.honest if node.name in running},
    }


def of_stopped_nodes(swarm: Swarm) -> dict[str, str]:
    """Has `node page` serve the pages of the honest nodes, which have ended."""
    served = {node.name: swarm.start(f"page-{node.name}", "node", "page", "--home", node.home) for node in swarm.honest}

    def address(name: str) -> str:
        served[name].require_running()
        log = swarm.folder / "logs" / f"page-{name}.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return next((line for line in lines if line.startswith("http://")), "")

    wait_until(lambda: all(map(address, served)), deadline=60, what="the nodes' pages are served")
    return {name: address(name) for name in served}


def _said(file: Path, name: str) -> str | None:
    return (read_json(file) or {}).get(name)
