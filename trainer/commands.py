"""`murmur trainer …`: parse, call, print."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from protocol import runfile
from protocol.cli import Json, PasswordFile, emit, group, set_up_logging, strip_at
from protocol.errors import ConfigError, PreflightError
from protocol.home import PASSWORD_VARIABLE, Home
from protocol.identity import Key, load_keystore, read_password
from trainer.config import Layout, RunSettings, load_run

app = group("Train the policy from validated rollouts, and run the hub that collects them.")
hub = group("The hub's own process; `murmur trainer run` starts it by itself.")
app.add_typer(hub, name="hub")
File = Annotated[str, typer.Argument(help="The run's file, as @run.toml.")]


def _open(file: str) -> tuple[RunSettings, Layout]:
    path = strip_at(file)
    settings = load_run(path).value
    return settings, Layout(path, settings)


def _key(layout: Layout, password_file: Path | None) -> Key:
    if not layout.keystore.exists():
        raise ConfigError(
            f"there is no trainer key at {layout.keystore}", hint=f"murmur chain new-key {layout.keystore}"
        )
    password = read_password(file=password_file, variable=PASSWORD_VARIABLE, what="the trainer key")
    return load_keystore(layout.keystore, password)


@app.command()
def run(file: File, password_file: PasswordFile = None) -> None:
    """Start training, with the hub beside it, until the last step or until stopped (Ctrl-C)."""
    _train(file, password_file, resume=False)


@app.command()
def resume(file: File, password_file: PasswordFile = None) -> None:
    """Go on from the newest checkpoint."""
    _train(file, password_file, resume=True)


def _train(file: str, password_file: Path | None, *, resume: bool) -> None:
    from trainer.hub.process import HubProcess
    from trainer.train import Trainer

    set_up_logging()
    settings, layout = _open(file)
    spec = runfile.read_spec(layout.file)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    with Home(layout.output, "trainer").lock(), HubProcess(layout, password_file) as child:
        Trainer(settings, layout, spec, child, stop).run(resume=resume)
        if not stop.is_set():  # validators, nodes and stragglers still need the hub
            typer.echo("training has finished; the hub goes on until this is stopped (Ctrl-C)", err=True)
            while not stop.wait(1.0):
                child.require_running()


@app.command()
def tiny(
    file: File,
    target: Annotated[float, typer.Option(help="Held-out score that every task must reach in the warm-up.")] = 0.15,
    seed: Annotated[int, typer.Option(help="Seed of weights and warm-up.")] = 0,
    as_json: Json = False,
) -> None:
    """Make a tiny Qwen3 policy on the spot for the run's tasks, warmed up on their training split. For development."""
    from trainer.tiny import make_policy

    set_up_logging("WARNING")
    path = strip_at(file)
    made = make_policy(path, runfile.model_folder(path), target=target, seed=seed)

    def text() -> None:
        scores = ", ".join(f"{name} {score:.2f}" for name, score in made.scores.items())
        typer.echo(
            f"policy of {made.parameters:,} parameters in {made.folder}: {scores} after {made.steps} warm-up steps"
        )

    emit(asdict(made), as_json, text)


@app.command()
def status(file: File, as_json: Json = False) -> None:
    """Show what the trainer does or waits for."""
    from trainer.report import read_status

    _, layout = _open(file)
    told = read_status(layout)
    if not told:
        raise PreflightError("the trainer has not started yet", hint="murmur trainer run")

    def text() -> None:
        waiting = told.get("waiting") or {}
        more = " " + ", ".join(f"{k} {v}" for k, v in waiting.items()) if waiting else ""
        typer.echo(f"step {told['step']} of {told['steps']}: {told['state']}{more}")
        for evaluation in told["evaluations"][-3:]:
            typer.echo(
                f"  held-out score {evaluation['score']:.3f} at step {evaluation['step']} ({evaluation['problems']} problems)"
            )

    emit(told, as_json, text)


@hub.command("start")
def hub_start(
    file: File,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True, help="End when stdin closes.")] = False,
    password_file: PasswordFile = None,
) -> None:
    """Serve rollouts, receipts and weights until stopped (Ctrl-C)."""
    from trainer.hub.service import HubService

    set_up_logging()
    settings, layout = _open(file)
    service = HubService(settings, layout, runfile.read_spec(layout.file), _key(layout, password_file))
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    signal.signal(signal.SIGINT, lambda *_: service.stop())
    if with_parent:
        threading.Thread(target=_when_stdin_closes, args=(service.stop,), daemon=True).start()
    with Home(layout.hub, "hub").lock():
        service.run()


def _when_stdin_closes(stop: Callable[[], None]) -> None:
    os.read(0, 1)
    stop()


@hub.command()
def rebuild(file: File, password_file: PasswordFile = None) -> None:
    """Recreate the hub's database from the chain and the stored files; stop the hub first."""
    from trainer.hub.service import rebuild as rebuild_database

    settings, layout = _open(file)
    with Home(layout.hub, "hub").lock():
        files, receipts = rebuild_database(
            settings, layout, runfile.read_spec(layout.file), _key(layout, password_file)
        )
    typer.echo(f"found {files} rollout files and {receipts} receipts")
