"""`node submissions` as text: many in a line each, one in full."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import typer

from node.contributor import rule_words
from protocol.shell.cli import plain
from protocol.shell.money import duration, tokens
from protocol.shell.sentences import at
from protocol.verdict import Outcome, compares

_MOST = 1_000  # characters of what a validator wrote


def show_many(rows: list[dict[str, Any]]) -> None:
    if not rows:
        typer.echo("nothing submitted yet")
        return
    typer.echo(f"{'submission':<12}  {'step.sequence':<14} {'tokens':>14}  {'state':<9} {'made':>14}  rule")
    for row in rows:
        details = (row["receipt"] or {}).get("details", {})
        why = plain(f"{details['rule']}: {details['detail']}") if details.get("rule") else ""
        age = duration(int(datetime.now(UTC).timestamp()) - row["made_at"])
        typer.echo(
            f"{row['submission'][:12]}  step {row['step']:>5}.{row['sequence']:<3} {row['units']:>8} units  {_state(row):<9} {age:>10} ago  {why}"
        )


def _state(row: dict[str, Any]) -> str:
    """What became of it: what the chain has decided goes before what a validator said."""
    on_chain = (row["chain"] or {}).get("state", "none")
    return str(row["state"] if on_chain in ("none", "submitted") else on_chain)


def show_one(row: dict[str, Any]) -> None:
    typer.echo(
        f"id        {row['submission']}\nstep      {row['step']}, sequence {row['sequence']}\nunits     {row['units']}\nstate     {_state(row)}"
    )
    if row["receipt"] is None:
        typer.echo("verdict   none yet")
    else:
        d = row["receipt"]["details"]
        outcome = Outcome(d["outcome"])
        typer.echo(f"verdict   {outcome.name.lower()}, {at(d['time'])} UTC: {rule_words.OUTCOMES[outcome]}")
        typer.echo(f"validator {row['receipt']['validator']}")
        typer.echo(
            f"checked   {d['sequences_checked']} samples by prefill, {d['proofs_checked']} proofs, {d['tokens_checked']} tokens"
        )
        if d["rule"]:
            typer.echo(f"rule      {d['rule']}: {rule_words.RULES[d['rule']]} ({rule_words.link(d['rule'])})")
            first, second = compares(d["rule"])
            typer.echo(f"{first:9} {plain(d['measured'])}, {second} {plain(d['threshold'])}")
            typer.echo(f"detail    {plain(d['detail'], _MOST)}")
            if d["rule"] == "history":
                typer.echo("samples   none by itself: the seat's work up to this submission, taken together")
            else:
                typer.echo(f"samples   {rule_words.ranges(int(d['samples'], 16))} of the file, counted from 0")
    if row["chain"] is not None:
        _print_chain(row["chain"])
    typer.echo(f"\nnext: {row['next']}")


def _print_chain(chain: dict[str, Any]) -> None:
    if chain["case"] is not None:
        typer.echo(f"case      {chain['case']['number']}, {chain['case']['told']}")
    if chain["state"] in ("revoked", "swept"):
        typer.echo(f"pay       none; it would have been {tokens(int(chain['amount']))}")
    elif chain["claimable_at"] is not None:
        typer.echo(
            f"pay       {tokens(int(chain['amount']))}, from {at(chain['claimable_at'])} UTC on, if nothing is held against it"
        )
