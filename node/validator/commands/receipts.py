"""`murmur validator audit|seats`: what all validators' receipts at the hub show to anyone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from node.validator.commands.context import DEFAULT_HOME, HomeOption, open_home
from protocol.errors import IntegrityError
from protocol.shell.cli import Json, emit

if TYPE_CHECKING:
    from protocol.chain.sync import Book
    from protocol.history import LogEvidence
    from protocol.shell.connection import Connection
    from protocol.verdict import Receipt


def register(app: typer.Typer) -> None:
    for command in (audit, seats):
        app.command()(command)


def audit(home: HomeOption = DEFAULT_HOME, as_json: Json = False) -> None:
    """Check whether all validators looked at the samples they had drawn, and handed over what their votes stand on. Needs no seat and no
    password.

    Reads the receipts at the hub and the chain, and judges nothing again. Exit code 8 where a receipt or a vote breaks its promise.
    """
    from node.validator.audit import audit as audit_all
    from node.validator.audit import audit_votes

    with _all_receipts(home) as (connection, book, receipts):
        found = audit_all(receipts, book, connection.spec, connection.policy.window)
        votes = audit_votes(receipts, book, connection.chain.domain)
    data = {
        "validators": [{"validator": validator} | asdict(audited) for validator, audited in found.items()],
        "jurors": [{"validator": validator} | asdict(cast) for validator, cast in votes.items()],
    }

    def text() -> None:
        if not found:
            typer.echo("no validator has signed a receipt yet")
        for validator, audited in found.items():
            counts = f"{audited.kept} kept, {audited.waiting} waiting, {audited.unknown} unknown, {len(audited.broken)} broken"
            typer.echo(f"{validator}  receipts {audited.receipts}: {counts}")
            for broken in audited.broken:
                typer.echo(f"  BROKEN  {broken.submission[:12]}  {broken.reason}")
        for validator, cast in votes.items():
            typer.echo(
                f"{validator}  votes {cast.votes}: {cast.kept} kept, {len(cast.otherwise)} otherwise, {len(cast.missing)} missing"
            )
            for name in cast.missing:
                typer.echo(f"  MISSING  {name}: its receipts are not at the hub, or are others than its vote said")
        if any(cast.otherwise for cast in votes.values()):
            typer.echo("otherwise: the juror's first word on a submission was another than its vote")
        if any(audited.waiting for audited in found.values()):
            typer.echo(
                "waiting: prefill sampling can be checked when its validator has signed a receipt of a later period"
            )
        if any(audited.unknown for audited in found.values()):
            typer.echo("unknown: no commitment to this submission is confirmed on chain; the newest may be by and by")

    emit(data, as_json, text)
    if any(audited.broken for audited in found.values()) or any(cast.missing for cast in votes.values()):
        raise typer.Exit(IntegrityError.exit_code)


def seats(home: HomeOption = DEFAULT_HOME, as_json: Json = False) -> None:
    """Show what all receipts together say of each seat: sums over its work, and how much evidence they are.

    Needs no seat and no password. Where the run judges by sums, those since they last began are shown, beside what the evidence must reach; of versions that the
    newest one's calibration holds for, where it was replaced.
    Each validator weighs its own measurements more, so its verdict may differ.
    """
    from node.validator.history import by_seat
    from node.versions import notice_of_head
    from protocol import history
    from protocol.calibration_notice import in_force

    with _all_receipts(home) as (connection, book, receipts):
        notice = notice_of_head(connection)
        verification = in_force(connection.spec.verification, notice)
        budget, keeps = verification.history, verification.noise is not None
        since = 0 if budget is None else history.begins(connection.block_time(), budget)
        version = 0 if notice is None or budget is None else notice.since
        found = by_seat(receipts, book, since, version)
        bounds = None if budget is None else _powers(history.bounds(budget))
    rows: list[dict[str, Any]] = [
        {
            "seat": seat, "submissions": of.submissions, "tokens": of.tokens, "mismatches": of.mismatches, "higher": of.higher,
            "log10_evidence": _powers(of.evidence),
            "log10_by_statistic": {name: f"{value / math.log(10):.2f}" for name, value in history.by_statistic(of.sums).items()},
            "sums": {name: [sums.total, sums.squares, sums.count] for name, sums in of.sums.items()},
        }
        for seat, of in found.items()
    ]  # fmt: skip

    def text() -> None:
        if notice is not None:
            typer.echo(f"judged by {notice}")
        if not keeps:
            typer.echo("this run keeps no sums: its spec has no verification.noise")
        elif not rows:
            typer.echo("no work has been prefilled yet")
        for row in rows if keeps else []:
            evidence: dict[str, str] = row["log10_evidence"]
            typer.echo(f"{row['seat']}  {row['submissions']} submissions, {row['tokens']} tokens prefilled")
            for null in ("soft", "hard"):
                bound = (
                    f", {null} from 10^{bounds[null]} on"
                    if bounds
                    else "; no verdict follows: the run has no verification.history"
                )
                typer.echo(f"  {null}  e-value 10^{evidence[null]}{bound}")
            parts = ", ".join(f"{name} 10^{power}" for name, power in row["log10_by_statistic"].items())
            typer.echo(f"  soft, by {parts}")
            typer.echo(f"  {row['higher']} of {row['mismatches']} mismatched tokens have the higher logit")

    emit(
        {
            "keeps_sums": keeps,
            "since": since,
            "since_version": version,
            "calibration": verification.calibration,
            "log10_bounds": bounds,
            "seats": rows,
        },
        as_json,
        text,
    )


def _powers(of: LogEvidence) -> dict[str, str]:
    """Decimal powers of e-values, of their natural logarithms."""
    return {"soft": f"{of.soft / math.log(10):.2f}", "hard": f"{of.hard / math.log(10):.2f}"}


@contextmanager
def _all_receipts(home: Path) -> Iterator[tuple[Connection, Book, list[Receipt]]]:
    """A connection, the chain's book, and every receipt that the hub lists."""
    from node.validator.audit import UNSEEN_MOST, read_receipts
    from protocol.identity import Key
    from protocol.logs import only_warnings
    from protocol.shell.connection import connect

    only_warnings()
    _, settings = open_home(home)
    peers = settings.peers.model_copy(
        update={"listen": "/ip4/0.0.0.0/tcp/0"}
    )  # the running validator has the other port
    with connect(settings.chain, peers, Key.generate()) as connection:
        book = connection.book()
        book.poll()
        # The first word of each on each stands.
        most = book.count_submissions() * len(book.ever_validated()) + UNSEEN_MOST
        yield connection, book, read_receipts(connection, most)
