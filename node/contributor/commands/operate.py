"""`node start`: the worker in the foreground, until it is stopped or cannot go on. `node page`: its page, while it does not run."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.contributor.commands.context import DEFAULT_HOME, HomeOption, open_chain, open_home, settings
from protocol.shell.cli import PasswordFile
from protocol.shell.home import PASSWORD_VARIABLE
from protocol.shell.log_file import LINES, Follow, Lines, LogsJson

if TYPE_CHECKING:
    from node.contributor.settings import NodeSettings
    from node.engine import Engine
    from protocol.shell.home import Home


def register(app: typer.Typer) -> None:
    app.command()(start)
    app.command()(logs)
    app.command()(page)
    app.command()(notify)


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


def logs(
    home: HomeOption = DEFAULT_HOME, lines: Lines = LINES, follow: Follow = False, as_json: LogsJson = False
) -> None:
    """Print the newest lines of this node's log, from the file that logging.file names, also across its rotations."""
    from protocol.shell import log_file

    place = open_home(home)
    log_file.show(
        settings(place).value.logging, "murmur-node", place.config, lines=lines, follow=follow, as_json=as_json
    )


def page(home: HomeOption = DEFAULT_HOME) -> None:
    """Serve this node's page until stopped (Ctrl-C), for when the node does not run; a running node serves its own.

    Only browsers on this machine see it. It needs no password and changes nothing.
    """
    from node.contributor.page.service import served
    from protocol.errors import PreflightError
    from protocol.logs import only_warnings
    from protocol.shell.signals import until_signalled

    only_warnings()
    place = open_home(home)
    node = settings(place).value
    if url := (place.doing() or {}).get("page_url"):
        typer.echo(url)
        typer.echo("the running node serves it", err=True)
        return
    with until_signalled() as ending, served(place, node, lambda: open_chain(node)) as url:
        if url is None:
            raise PreflightError(f"no port from {node.page.port} on is free", hint="set page.port to 0: that takes any")
        typer.echo(url)
        typer.echo("Ctrl-C ends it", err=True)
        ending.wait()


def notify(home: HomeOption = DEFAULT_HOME) -> None:
    """Send a test notification by each way that [notify] of node.toml names. Exit code 1 where one does not arrive."""
    from protocol.errors import ConfigError
    from protocol.shell.notify import notification, why_not

    place = open_home(home)
    node = settings(place).value
    if not node.notify.ways:
        raise ConfigError("[notify] names no way", hint="set notify.webhook or notify.command in node.toml")
    one = notification("test", "this is how the node tells you what to look at", "", _who(place, node))
    failed = False
    for name, way in node.notify.ways.items():
        try:
            way(one)
            typer.echo(f"delivered by {name}")
        except Exception as error:  # noqa: BLE001  whatever it is, the other way is tried
            failed = True
            typer.echo(f"not delivered by {name}: {why_not(error)}", err=True)
    if failed:
        raise typer.Exit(1)


def run_worker(
    home: Path, password_file: Path | None, engine: Callable[[str], Engine] | None = None, *, adopt: bool = False
) -> None:
    """Runs a worker with the engine of its settings or another one."""
    from node.contributor import watchdog
    from node.contributor.commands.checks import CHECKS, NodeSubject
    from protocol.shell.checkup import require_startable

    place = open_home(home)
    subject = NodeSubject(place, starting=True)
    require_startable(CHECKS, subject)
    node = subject.settings
    asks_nobody = _asks_nobody(password_file)
    try:
        _work(place, node, password_file, engine, adopt=adopt, asks_nobody=asks_nobody)
    except watchdog.NoProgress as error:
        if not watchdog.may_start_fresh(asks_nobody):  # as of now: what was accepted meanwhile allows it once more
            raise
        watchdog.fresh_start(error)


def _who(place: Home, node: NodeSettings) -> dict[str, str]:
    return {"role": "node", "address": place.address("node"), "run": str(node.chain.run)}


def _asks_nobody(password_file: Path | None) -> bool:
    """Whether a password can be read once more; from a pipe it cannot."""
    return PASSWORD_VARIABLE in os.environ if password_file is None else password_file.is_file()


def _work(
    place: Home, node: NodeSettings, password_file: Path | None, engine: Callable[[str], Engine] | None, *, adopt: bool,
    asks_nobody: bool,
) -> None:  # fmt: skip
    from node.contributor.page.service import page_of_running_node
    from node.contributor.watchdog import NoProgress, end_of_hanging, may_start_fresh
    from node.contributor.worker import Worker
    from node.engine import int8
    from node.engine.hardware import measure_of
    from protocol.shell.notify import Notifier
    from protocol.shell.role import role

    with (
        role(place, node, password_file, what="a turn of the node") as up,
        page_of_running_node(place, node, up.connection.chain),
        Notifier(node.notify, _who(place, node)) as notifier,
    ):
        measure = partial(measure_of, node.engine)

        def end_of_it(why: NoProgress) -> None:
            tell(why)
            notifier.close()
            end_of_hanging(asks_nobody)(why)

        def tell(why: NoProgress) -> None:
            fate = "starts afresh, once" if may_start_fresh(asks_nobody) else "ended"
            notifier.tell("no_progress", f"the node {fate}: {why}", why.hint)

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
            end=end_of_it,
            notifier=notifier,
            rewards_from=node.notify.rewards_from,
        )
        with closing(worker):
            try:
                worker.run()
            except NoProgress as why:
                tell(why)
                raise
