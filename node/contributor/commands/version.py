"""`node version`: of this program, and whether it fits the run. (`node --version` is Node.js's.)"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.contributor.commands.context import (
    DEFAULT_HOME,
    HomeOption,
    SpecFile,
    open_chain,
    open_home,
    read_spec,
    settings,
)
from protocol.shell.cli import Json, emit


def register(app: typer.Typer) -> None:
    app.command()(version)


def version(
    home: HomeOption = DEFAULT_HOME, spec: SpecFile = None,
    check: Annotated[bool, typer.Option("--check", help="Read the run's spec, and end with 10 where this version cannot work for it.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Print the version of this program and of the protocol that it speaks; with --check also whether the run speaks it."""
    from protocol import __version__
    from protocol.constants import PROTOCOL_VERSION

    found: dict[str, Any] = {"version": __version__, "protocol": PROTOCOL_VERSION}
    if check:
        from protocol.identity import Key

        place = open_home(home)
        node = settings(place).value
        read_spec(place, node, open_chain(node), Key.generate(), spec)
        found["run"] = node.chain.run

    def text() -> None:
        typer.echo(f"murmuration {__version__}, protocol {PROTOCOL_VERSION}")
        if check:
            typer.echo(f"It fits run {found['run']}.")

    emit(found, as_json, text)
