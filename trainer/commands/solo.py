"""`murmur trainer solo`: parse, call, print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import ConfigError, UsageError
from protocol.shell.cli import strip_at
from protocol.shell.home import Home
from trainer.commands.runs import Unlisted

if TYPE_CHECKING:
    from trainer.config import Outputs, SoloSettings
    from trainer.learning.ranks import Ranks
    from trainer.telemetry.samples import Shown

STOPPING = "stopping when this step is done; Ctrl-C again stops now"
"""What a first signal is answered with."""


def solo(
    model: Annotated[str, typer.Argument(help="Folder of a model as Hugging Face has it; or @run.toml, to train as it says.")],
    tasks: Annotated[
        Path | None, typer.Argument(help="Parquet or JSONL (.jsonl) file of questions, and of answers or whatever the reward needs.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="Function that grades answers, as my_file.py:reward; else the answers of the tasks do.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to make and train in.")] = Path("solo"),
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to train; else 100.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer; else 256 tokens.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; else 1e-6.")] = None,
    question: Annotated[str | None, typer.Option(help="Column of the question; else `question` or `prompt`.")] = None,
    answer: Annotated[str | None, typer.Option(help="Column of the answer; else `answer` or `solution`.")] = None,
    held_out: Annotated[int | None, typer.Option(min=0, help="Last rows, for evaluation; else a tenth, at most 64.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, as spec.sampling.group_size=16.")] = None,
    unlisted: Unlisted = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of @run.toml.")] = False,
) -> None:  # fmt: skip
    """Train on this machine alone: no chain, keys, hub or validators. Ctrl-C stops and saves."""
    from protocol.settings import parse_overrides

    changes = parse_overrides(set_ or []) | {
        path: value
        for path, value in (("trainer.steps", steps), ("spec.sampling.max_new_tokens", max_new_tokens), ("trainer.optimizer.lr", lr))
        if value is not None
    }  # fmt: skip
    if tasks is None:
        file = _run_file(model, [reward, question, answer, held_out, unlisted or None], changes)
    else:
        if resume:
            raise UsageError(
                "--resume goes on with a folder that is there", hint=f"murmur trainer solo @{out}/run.toml --resume"
            )
        from trainer.learning.ranks import started_many
        from trainer.loop.prepare import prepare

        if started_many():
            raise UsageError(
                "under torchrun every rank would make the folder",
                hint=f"begin without torchrun, Ctrl-C, and go on with torchrun … murmur trainer solo @{out}/run.toml --resume",
            )
        file = prepare(
            Path(model), tasks, out, reward=reward, question=question, answer=answer, held_out=held_out, changes=changes,
            unlisted=unlisted,
        )  # fmt: skip
        typer.echo(f"made {file}", err=True)
        changes = {}
    _train(file, changes, resume=resume)


def _run_file(model: str, of_tasks: Sequence[object], changes: dict[str, object]) -> Path:
    if not model.startswith("@") and not model.endswith(".toml"):
        raise UsageError(
            "a model needs tasks", hint="murmur trainer solo MODEL tasks.jsonl, or murmur trainer solo @run.toml"
        )
    if any(given is not None for given in of_tasks):
        raise UsageError("of a run.toml these stand in the file", hint="edit [solo] and [spec] there")
    if spec := next((path for path in changes if path.startswith("spec.")), None):
        raise UsageError(f"{spec} stands in the file", hint="edit [spec] there: checkpoints belong to it")
    return strip_at(model)


def _train(file: Path, changes: dict[str, object], *, resume: bool) -> None:
    from protocol.logs import set_up_logging
    from protocol.shell import runfile
    from trainer.config import Outputs, load_solo
    from trainer.engines import require_engines
    from trainer.learning.ranks import torchrun
    from trainer.log_files import of_trainer

    settings = load_solo(file, changes).value
    set_up_logging(of_trainer(settings.logging))
    layout = Outputs(file, settings.trainer.model, settings.solo.output)
    if not layout.model.is_dir():
        raise ConfigError(f"there is no model in {layout.model}", hint="trainer.model names its folder")
    if resume:
        layout.require_checkpoint(f"murmur trainer solo @{layout.file}")
    with torchrun() as ranks:
        if ranks.leads:
            require_engines(
                settings.engine, settings.evaluation, runfile.compute_dtype(file), batch_invariant=runfile.batch_invariant(file)
            )  # fmt: skip
            _lead(settings, layout, ranks, resume=resume)
        else:
            from trainer.commands.follow import follow_rank

            follow_rank(settings.trainer, settings.engine, layout, ranks)


def _lead(settings: SoloSettings, layout: Outputs, ranks: Ranks, *, resume: bool) -> None:
    from protocol.exporter import Exporter, Health
    from protocol.shell.signals import until_signalled
    from trainer.loop.solo import Solo, result
    from trainer.rollouts.questions import of_solo
    from trainer.telemetry.page.service import page_of_running_trainer

    training: Solo | None = None
    health = Health("a change of phase of the trainer", settings.metrics.progress_seconds)
    with (
        until_signalled(STOPPING) as ending,
        Home(layout.output, "trainer").lock(),
        Exporter(settings.metrics, health, folder=layout.output) as exporter,
        page_of_running_trainer(layout, settings) as page_url,
        of_solo(layout.file, layout.model, settings.solo) as questions,
    ):
        training = Solo(settings, layout, questions, ending, ranks, look=_look, exporter=exporter, page_url=page_url)
        training.run(resume=resume)
    saved = None if training is None else training.saved
    if training is None or saved is None:
        again = f"murmur trainer solo @{layout.file}{' --resume' if resume else ''}"
        typer.echo(f"stopped before anything was trained; go on with {again}", err=True)
        return
    for line in result(training.evaluations, layout, saved):
        typer.echo(line, err=True)
    if saved < settings.trainer.steps:
        typer.echo(f"go on            murmur trainer solo @{layout.file} --resume", err=True)


def _look(step: int, shown: Sequence[Shown]) -> None:
    from rich.console import Console

    from trainer.telemetry.samples import table

    if shown:
        Console(stderr=True).print(table(step, shown))
