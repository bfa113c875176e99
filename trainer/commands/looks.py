"""What a training does, and what its policy says: of a run on chain, or of `murmur trainer solo`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import PreflightError
from protocol.shell.cli import Json, emit, strip_at

if TYPE_CHECKING:
    from rich.table import Table

    from trainer.config import Outputs

_COLUMNS = 160  # of a table that is not printed to a terminal
_File = Annotated[str, typer.Argument(help="The run's file, as @run.toml.")]
_Alone = Annotated[
    bool, typer.Option("--solo", help="Of `murmur trainer solo`; so it is where run.toml has no [chain].")
]


def _outputs(file: str, alone: bool) -> Outputs:
    from protocol.settings import read_toml
    from trainer.config import Layout, Outputs, load_run, load_solo

    path: Path = strip_at(file)
    if not alone and "chain" in read_toml(path):
        return Layout(path, load_run(path).value)
    settings = load_solo(path).value
    return Outputs(path, settings.trainer.model, settings.solo.output)


def status(file: _File, alone: _Alone = False, as_json: Json = False) -> None:
    """Show what the trainer does or waits for."""
    from trainer.telemetry.status import read_status, status_lines

    found = read_status(_outputs(file, alone))
    if not found:
        raise PreflightError("the trainer has not started yet", hint=f"murmur trainer solo or run @{file}")

    def text() -> None:
        for line in status_lines(found):
            typer.echo(line)

    emit(found, as_json, text)


def samples(file: _File, alone: _Alone = False, as_json: Json = False) -> None:
    """Show some samples of the last step: texts, rewards, advantages."""
    from trainer.telemetry.samples import newest, table

    found = newest(_outputs(file, alone).samples)
    if found is None:
        raise PreflightError("no step has been trained yet", hint=f"murmur trainer status {file}")
    step, shown = found

    def text() -> None:
        printed(table(step, shown))

    emit({"step": step, "samples": [asdict(sample) for sample in shown]}, as_json, text)


def printed(table: Table) -> None:
    """As wide as the terminal, or wide enough where there is none."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=_COLUMNS)).print(table)
