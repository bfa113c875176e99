"""`murmur validator verify|replay|rejections|secrets|calibrate`: judging by hand, and looking at what was judged."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.validator.commands.context import DEFAULT_HOME, HomeOption, open_home
from protocol.errors import ConfigError, DeadlineExceeded, IntegrityError, PreflightError, UsageError
from protocol.shell.cli import Json, PasswordFile, emit
from protocol.shell.home import Home
from protocol.shell.money import duration

if TYPE_CHECKING:
    from node.engine import EngineSettings
    from node.judging.evidence import Evidence, EvidenceStore
    from protocol.verdict import Details

_WEIGHTS_SECONDS = 3600.0  # longer than any fetch takes to end, one way or the other


def register(app: typer.Typer) -> None:
    for command in (verify, replay, rejections, secrets, calibrate):
        app.command()(command)


Weights = Annotated[
    Path | None,
    typer.Option("--weights", help="Folder of the weights' version; this validator's own copy, when not given."),
]


def verify(
    file: Annotated[Path, typer.Argument(help="A rollout file.")],
    home: HomeOption = DEFAULT_HOME,
    evidence: Annotated[
        Path | None,
        typer.Option(help="Folder of evidence that the file belongs to; this validator's own, when not given."),
    ] = None,
    weights: Weights = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Judge one file as the running validator would, in full, and print the finding. Changes nothing.

    Where there is evidence of the file, nothing but the weights is needed; without it, its commitment must be on chain.
    """
    from node.judging.evidence import Evidence
    from node.judging.replay import replay as judge_again
    from protocol.logs import only_warnings

    only_warnings()
    root = hashlib.sha256(file.read_bytes()).digest()
    found = Evidence(evidence) if evidence is not None else _evidence(home).of_file(root)
    if found is None:
        details = _verify_on_chain(file, root, home, password_file)
    elif found.receipt.details.ref.root != root:
        raise UsageError(
            f"{found.folder} is evidence of another file than {file}", hint="is it the whole, unchanged file?"
        )
    else:
        details = judge_again(found, weights or _own_weights(home, found), in_full=True, settings=_engine(home))
    _print_details(vars(details), as_json)


def _verify_on_chain(file: Path, root: bytes, home: Path, password_file: Path | None) -> Details:
    from node.validator.bench import Bench
    from node.validator.judgement_log import JudgementLog
    from protocol.shell.connection import connect

    place, settings = open_home(home)
    key = place.open_key("validator", password_file)
    with connect(settings.chain, settings.peers, key) as connection:
        book = connection.book()
        book.poll()
        found = next((submission for submission in book.newest_submissions() if submission.root == root), None)
        if found is None:
            raise UsageError(
                f"nobody committed to {file} in run {connection.run}", hint="is it the whole, unchanged file?"
            )
        journal = JudgementLog(place.data / "verify.sqlite")
        bench = Bench(connection, book, place.data / "verify", journal, settings.engine, patience=_WEIGHTS_SECONDS)
        try:
            commitment, now = bench.commitment(found), connection.block_time()
            details = bench.judge(commitment, file, bench.plan(in_full=True, time=now), now)
            if details is None:
                raise DeadlineExceeded(f"version {found.step} of the weights has not arrived")
            return details
        finally:
            bench.close()
            journal.close()


