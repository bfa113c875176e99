"""`murmur env …`: environments on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protocol.shell.cli import Json, emit, group, strip_at

if TYPE_CHECKING:
    from protocol.environments.importing.importer import ImportReport
    from protocol.runspec import EnvironmentSpec
    from protocol.sandbox.inspection import Observation
    from protocol.sandbox.programs.survey import Grant

app = group("Environments: what they find on this machine, problems for them, and how to make one.")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show what this machine's sandbox for programs grants, and run a program in it."""
    from protocol.errors import PreflightError
    from protocol.sandbox.programs import survey

    grants = [*survey.examine(), survey.addresses(), survey.interpreters()]
    lacking = [grant for grant in grants if grant.is_needed and not grant.is_granted]
    emit({"grants": [asdict(grant) for grant in grants], "works": not lacking}, as_json, lambda: _print(grants))
    if lacking:
        raise PreflightError(f"programs cannot be run here: {lacking[0].name}", hint=lacking[0].hint)


def _print(grants: list[Grant]) -> None:
    for grant in grants:
        mark = "ok" if grant.is_granted else "lacks" if grant.is_needed else "without"
        typer.echo(f"{mark:8} {grant.name:16} {grant.detail}")
        if not grant.is_granted and grant.hint:
            typer.echo(f"{'':25} {grant.hint}")


@app.command("import")
def import_(
    out: Annotated[Path, typer.Argument(help="The folder to make: task files, what to write into run.toml, a report.")],
    sources: Annotated[list[Path], typer.Argument(help="Files of data sets: .parquet, .jsonl, .json, .csv.")],
    schema: Annotated[str | None, typer.Option(help="What the files are; else told by the columns of each.")] = None,
    question: Annotated[str | None, typer.Option(help="Column of the question, of files of no known schema.")] = None,
    answer: Annotated[str | None, typer.Option(help="Column of the answer, of the same.")] = None,
    package: Annotated[str, typer.Option(help="Environment of the same: math, code or parquet.")] = "math",
    against: Annotated[
        list[Path] | None, typer.Option(help="File of questions that must not be trained on; may be repeated.")
    ] = None,
    held_out: Annotated[int, typer.Option(min=0, help="Problems of each environment to hold out.")] = 0,
    low: Annotated[float | None, typer.Option(min=0, max=1, help="Lowest solve rate that is kept.")] = None,
    high: Annotated[float | None, typer.Option(min=0, max=1, help="Highest solve rate that is kept.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="Column of the solve rate; else the first named solve_rate….")
    ] = None,
    part_rows: Annotated[int, typer.Option(min=1, help="Problems in one task file.")] = 4096,
    as_json: Json = False,
) -> None:
    """Make task files of data sets as they are published: SYNTHETIC-1 and INTELLECT-2, NuminaMath, DeepScaleR, MATH-500, AIME, GPQA,
    LiveCodeBench, or any two columns."""
    from protocol.environments.importing import importer
    from protocol.environments.importing.sieve import RateBand

    has_band = low is not None or high is not None or rate is not None
    band = RateBand(low or 0.0, 1.0 if high is None else high, rate) if has_band else None
    options = importer.Options(
        schema, question, answer, package, tuple(against or ()), held_out, band, part_rows
    )  # fmt: skip
    report = importer.run(sources, out, options, lambda line: typer.echo(line, err=True))
    emit(asdict(report), as_json, lambda: _print_import(report, out))


def _print_import(report: ImportReport, out: Path) -> None:
    typer.echo(f"{report.rows} rows read, {sum(reason.rows for reason in report.left_out.values())} left out")
    for package, made in report.environments.items():
        typer.echo(
            f"  {package:8} {made.training} problems to train on or to ask as a benchmark, {made.held_out} held out, {len(made.files)} files"
        )
        if made.problems_with_fewer_tests:
            typer.echo(
                f"{'':11}{made.problems_with_fewer_tests} of them with fewer tests than they had: {made.tests_left_out} found no room,"
                f" {made.tests_unusable} no program could pass"
            )
    for one in report.against_files:
        none = f"; {one.without} of its rows hold no question" if one.without else ""
        typer.echo(f"  compared with {one.questions} questions of {one.file}{none}")
    for why, reason in sorted(report.left_out.items(), key=lambda item: -item[1].rows):
        typer.echo(f"{reason.rows:8} {why}, as {reason.example}")
    typer.echo(f"to train on them: {out}/environments.toml says what to write into run.toml", err=True)
    typer.echo(
        f"as a benchmark: murmur trainer eval MODEL --suite {out.name} --suites {out.parent}; then train on none of them",
        err=True,
    )


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Its name, as two-digit-sums.")],
    into: Annotated[Path, typer.Option(help="Where to make its folder.")] = Path(),
) -> None:
    """Begin a package with an environment: an example that works, its tests, and what to do next."""
    from protocol.shell import environment_package

    folder = environment_package.begin(name, into)
    typer.echo(f"made {folder}")
    typer.echo(f"  try: pip install -e {folder} && murmur env check {name}")


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="Folder of the package.")] = Path(),
    out: Annotated[Path, typer.Option(help="Where to put the wheel.")] = Path("dist"),
    as_json: Json = False,
) -> None:
    """Build the wheel that contributors install, and print the digest of its content, which a run spec pins."""
    from protocol.shell import environment_package

    wheel = environment_package.publish(folder, out)
    told = {"wheel": str(wheel.path), "environments": wheel.environments, "content": wheel.content}
    emit(told, as_json, lambda: typer.echo("\n".join(_next_steps(str(wheel.path), wheel.environments, wheel.content))))


