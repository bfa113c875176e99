"""What a training does, what its policy says, and its page: of a run on chain, or of `murmur trainer solo`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import PreflightError, UsageError
from protocol.shell.cli import Json, emit, strip_at
from protocol.shell.log_file import LINES, Follow, Lines, LogsJson

if TYPE_CHECKING:
    from rich.table import Table

    from trainer.config import Outputs, RunSettings, SoloSettings

_COLUMNS = 160  # of a table that is not printed to a terminal
_File = Annotated[str, typer.Argument(help="The run's file, as @run.toml.")]
_Alone = Annotated[
    bool, typer.Option("--solo", help="Of `murmur trainer solo`; so it is where run.toml has no [chain].")
]


def _outputs(file: str, alone: bool) -> tuple[Outputs, RunSettings | SoloSettings]:
    from protocol.settings import read_toml
    from trainer.config import Layout, Outputs, load_run, load_solo

    path: Path = strip_at(file)
    if not alone and "chain" in read_toml(path):
        run = load_run(path).value
        return Layout(path, run), run
    solo = load_solo(path).value
    return Outputs(path, solo.trainer.model, solo.solo.output), solo


def status(file: _File, alone: _Alone = False, as_json: Json = False) -> None:
    """Show what the trainer does or waits for."""
    from trainer.telemetry.status import read_status, status_lines

    found = read_status(_outputs(file, alone)[0])
    if not found:
        raise PreflightError("the trainer has not started yet", hint=f"murmur trainer solo or run @{file}")

    def text() -> None:
        for line in status_lines(found):
            typer.echo(line)

    emit(found, as_json, text)


def logs(
    file: _File,
    alone: _Alone = False,
    hub: Annotated[
        bool, typer.Option("--hub", help="Of the hub, whose file lies beside: run-hub.log for run.log.")
    ] = False,
    lines: Lines = LINES,
    follow: Follow = False,
    as_json: LogsJson = False,
) -> None:
    """Print the newest lines of the trainer, or of its hub, from the file that logging.file names, also across its rotations."""
    from protocol.settings import read_toml
    from protocol.shell import log_file
    from trainer.config import load_run, load_solo
    from trainer.log_files import of_hub

    path = strip_at(file)
    is_alone = alone or "chain" not in read_toml(path)
    if hub and is_alone:
        raise UsageError("a training on one machine has no hub", hint=f"murmur trainer logs @{path}")
    settings = (load_solo(path).value if is_alone else load_run(path).value).logging
    unit = "murmur-trainer"
    if hub:
        settings, unit = of_hub(settings), f"{unit} -u murmur-hub"  # the trainer's child, or a service by itself
    log_file.show(settings, unit, path, lines=lines, follow=follow, as_json=as_json)


def samples(file: _File, alone: _Alone = False, as_json: Json = False) -> None:
    """Show some samples of the last step: texts, rewards, advantages."""
    from trainer.telemetry.samples import newest, table

    found = newest(_outputs(file, alone)[0].samples)
    if found is None:
        raise PreflightError("no step has been trained yet", hint=f"murmur trainer status {file}")
    step, shown = found

    def text() -> None:
        printed(table(step, shown))

    emit({"step": step, "samples": [asdict(sample) for sample in shown]}, as_json, text)


def page(file: _File, alone: _Alone = False) -> None:
    """Serve this trainer's page until stopped (Ctrl-C), for when the trainer does not run; a running trainer serves its own.

    Only browsers on this machine see it. It needs no password and changes nothing.
    """
    from protocol.logs import only_warnings
    from protocol.shell.signals import until_signalled
    from trainer.telemetry.page.keeper import is_running
    from trainer.telemetry.page.service import served
    from trainer.telemetry.status import read_status

    only_warnings()
    layout, settings = _outputs(file, alone)
    said = read_status(layout)
    if is_running(said, layout) and said.get("page_url"):
        typer.echo(said["page_url"])
        typer.echo("the running trainer serves it", err=True)
        return
    with until_signalled() as ending, served(layout, settings) as url:
        if url is None:
            raise PreflightError(
                f"no port from {settings.page.port} on is free", hint="set page.port to 0: that takes any"
            )
        typer.echo(url)
        typer.echo("Ctrl-C ends it", err=True)
        ending.wait()


def printed(table: Table) -> None:
    """As wide as the terminal, or wide enough where there is none."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=_COLUMNS)).print(table)
