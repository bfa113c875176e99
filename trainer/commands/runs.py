"""`murmur trainer run` and `resume`, and `murmur trainer hub …`: what goes on until it is stopped."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import ConfigError
from protocol.shell.cli import Json, PasswordFile, emit, strip_at
from protocol.shell.home import PASSWORD_VARIABLE, Home

if TYPE_CHECKING:
    from protocol.identity import Key
    from protocol.settings import Loaded
    from trainer.config import Layout, RunSettings
    from trainer.learning.ranks import Ranks

File = Annotated[str, typer.Argument(help="The run's file, as @run.toml.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting for this start, as trainer.steps=500.")]
Unlisted = Annotated[
    bool, typer.Option("--unlisted", help="Let in a model that is not listed, if its self-check passes: nobody is slashed.")
]  # fmt: skip
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print every setting and where it came from; start nothing.")]


def run(
    file: File, password_file: PasswordFile = None, set_: Set = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Train, with the hub beside it, until the last step or until stopped (Ctrl-C); from the newest checkpoint where there is one."""
    _train(file, password_file, set_, dry_run, as_json, must_resume=False)


def resume(
    file: File, password_file: PasswordFile = None, set_: Set = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Go on from the newest checkpoint, as `run` does; an error where there is none."""
    _train(file, password_file, set_, dry_run, as_json, must_resume=True)


def _train(
    file: str, password_file: Path | None, set_: list[str] | None, dry_run: bool, as_json: bool, *, must_resume: bool
) -> None:
    from protocol.logs import set_up_logging
    from protocol.settings import as_environment, parse_overrides
    from trainer.config import Layout, load_run
    from trainer.log_files import of_trainer

    path = strip_at(file)
    overrides = parse_overrides(set_ or [])
    loaded = load_run(path, overrides)
    if dry_run:
        _print_settings(loaded, as_json)
        return
    set_up_logging(of_trainer(loaded.value.logging))
    os.environ.update(as_environment(overrides))  # for the hub, a process of its own
    layout = Layout(path, loaded.value)
    from trainer.learning.ranks import torchrun

    if must_resume:
        layout.require_checkpoint(f"murmur trainer run @{path}")
    with torchrun() as ranks:
        if ranks.leads:
            _lead(loaded.value, layout, password_file, ranks, resume=True if must_resume else None)
        else:
            from trainer.commands.follow import follow_rank

            follow_rank(loaded.value.trainer, loaded.value.engine, layout, ranks)


def _lead(
    settings: RunSettings, layout: Layout, password_file: Path | None, ranks: Ranks, *, resume: bool | None
) -> None:
    from protocol.exporter import Exporter, Health
    from protocol.shell import runfile
    from protocol.shell.signals import until_signalled
    from trainer.commands.solo import STOPPING
    from trainer.hub.process import HubProcess
    from trainer.loop.train import Trainer
    from trainer.telemetry.page.service import page_of_running_trainer

    _require_startable(layout)
    spec = runfile.read_spec(layout.file)
    health = Health("a change of phase of the trainer", settings.metrics.progress_seconds)
    with (
        until_signalled(STOPPING) as ending,
        Home(layout.output, "trainer").lock(),
        Exporter(settings.metrics, health, folder=layout.output) as exporter,
        page_of_running_trainer(layout, settings) as page_url,
        HubProcess(layout, password_file) as child,
    ):
        Trainer(settings, layout, spec, child, ending, ranks, exporter=exporter, page_url=page_url).run(resume=resume)
        # Validators, nodes and stragglers still need the hub.
        typer.echo("training has finished; the hub goes on until this is stopped (Ctrl-C)", err=True)
        while not ending.wait(1.0):
            child.require_running()
            exporter.progress()


def _require_startable(layout: Layout, *, hub_alone: bool = False) -> None:
    from protocol.shell.checkup import require_startable
    from trainer.commands.checks import CHECKS, TrainerSubject

    require_startable(CHECKS, TrainerSubject(layout.file, starting=True, hub_alone=hub_alone))


def _print_settings(loaded: Loaded[RunSettings], as_json: bool) -> None:
    def text() -> None:
        for path, value, origin in loaded.lines():
            typer.echo(f"{path} = {json.dumps(value)}  # {origin}")

    emit(loaded.table(), as_json, text)


def hub_start(
    file: File,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True, help="End when stdin closes.")] = False,
    password_file: PasswordFile = None,
) -> None:
    """Serve rollouts, receipts and weights until stopped (Ctrl-C)."""
    from protocol.exporter import Exporter, Health
    from protocol.logs import set_up_logging
    from protocol.shell import runfile
    from trainer.hub.service import HubService
    from trainer.log_files import of_hub

    settings, layout = _open(file)
    set_up_logging(of_hub(settings.logging))
    if not with_parent:
        _require_startable(layout, hub_alone=True)
    shown = settings.hub.metrics
    health = Health("a look of the hub at the chain", shown.progress_seconds)
    exporter = Exporter(shown, health, folder=layout.hub)
    spec, key = runfile.read_spec(layout.file), _key(layout, password_file)
    service = HubService(settings, layout, spec, key, exporter)
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    signal.signal(signal.SIGINT, lambda *_: service.stop())
    if with_parent:
        threading.Thread(target=_when_stdin_closes, args=(service.stop,), daemon=True).start()
    with Home(layout.hub, "hub").lock(), exporter:
        service.run()


def _when_stdin_closes(stop: Callable[[], None]) -> None:
    os.read(0, 1)
    stop()


def hub_rebuild(file: File, password_file: PasswordFile = None) -> None:
    """Recreate the hub's database from the chain and the stored files, and name what is gone; stop the hub first."""
    from protocol.shell import runfile
    from trainer.hub.service import rebuild as rebuild_database

    settings, layout = _open(file)
    with Home(layout.hub, "hub").lock():
        rebuilt = rebuild_database(settings, layout, runfile.read_spec(layout.file), _key(layout, password_file))
    typer.echo(f"found {rebuilt.files} rollout files and {rebuilt.receipts} receipts")
    for submissions, why in ((rebuilt.lost, "lost"), (rebuilt.absent, "never uploaded, or lost with its receipt")):
        for s in submissions:
            typer.echo(f"{why}: file {s.root.hex()} of {s.node}, step {s.step}, sequence {s.sequence}")
    for name in rebuilt.lost_receipts:
        typer.echo(f"lost: verdict receipt {name}")


def _open(file: str) -> tuple[RunSettings, Layout]:
    from trainer.config import Layout, load_run

    path = strip_at(file)
    settings = load_run(path).value
    return settings, Layout(path, settings)


def _key(layout: Layout, password_file: Path | None) -> Key:
    from protocol.identity import load_keystore, read_password

    if not layout.keystore.exists():
        raise ConfigError(
            f"there is no trainer key at {layout.keystore}", hint=f"murmur chain new-key {layout.keystore}"
        )
    password = read_password(file=password_file, variable=PASSWORD_VARIABLE, what="the trainer key")
    return load_keystore(layout.keystore, password)