def _next_steps(wheel: str, environments: list[str], content: str) -> list[str]:
    return [
        f"{wheel}",
        f"environments  {', '.join(environments)}",
        f"content       {content}",
        "Put the wheel where everybody can get it (an index, a release page), and tell them: pip install <its address>.",
        "With it installed here, `murmur run create` writes version and content into the run's spec; no other wheel fits then.",
    ]


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="An environment, or @run.toml for all that a run has.")],
    dataset: Annotated[str, typer.Option(help="Which of its data sets.")] = "check",
    set_: Annotated[list[str] | None, typer.Option("--set", help="A field of its config, as digits=3.")] = None,
    file: Annotated[list[Path] | None, typer.Option(help="A task file that its problems are in.")] = None,
    corpus: Annotated[list[Path] | None, typer.Option(help="A file of documents that it searches in.")] = None,
    problems: Annotated[int, typer.Option(min=2, help="Problems to draw and to score.")] = 32,
    as_json: Json = False,
) -> None:
    """Examine an environment: does it draw and score alike everywhere, come to an end, and withstand hostile answers?"""
    from protocol.errors import PreflightError
    from protocol.sandbox.inspection import examine
    from protocol.shell import runfile

    failed: list[str] = []
    shown: list[dict[str, Any]] = []
    specs = _asked(name, dataset, set_ or [], file or [], corpus or [])
    talk = {"turns": runfile.turns(strip_at(name))} if _is_run(name) else {}
    for spec in specs:
        if not as_json:
            typer.echo(f"{spec.package} {spec.version}, {spec.dataset}")
        for seen in examine(spec, problems=problems, others=[one for one in specs if one is not spec], **talk):
            shown.append({"package": spec.package, "dataset": spec.dataset, **asdict(seen)})
            if seen.holds is False:
                failed.append(f"{spec.dataset}: {seen.name}")
            if not as_json:
                _say(seen)
    emit({"seen": shown, "passes": not failed}, as_json, lambda: None)
    if failed:
        raise PreflightError(
            f"what an environment must keep is not kept: {', '.join(failed)}",
            hint="docs/environments.md, What must hold",
        )


def _is_run(name: str) -> bool:
    return name.startswith("@") or name.endswith(".toml")


def _asked(name: str, dataset: str, config: list[str], files: list[Path], corpus: list[Path]) -> list[EnvironmentSpec]:
    from protocol.errors import UsageError
    from protocol.settings import parse_overrides
    from protocol.shell import runfile

    if _is_run(name):
        if config or files or corpus:
            raise UsageError("of a run.toml these stand in the file", hint="edit [[spec.environments]] there")
        return runfile.environments(strip_at(name))
    return [runfile.environment_alone(name, dataset, parse_overrides(config), files, corpus)]


def _say(seen: Observation) -> None:
    mark = {True: "ok", False: "fails", None: "without"}[seen.holds]
    typer.echo(f"  {mark:8} {seen.name:18} {seen.detail}")
