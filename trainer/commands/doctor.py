"""`murmur trainer doctor`: what is wrong with a run on the machine of its trainer and hub."""

from __future__ import annotations

from typing import Annotated

import typer

from protocol.shell.cli import Fix, Json, PasswordFile, strip_at


def doctor(
    file: Annotated[str, typer.Argument(help="The run's file, as @run.toml.")],
    fix: Fix = False,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Check trainer and hub: file, key, disk, ports, chain, run, jury, network, memory; and say what to do. Exit code 0: nothing failed.

    Needs no password; with one it is tried. `run`, `resume` and `hub start` look at what they can without a network.
    """
    from protocol.shell.checkup import report
    from trainer.commands.checks import CHECKS, TrainerSubject

    subject = TrainerSubject(strip_at(file), password_file=password_file)
    report(CHECKS, subject, fix=fix, as_json=as_json)
