"""`murmur trainer import`, `export` and `tiny`: folders of models, in and out; `preset`: a run.toml to begin with."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.shell.cli import Json, emit, strip_at
from trainer.commands.runs import File, Unlisted

if TYPE_CHECKING:
    from trainer.models.pretrained import Imported


def preset(name: Annotated[str, typer.Argument(help="demo, intellect2-short or intellect2-long.")]) -> None:
    """Print a run.toml to start from; what is yours to fill in is marked."""
    from trainer.presets import run_file

    typer.echo(run_file(name), nl=False)


def export(
    checkpoint: Annotated[Path, typer.Argument(help="output/checkpoints/step_N")],
    folder: Annotated[Path, typer.Argument(help="Where the model goes; must not be there yet.")],
    run_file: Annotated[str | None, typer.Option("--run", help="The run's file; else the run.toml above it.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, as published, or float32; adapters else float32, as trained.")
    ] = None,
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Write the LoRA adapters alone, as PEFT loads them beside the policy.")
    ] = False,
) -> None:
    """Write a checkpoint as a plain Hugging Face folder."""
    from protocol.shell import runfile
    from trainer.evaluation.comparison import run_file_of
    from trainer.models.adapters import export_adapters
    from trainer.models.export import export as write

    path = strip_at(run_file) if run_file else run_file_of(checkpoint)
    made = export_adapters if adapters else write
    chosen = {} if dtype is None else {"dtype": dtype}
    typer.echo(made(checkpoint, runfile.model_folder(path), folder, **chosen))


def import_(
    model: Annotated[
        Path, typer.Argument(help="Folder of a model, as Hugging Face has it: safetensors and tokenizer.json.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where the policy goes; must not be there yet.")] = Path("policy"),
    unlisted: Unlisted = False,
    as_json: Json = False,
) -> None:
    """Make a run's policy of a pretrained model, in bfloat16 and one file, as every version will be."""
    from trainer.models.pretrained import make_policy

    made = make_policy(model, folder, unlisted=unlisted)
    emit(asdict(made), as_json, lambda: _show_imported(made))


def _show_imported(made: Imported) -> None:
    ends = ", ".join(str(token) for token in made.end_tokens)
    typer.echo(f"policy of {made.parameters:,} parameters in {made.folder}; answers end with token {ends}")
    if made.unlisted:
        typer.echo(
            "the model is not listed: its self-check passed here, and verdicts in a run of it are soft only", err=True
        )
    if made.shortened:
        from node.engine.lengths import SHORT, told

        typer.echo(f"tried on a copy that has it at {SHORT}, since it begins late: {told(made.shortened)}", err=True)
    if made.prompt_template is not None:
        typer.echo("its chat template, for [spec.sampling]:")
        typer.echo(f"prompt_template = {json.dumps(made.prompt_template)}")


def tiny(
    file: File,
    target: Annotated[float, typer.Option(help="Held-out score that every task must reach in the warm-up.")] = 0.15,
    seed: Annotated[int, typer.Option(help="Seed of weights and warm-up.")] = 0,
    as_json: Json = False,
) -> None:
    """Make a tiny Qwen3 policy on the spot for the run's tasks, warmed up on their training split. For development."""
    from protocol.logs import only_warnings
    from protocol.shell import runfile
    from trainer.models.tiny import make_policy

    only_warnings()
    path = strip_at(file)
    made = make_policy(path, runfile.model_folder(path), target=target, seed=seed, announces=True)

    def text() -> None:
        scores = ", ".join(f"{name} {score:.2f}" for name, score in made.scores.items())
        typer.echo(
            f"policy of {made.parameters:,} parameters in {made.folder}: {scores} after {made.steps} warm-up steps"
        )

    emit(asdict(made), as_json, text)
