"""`node start`: the worker in the foreground, until it is stopped or cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.contributor.commands.context import DEFAULT_HOME, HomeOption, open_home, settings
from protocol.shell.cli import PasswordFile
from protocol.shell.home import only_here

if TYPE_CHECKING:
    from node.engine import Engine


def register(app: typer.Typer) -> None:
    app.command()(start)


def start(
    home: HomeOption = DEFAULT_HOME,
    password_file: PasswordFile = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--no-other-copy-runs",
            help="Go on with a key that has worked elsewhere. Only where no other copy of this node runs any more.",
        ),
    ] = False,
) -> None:
    """Generate rollouts for the run until stopped (Ctrl-C); restarts lose nothing."""
    run_worker(home, password_file, adopt=adopt)


def run_worker(
    home: Path, password_file: Path | None, engine: Callable[[str], Engine] | None = None, *, adopt: bool = False
) -> None:
    """Runs a worker with the engine of its settings or another one."""
    from node.contributor.worker import Worker
    from node.engine import make_engine
    from node.signals import until_signalled
    from protocol.exporter import Exporter, Health
    from protocol.logs import set_up_logging
    from protocol.shell.connection import connect

    place = open_home(home)
    node = settings(place).value
    set_up_logging(node.logging)
    key = place.open_key("node", password_file)
    peers_file = place.data / "peers.json"
    with (
        until_signalled() as ending,
        place.lock(),
        only_here(key.address, node.chain.chain_id),
        Exporter(node.metrics, Health("a turn of the node", node.metrics.progress_seconds)) as exporter,
        connect(node.chain, node.peers, key, peers_file=peers_file) as connection,
    ):
        place.metrics_url = exporter.url
        worker = Worker(
            connection,
            place,
            node.work,
            engine or partial(make_engine, node.engine),
            ending,
            adopt=adopt,
            progress=exporter.progress,
        )
        try:
            worker.run()
        finally:
            worker.close()
            place.write_status(state="stopped")
