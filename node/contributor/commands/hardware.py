"""`node hardware`: what this machine can do, and of which hardware class of the run it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.contributor.commands.context import DEFAULT_HOME, HomeOption, SpecFile, open_home, settings
from protocol.resources import size
from protocol.shell.cli import Json, emit

if TYPE_CHECKING:
    from node.contributor.survey import Survey

ModelFolder = Annotated[
    Path | None, typer.Option("--model", help="Folder with the model's config.json, while none is published.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Measure this machine alone; ask neither chain nor peers.")]


def register(app: typer.Typer) -> None:
    app.command()(hardware)


def hardware(
    home: HomeOption = DEFAULT_HOME, spec: SpecFile = None, model: ModelFolder = None, offline: Offline = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure memory, matrix products, disk and relays; show whether the run's model fits, and which hardware class this is.

    Takes some seconds and sends no transaction. Before `node init` it measures the machine alone.
    """
    from node.contributor.survey import survey
    from protocol.logs import only_warnings

    only_warnings()
    place = open_home(home)
    node = settings(place).value if place.config.exists() else None
    found = survey(
        place, node, spec=spec, model=model, offline=offline, say=lambda text: typer.echo(f"{text} …", err=True)
    )
    emit(found.as_json(), as_json, lambda: _print(found))


def _print(found: Survey) -> None:
    device = found.device
    typer.echo(f"Device: {device.device}")
    typer.echo(f"  memory     {size(device.memory)}, {size(device.free)} of it free now")
    for dtype, rate in device.matrix.items():
        typer.echo(f"  {dtype:<10} {rate / 1e12:.3g} TFLOPS of matrix products")
    typer.echo(f"  bandwidth  {device.bandwidth / 1e9:.3g} GB/s of its memory")
    typer.echo(f"\nDisk: {found.folder}")
    typer.echo(f"  free       {size(found.disk_free)}{_room(found)}")
    if found.disk is not None:
        typer.echo(f"  rate       writes {_rate(found.disk.write)}, reads {_rate(found.disk.read)}")
    if found.sources:
        typer.echo(f"\nWeights: version {found.version}, {size(found.version_bytes or 0)}")
        for source in found.sources:
            typer.echo(f"  {'relay' if source['relay'] else 'origin':<10} {source['url']}  {_served(found, source)}")
    if found.model is not None:
        typer.echo("\nModel")
        for line in _model(found):
            typer.echo(f"  {line}")
    if found.spec is not None:
        typer.echo("\nHardware classes of the run")
        for line in _classes(found):
            typer.echo(f"  {line}")
    for note in found.notes:
        typer.echo(f"\nnote: {note}")


def _room(found: Survey) -> str:
    if found.spec is None or found.version_bytes is None:
        return ""
    kept = found.spec.versions_kept + len(found.spec.versions_pinned)
    return f"; the {kept} versions that a node keeps take {size(kept * found.version_bytes)}"


def _served(found: Survey, source: dict[str, Any]) -> str:
    if "error" in source:
        return f"does not serve: {source['error']}"
    seconds = (found.version_bytes or 0) / source["rate"]
    return f"{_rate(source['rate'])} in one stream, so a version in {_duration(seconds)}"


def _model(found: Survey) -> list[str]:
    fit, spec = found.model, found.spec
    assert fit is not None and spec is not None
    takes = (
        f"weights {size(fit.weights)}, each answer {size(fit.row)} with {fit.tokens} tokens of prompt and completion"
    )
    if not fit.rows:
        return [f"does not fit: {takes}, and the engine may take {size(fit.allowed)} (engine.memory)"]
    batches = -(-spec.samples // fit.rows)
    lines = [
        f"fits: {takes}, of {size(fit.allowed)} that the engine may take",
        f"batch of {fit.rows} answers at once; a submission has {spec.samples}: {batches} batch{'es' * (batches > 1)}",
    ]
    if found.device.free < fit.weights + fit.row:
        lines.append(f"just now only {size(found.device.free)} of the device are free: see what else uses it")
    return lines


def _classes(found: Survey) -> list[str]:
    spec = found.spec
    assert spec is not None
    if not spec.hardware:
        numbers = ", ".join(map(str, spec.verification.hardware))
        return [f"the run has no table of needs; its classes are {numbers}, and its owner says which is whose"]
    lines = []
    for one in found.classes():
        state = f"lacks: {', '.join(one['lacks'])}" if one["lacks"] else "reached"
        budgets = f"; budgets {', '.join(map(str, one['budgets']))}" if one["budgets"] else ""
        lines.append(f"{one['number']:>3}  {one['name']:<20} {state}{budgets}")
    proposed = found.proposed
    return [*lines, "this machine is of none" if proposed is None else f"node stake takes a seat in class {proposed}"]


def _rate(rate: float) -> str:
    return f"{rate / 1e9:.3g} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
