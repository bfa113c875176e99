"""`murmur trainer tasks`, `filter`, `eval` and `probe`: what a model is asked, and how it does on that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protocol.shell.cli import Json, emit, strip_at
from trainer.commands.looks import printed
from trainer.commands.runs import File

if TYPE_CHECKING:
    from trainer.evaluation.comparison import Interval, Row
    from trainer.evaluation.filter import Filtered
    from trainer.evaluation.suites import SuiteResult


def tasks(
    out: Annotated[Path, typer.Argument(help="The task file to write, as tasks.parquet.")],
    sources: Annotated[list[Path], typer.Argument(help="Parquet or JSONL (.jsonl) files to make it of.")],
    question: Annotated[str, typer.Option(help="Column or key of the question.")] = "question",
    answer: Annotated[str, typer.Option(help="Column or key of the answer.")] = "answer",
    as_json: Json = False,
) -> None:
    """Make a task file for a run of your own questions and answers, of any number."""
    from protocol.environments.taskfile import convert

    rows = convert(sources, out, question, answer)
    emit({"file": str(out), "rows": rows}, as_json, lambda: typer.echo(f"{rows} problems in {out}"))


def filter_(
    file: File,
    out: Annotated[Path, typer.Argument(help="The JSON file to write; what is done so far lies beside it.")],
    model: Annotated[Path | None, typer.Option(help="Folder of the model that tries; else the run's policy.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Tries per problem.")] = 8,
    problems: Annotated[int, typer.Option(min=1, help="Problems of each environment that are tried.")] = 1000,
    low: Annotated[float, typer.Option(help="Lowest solve rate that is kept.")] = 0.125,
    high: Annotated[float, typer.Option(help="Highest solve rate that is kept.")] = 0.5,
    as_json: Json = False,
) -> None:
    """Keep the training problems that a model solves sometimes. Can be interrupted; the same command goes on."""
    from protocol.logs import only_warnings
    from protocol.shell import runfile
    from trainer.config import load_evaluation_engine
    from trainer.evaluation.filter import Band, OfflineFilter, require_place

    only_warnings()
    require_place(out)
    path = strip_at(file)
    folder = model or runfile.model_folder(path)
    band = Band(low, high)
    spec = runfile.asked(path, folder)
    submission = OfflineFilter(spec, folder, samples=samples, problems=problems, engine=load_evaluation_engine(path))
    with _progress("problems", submission.total) as advance:
        made = submission.run(out, band, advance)
    emit(asdict(made), as_json, lambda: _show_filtered(made, path))


def _show_filtered(made: Filtered, run_file: Path) -> None:
    typer.echo(f"{sum(made.kept.values())} of {made.tried} problems kept in {made.file}, SHA-256 {made.digest}")
    for name, number in made.kept.items():
        passed = ", ".join(f"pass@{k} {share}" for k, share in made.pass_at[name].items())
        typer.echo(f"  {name}  {number}; of all that were tried {passed}")
    typer.echo(f"all that were tried, with questions and solve rates: {made.rows}")
    if made.length_error is not None:
        typer.echo(f"answers were {made.length_error:.1f} tokens off the budgets that were announced")
    typer.echo(
        f'To train on these only, write kept = "PATH" into each [[spec.environments]] of {run_file} before the run is '
        "created; PATH is relative to that file.",
        err=True,
    )


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint (output/checkpoints/step_N) or a model's folder.")],
    run_file: Annotated[str | None, typer.Option("--run", help="The run's file; else the run.toml above it.")] = None,
    base: Annotated[
        Path | None, typer.Option(help="Checkpoint or model to compare with; else the policy before training.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples per problem; else 1, or the suite's own number.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Benchmarks instead, as aime,math500: folders that `murmur env import` made.")
    ] = None,
    suites: Annotated[Path | None, typer.Option(help="Where they lie; else suites beside the run's file.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Of benchmarks; else the suite's own.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0.001, max=1, help="Likewise.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer; else the run's.")] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="Length budget that benchmarks' prompts announce.")] = None,
    as_json: Json = False,
) -> None:
    """Score a checkpoint on the run's held-out problems, or on benchmarks, beside the base model, with 95 % confidence intervals."""
    from protocol.errors import UsageError
    from protocol.logs import only_warnings
    from protocol.shell import runfile
    from trainer.config import load_evaluation_engine
    from trainer.evaluation.comparison import against, run_file_of
    from trainer.rollouts.questions import of_checkpoint

    only_warnings()
    path = strip_at(run_file) if run_file else run_file_of(checkpoint)
    model = runfile.model_folder(path)
    of_suites = {"temperature": temperature, "top_p": top_p, "tokens": tokens, "budget": budget}
    if suite is None and any(value is not None for value in (suites, *of_suites.values())):
        raise UsageError("held-out problems are asked as in training", hint="name a benchmark with --suite")
    if suite is not None:
        how = {"samples": samples, **of_suites}
        decided = {key: str(value) if isinstance(value, float) else value for key, value in how.items()}
        _suites(suite.split(","), suites or path.parent / "suites", checkpoint, base or model, path, decided, as_json)
        return
    with (
        of_checkpoint(checkpoint, path) as questions,
        _progress("problems", 2 * len(questions.tasks.held_out)) as advance,
    ):
        rows = against(
            base or model,
            checkpoint,
            questions,
            model,
            samples=samples or 1,
            engine=load_evaluation_engine(path),
            progress=advance,
        )
    emit({"samples": samples or 1, "rows": [asdict(row) for row in rows]}, as_json, lambda: _print_rows(rows))


