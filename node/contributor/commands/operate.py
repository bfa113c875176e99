"""`node start`: the worker in the foreground, until it is stopped or cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from node.contributor.commands.context import DEFAULT_HOME, HomeOption, open_home, settings
from protocol.shell.cli import PasswordFile, set_up_logging

if TYPE_CHECKING:
    from node.engine import TorchEngine


def register(app: typer.Typer) -> None:
    app.command()(start)


def start(home: HomeOption = DEFAULT_HOME, password_file: PasswordFile = None) -> None:
    """Generate rollouts for the run until stopped (Ctrl-C); restarts lose nothing."""
    run_worker(home, password_file)


def run_worker(home: Path, password_file: Path | None, engine: Callable[[str], TorchEngine] | None = None) -> None:
    """Runs a worker with the default engine or another one."""
    from node.contributor.worker import Worker
    from node.signals import until_signalled
    from protocol.shell.connection import connect

    set_up_logging()
    place = open_home(home)
    node = settings(place).value
    key = place.open_key("node", password_file)
    peers_file = place.data / "peers.json"
    with (
        until_signalled() as ending,
        place.lock(),
        connect(node.chain, node.peers, key, peers_file=peers_file) as connection,
    ):
        worker = Worker(connection, place, node.work, engine, ending)
        try:
            worker.run()
        finally:
            worker.close()
            place.write_status(state="stopped")
