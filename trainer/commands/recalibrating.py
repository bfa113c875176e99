"""`murmur trainer recalibrate`: another calibration for the versions to come of a running run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from protocol.errors import ConfigError, PreflightError, UsageError
from protocol.shell.cli import Json, Yes, confirm, emit, strip_at

if TYPE_CHECKING:
    from pathlib import Path

    from protocol.runspec import RunSpec
    from trainer.hub.recalibration import Recalibrations


def recalibrate(
    file: Annotated[str, typer.Argument(help="The run's file, as @run.toml.")],
    calibration: Annotated[
        str | None,
        typer.Argument(
            help="What `murmur validator calibrate` wrote, or a shipped one's name; shows what is in force when not given."
        ),
    ] = None,
    from_version: Annotated[
        int | None, typer.Option(min=1, help="First version it is to hold for; the next one, when not given.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Take back one that waits to be published.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Have later versions of the weights judged by another calibration. What is published stays judged as it was.

    The hub signs it with the first version that it publishes from then on, and each version after that repeats it. Nodes and validators refuse what the run spec does not
    allow (spec.verification.recalibration), whoever has signed it. Run this where the hub runs.
    """
    from protocol.shell import runfile
    from trainer.hub.recalibration import Recalibrations

    path = strip_at(file)
    spec = runfile.read_spec(path)
    if spec.verification.recalibration is None:
        raise ConfigError(
            "this run's calibration stands for as long as the run: its spec has no [spec.verification.recalibration]",
            hint="create a new run with that table, empty for the defaults",
        )
    folder = runfile.hub_folder(path)
    if not folder.is_dir():
        raise PreflightError(f"there is no {folder}", hint="run this on the hub's machine, once the hub was started")
    found = Recalibrations(spec, folder)
    if off:
        if calibration is not None:
            raise UsageError("give a calibration, or --off")
        waited = found.withdraw()
        emit(
            {"withdrawn": waited},
            as_json,
            lambda: typer.echo("taken back" if waited else "nothing waits to be published"),
        )
        return
    head = _head(path)
    if calibration is None:
        _show(found, spec, head, as_json)
        return
    _request(found, spec, calibration, head, from_version, yes=yes, as_json=as_json)


def _request(
    found: Recalibrations, spec: RunSpec, calibration: str, head: int, earliest: int | None, *, yes: bool, as_json: bool
) -> None:
    from protocol.calibration_notice import changes, in_force
    from protocol.shell import runfile

    measured = runfile.other_calibration(calibration, spec)
    notice = found.notice(measured, max(head, 0) + 1 if earliest is None else earliest, head)
    before = in_force(spec.verification, found.book.newest)
    lines = changes(before, notice) or ["no limit changes"]
    summed = spec.verification.history is not None
    confirm(
        "Replace the calibration?",
        [
            f"{notice.calibration[:12]} in place of {before.calibration[:12]}, from version {notice.since} on at the earliest",
            *lines,
            *(["the sums over seats' work begin anew, and take more evidence to decide"] if summed else []),
            "nodes and validators see it with the first such version; no version that is out is judged by it",
        ],
        yes,
    )
    found.request(notice)
    told = {"calibration": notice.calibration, "earliest": notice.since, "changes": lines}
    emit(told, as_json, lambda: typer.echo(f"waits for version {notice.since}: calibration {notice.calibration[:12]}"))


def _head(path: Path) -> int:
    """The newest version on chain; -1 before the first."""
    from protocol.settings import read_toml
    from protocol.shell import runfile

    settings, chain_id = runfile.client(path)
    run = read_toml(path)["chain"].get("run")
    if not isinstance(run, int):
        raise ConfigError(f"{path} does not say which run it is", hint="put `run = N` under [chain]")
    head = settings.connect(chain_id).head(run)
    return -1 if head is None else head.step


def _show(found: Recalibrations, spec: RunSpec, head: int, as_json: bool) -> None:
    notice, waits = found.book.of(max(head, 0)), found.requested
    data: dict[str, Any] = {
        "calibration": spec.verification.calibration if notice is None else notice.calibration,
        "since": 0 if notice is None else notice.since,
        "notice": 0 if notice is None else notice.number,
        "waiting": None if waits is None else {"calibration": waits.content["calibration"], "earliest": waits.earliest},
    }

    def text() -> None:
        typer.echo(
            "judged by "
            + (f"calibration {data['calibration'][:12]} of the run spec" if notice is None else str(notice))
        )
        if waits is not None:
            typer.echo(f"waits for version {waits.earliest}: calibration {data['waiting']['calibration'][:12]}")

    emit(data, as_json, text)
