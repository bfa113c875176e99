"""`node rewards`: what can be claimed, what can be claimed when, and what a day brings at the present rate. By what `node status` tells."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import typer

from node.contributor.commands.context import DEFAULT_HOME, HomeOption, open_chain, open_home, settings
from protocol.shell.cli import Json, emit
from protocol.shell.money import tokens
from protocol.shell.sentences import at, when

if TYPE_CHECKING:
    from node.contributor.submission_log import SubmissionLog


def register(app: typer.Typer) -> None:
    app.command()(rewards)


def rewards(home: HomeOption = DEFAULT_HOME, as_json: Json = False) -> None:
    """Show what can be claimed now, what can be claimed when, what each day brought, and what the present rate would bring a day."""
    from node.contributor import next_step, submission_log
    from node.contributor.commands.inspect import collect
    from node.contributor.submission_log import SubmissionLog

    place = open_home(home)
    node = settings(place).value
    chain, run = open_chain(node), node.chain.run
    with closing(SubmissionLog(place.data / submission_log.FILE)) as log:
        table = tell(collect(place, chain, run, log), log, chain.policy(run).window)
    typed = table | {"next": next_step.as_typed(table["next"], place.command("").strip())}
    emit(table, as_json, lambda: show(typed))


def tell(told: dict[str, Any], log: SubmissionLog, window: int) -> dict[str, Any]:
    """`told` is what `node status` tells. Amounts in wei, as strings; times in seconds of block time."""
    from node.contributor import earning

    reward = int(told["reward"])

    def sum_of(units: int) -> dict[str, Any]:
        return {"units": units, "amount": str(units * reward)}

    total, maturing = told["ready_units"], []
    for one in told["maturing"]:
        total += one["units"]
        maturing.append({"at": one["at"], **sum_of(one["units"]), "claimable_then": str(total * reward)})
    days = [row | {"amount": str(row["accepted"] * reward)} for row in earning.by_day(log, window)]
    return {
        "run": told["run"], "now": told["now"], "operator": told["operator"], "reward": told["reward"], "claimable": sum_of(told["ready_units"]),
        "pending": sum_of(told["pending_units"]), "maturing": maturing, "held": sum_of(told["held_units"]), "paid": sum_of(told["paid_units"]),
        "earning": told["earning"], "forecast": told["forecast"], "days": days, "next": told["next"],
    }  # fmt: skip


def show(d: dict[str, Any]) -> None:
    from node.contributor.commands.status_text import forecast_words

    typer.echo(f"Rewards of run {d['run']}, for operator {d['operator']}")
    typer.echo(f"  now        {_sum(d['claimable'])} can be claimed")
    typer.echo(f"  paid       {_sum(d['paid'])} so far")
    if d["held"]["units"]:
        typer.echo(f"  held       {_sum(d['held'])} wait for open cases")
    if d["forecast"]:
        typer.echo(f"  a day      {forecast_words(d['forecast'])}")
    else:
        typer.echo(f"  a day      nothing to go by: {_why_unknown(d)}")
    _show_maturing(d)
    _show_days(d)
    if d["next"]:
        typer.echo(f"\nnext: {d['next']}")


def _why_unknown(d: dict[str, Any]) -> str:
    from node.contributor import earning

    return (
        d["earning"]["why"] if d["earning"]["state"] == earning.NOT_EARNING else "it has worked for less than an hour"
    )


def _show_maturing(d: dict[str, Any]) -> None:
    typer.echo("\nCan be claimed, unless a case is opened")
    if not d["maturing"]:
        typer.echo("  nothing waits")
    for one in d["maturing"]:
        typer.echo(
            f"  from {when(one['at'], d['now'])}  {_sum(one)}; {tokens(int(one['claimable_then']))} in all by then"
        )


def _show_days(d: dict[str, Any]) -> None:
    if d["days"]:
        typer.echo("\nBy day (UTC)")
    for row in d["days"]:
        more = [f"{row[name]:,} {name}" for name in ("unjudged", "rejected", "lost") if row[name]]
        until = f"; the last of it from {at(row['unlocks'])} on" if row["unlocks"] > d["now"] else ""
        said = f"{tokens(int(row['amount']))} accepted" + (f" ({', '.join(more)} units)" if more else "")
        typer.echo(f"  {at(row['day'])[:10]}  {said}{until}")


def _sum(part: dict[str, Any]) -> str:
    return f"{tokens(int(part['amount']))} ({part['units']:,} units)"