def replay(
    submission: Annotated[
        str, typer.Argument(help="Id of a rejected submission (or its beginning), or a folder of evidence.")
    ],
    home: HomeOption = DEFAULT_HOME,
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Judge a rejected submission again from its evidence, and compare with the signed receipt. Needs no network.

    Exit code 8 where anything differs.
    """
    from node.judging.evidence import Evidence
    from node.judging.replay import compare
    from node.judging.replay import replay as judge_again
    from protocol.logs import only_warnings

    only_warnings()
    found = Evidence(Path(submission)) if Path(submission).is_dir() else _evidence(home).find(submission)
    receipt = found.receipt
    again = judge_again(found, weights or _own_weights(home, found), settings=_engine(home))
    fields = compare(receipt.details, again)
    same = all(field["same"] for field in fields)

    def text() -> None:
        typer.echo(f"receipt of {receipt.validator} on {receipt.details.submission}")
        for field in fields:
            values = (
                f"{field['receipt']}" if field["same"] else f"{field['receipt']} in the receipt, {field['replay']} now"
            )
            typer.echo(f"  {'same     ' if field['same'] else 'DIFFERENT'}  {field['field']:<18} {values}")
        typer.echo("the replay gives the same receipt" if same else "the replay gives another receipt")

    emit(
        {"submission": receipt.details.submission, "validator": receipt.validator, "same": same, "fields": fields},
        as_json,
        text,
    )
    if not same:
        raise typer.Exit(IntegrityError.exit_code)


def _engine(home: Path) -> EngineSettings:
    """[engine] of this validator; the defaults where there is none."""
    from node.engine import EngineSettings

    return open_home(home)[1].engine if Home(home, "validator").config.exists() else EngineSettings()


def rejections(home: HomeOption = DEFAULT_HOME, as_json: Json = False) -> None:
    """List rejected submissions whose evidence is kept: what was found, and what became of it."""
    from node.validator.judgement_log import JudgementLog
    from protocol.verdict import Outcome, compared

    place, _ = open_home(home)
    journal = JudgementLog(place.data / "judgements.sqlite")
    rows: list[dict[str, Any]] = []
    try:
        for evidence in _evidence(home).all():
            d = evidence.receipt.details
            judged = journal.get(bytes.fromhex(d.submission))
            rows.append(
                {
                    "submission": d.submission, "node": d.node, "step": d.step, "sequence": d.sequence, "found": Outcome(d.outcome).name.lower(),
                    "treated_as": Outcome(judged.outcome).name.lower() if judged else None, "rule": d.rule, "measured": d.measured,
                    "threshold": d.threshold, "detail": d.detail, "time": d.time, "state": judged.state if judged else None,
                    "case": judged.number if judged else None, "folder": str(evidence.folder),
                }
            )  # fmt: skip
    finally:
        journal.close()

    def text() -> None:
        if not rows:
            typer.echo("nothing rejected, or nothing kept")
        for row in rows:
            softened = "" if row["treated_as"] in (row["found"], None) else f", treated as {row['treated_as']}"
            case = "" if row["case"] is None else f" (case {row['case']})"
            typer.echo(
                f"{row['submission'][:12]}  step {row['step']:>5}.{row['sequence']:<3} {row['found']}{softened}  {row['rule']}: "
                f"{compared(row['rule'], row['measured'], row['threshold'])}  {row['state'] or 'unknown'}{case}"
            )

    emit({"rejections": rows}, as_json, text)


def _evidence(home: Path) -> EvidenceStore:
    from node.judging.evidence import EvidenceStore

    place, settings = open_home(home)
    return EvidenceStore(place.data / "evidence", settings.judge.evidence_most, settings.judge.evidence_days)


def _own_weights(home: Path, evidence: Evidence) -> Path | None:
    """The version as the running validator fetched it, if it still has it; any that it has, where any will do."""
    from protocol.shardcast.store import version_folder

    root = Home(home, "validator").path / "data" / "weights"
    folder = version_folder(root, evidence.receipt.details.step)
    if evidence.judged_without_weights and not folder.is_dir():
        return next(folder.parent.glob("*"), None)
    return folder if folder.is_dir() else None


def secrets(home: HomeOption = DEFAULT_HOME, as_json: Json = False) -> None:
    """Show what this validator's prefill sampling is committed to, and with it the newest secret that may be known.

    Draws none: that is for the running validator.
    """
    from node.validator.judgement_log import JudgementLog
    from protocol import prefill_sampling

    place, settings = open_home(home)
    chain = settings.chain.open()
    window = chain.policy(settings.chain.run).window
    file, master = place.data / "judgements.sqlite", None
    if file.exists():
        with closing(JudgementLog(file)) as journal:
            master = journal.kept_secret("prefill")
    if master is None:
        raise PreflightError(
            "this validator has drawn no secret yet", hint="start the validator first: murmur validator start"
        )
    number = prefill_sampling.period(chain.block().time, window)
    data = {
        "period": number,
        "period_seconds": window,
        "prefill": prefill_sampling.commitment(prefill_sampling.secret(master, number)).hex(),
    }

    def text() -> None:
        typer.echo(f"period  {number}, of {duration(window)} each")
        typer.echo(f"prefill {data['prefill']}")
        typer.echo("commits to the secret of this period, and is the secret of the one before, which may be known now")

    emit(data, as_json, text)


def _print_details(d: dict[str, Any], as_json: bool) -> None:
    from protocol.verdict import compared

    def text() -> None:
        outcome = {1: "accept", 2: "soft", 3: "hard"}[d["outcome"]]
        typer.echo(f"{outcome}: step {d['step']}, sequence {d['sequence']} of {d['node']}")
        typer.echo(
            f"checked {d['sequences_checked']} samples, {d['proofs_checked']} proofs, {d['tokens_checked']} tokens"
        )
        if d["rule"]:
            typer.echo(f"rule {d['rule']}: {compared(d['rule'], d['measured'], d['threshold'])} ({d['detail']})")

    emit(d, as_json, text)


def calibrate(
    file: Annotated[str, typer.Argument(help="The run's file, as @run.toml, for its tasks and its sampling.")],
    model: Annotated[list[Path], typer.Option(help="Folder of a model; several give more variety.")],
    out: Annotated[Path, typer.Option(help="Calibration file to write.")],
    report: Annotated[
        Path | None, typer.Option(help="Folder for report.md and its plots; beside the calibration, when not given.")
    ] = None,
    other: Annotated[
        list[Path] | None, typer.Option(help="Model that is not the run's, as a cheat to measure.")
    ] = None,
    hardware: Annotated[
        list[int] | None,
        typer.Option(help="Hardware class of the run that this machine stands for; 0, when not given."),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Problems per model and variant, and per cheat.")] = 16,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each problem.")] = 4,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest completion; the run's, when not given.")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="Another engine whose honest work is measured with that of the first, as vllm."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Measure honest work and cheats on this machine; write the limits that follow, and a report with plots.

    Computes in the run's dtype by the validator's [engine], or the defaults where there is none.
    """
    import json

    from node.judging.calibration import Matrix, calibration, every_variant, measure
    from node.judging.calibration import report as reporting
    from protocol.calibration import Calibration
    from protocol.environments import TaskSet
    from protocol.logs import only_warnings
    from protocol.sandbox import EnvironmentSandbox
    from protocol.shell import runfile
    from protocol.shell.cli import strip_at

    only_warnings()
    run = strip_at(file)
    spec = runfile.sampling(run)
    if max_new_tokens is not None:
        spec = spec.model_copy(update={"max_new_tokens": max_new_tokens})
    engine = _engine(home)
    engines = [engine, *(engine.model_copy(update={"name": name}) for name in also or [])]
    matrix = Matrix(
        model, runfile.compute_dtype(run), spec, prompts, samples, other or [], engines, every_variant(engines)
    )
    environments = runfile.environments(run)
    if not environments:
        raise ConfigError(
            f"{run} has no tasks to calibrate on",
            hint="write the run's as [[spec.environments]]; a reward function of `murmur trainer solo` is none",
        )
    with EnvironmentSandbox(environments) as sandbox:
        measured = measure(matrix, TaskSet(environments, sandbox), lambda text: typer.echo(text, err=True))
    content = calibration(matrix, measured, hardware or [0])
    out.write_text(json.dumps(content, indent=1) + "\n")
    honest = content["work"]
    typer.echo(f"{honest['proofs']} proofs, {honest['tokens']} tokens: {out}, digest {Calibration(content).digest}")
    written = reporting.write(report or out.with_name(f"{out.stem}-report"), content, matrix, measured)
    typer.echo(f"report: {written}")