def _suites(
    names: list[str], folder: Path, checkpoint: Path, base: Path, path: Path, how: dict[str, Any], as_json: bool
) -> None:
    from protocol.shell import runfile
    from trainer.config import load_evaluation_engine
    from trainer.evaluation import suites

    model = runfile.model_folder(path)
    loaded = suites.load([name.strip() for name in names], folder, **how)
    problems = sum(environment.size for one in loaded for environment in one.environments)
    with _progress("problems", 2 * problems) as advance:
        found = suites.run(
            runfile.answers(path, model), loaded, checkpoint, base, model,
            engine=load_evaluation_engine(path), progress=advance,
        )  # fmt: skip
    emit({"suites": [asdict(one) for one in found]}, as_json, lambda: _print_suites(found))


def _print_suites(found: list[SuiteResult]) -> None:
    _print_rows([replace(one.row, name=f"{one.row.name} pass@{one.k}") for suite in found for one in suite.passes])
    for suite in found:
        how = suite.asking
        typer.echo(
            f"{suite.name}: {how.samples} samples of each problem, temperature {how.temperature}, top-p {how.top_p}, at most {how.tokens} tokens;"
            f" answers of {suite.base_tokens:.0f} and {suite.tokens:.0f} tokens, {suite.base_unended:.1%} and {suite.unended:.1%} cut off",
            err=True,
        )


def _print_rows(rows: list[Row]) -> None:
    from rich.table import Table

    lengths = any(row.length_error is not None for row in rows)
    table = Table("environment", "problems", "base", "checkpoint", "difference", "", box=None)
    if lengths:
        table.add_column("tokens off budget: base")
        table.add_column("checkpoint")
    for row in rows:
        cells = [_interval(part) for part in (row.base, row.candidate, row.difference)]
        errors = ["" if of is None else f"{of:.1f}" for of in (row.base_length_error, row.length_error)]
        table.add_row(row.name, str(row.problems), *cells, row.verdict, *(errors if lengths else ()))
    printed(table)


def _interval(part: Interval | None) -> str:
    return "" if part is None else f"{part.mean:.3f} ({part.low:.3f} to {part.high:.3f})"


def probe(
    file: File,
    out: Annotated[Path, typer.Argument(help="The JSON file to write.")] = Path("probe.json"),
    prompts: Annotated[int, typer.Option(min=1, help="Problems that are answered, one completion each.")] = 16,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a completion.")] = 128,
    as_json: Json = False,
) -> None:
    """Make the run's reference probe on this machine: what nodes must be able to compute before their first work."""
    from protocol.logs import only_warnings
    from protocol.shell import runfile
    from trainer.config import load_engine
    from trainer.evaluation.probe import make, write

    only_warnings()
    path = strip_at(file)
    policy = runfile.model_folder(path)
    spec = runfile.complete(path, policy, probe=False)
    made = make(spec, policy, load_engine(path), prompts=prompts, tokens=tokens)
    digest = write(made, out)

    def text() -> None:
        typer.echo(f"{len(made.sequences)} completions of {made.tokens} tokens in {out}, SHA-256 {digest}")
        typer.echo(
            f'Write probe = "PATH" into [spec.verification] of {path} before the run is created; PATH is relative to that file.',
            err=True,
        )

    emit({"file": str(out), "sha256": digest, "completions": len(made.sequences), "tokens": made.tokens}, as_json, text)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
