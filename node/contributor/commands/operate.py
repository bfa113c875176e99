"""`node start`: the worker in the foreground, until it is stopped or cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.contributor.commands.context import DEFAULT_HOME, HomeOption, open_home, settings
from protocol.shell.cli import PasswordFile

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
    from node.engine import int8
    from node.engine.hardware import measure_of
    from protocol.shell.role import role

    place = open_home(home)
    node = settings(place).value
    if node.serve.enabled:
        node.serve.require_ready()
    with role(place, node, password_file, what="a turn of the node") as up:
        measure = partial(measure_of, node.engine)
        worker = Worker(
            up.connection,
            place,
            node.work,
            engine or node.engine,
            up.ending,
            adopt=adopt,
            serve=node.serve,
            progress=up.progress,
            measure=measure,
            product=partial(int8.product, node.engine.device),
        )
        with closing(worker):
            worker.run()
