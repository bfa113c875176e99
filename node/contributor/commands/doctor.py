"""`node doctor`: what is wrong on this machine, and between it and the run."""

from __future__ import annotations

import typer

from node.contributor.commands.context import DEFAULT_HOME, HomeOption, open_home
from protocol.shell.cli import Fix, Json, PasswordFile


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    home: HomeOption = DEFAULT_HOME, fix: Fix = False, password_file: PasswordFile = None, as_json: Json = False
) -> None:
    """Check home, keys, disk, chain, seat, network, device and model, one by one, and say what to do. Exit code 0: nothing failed.

    Asks before anything is downloaded, and needs no password; with one it is tried. `start` looks at what it can without a network.
    """
    from node.contributor.commands.checks import CHECKS, NodeSubject
    from protocol.shell.checkup import report

    subject = NodeSubject(open_home(home), password_file=password_file)
    report(CHECKS, subject, fix=fix, as_json=as_json)
