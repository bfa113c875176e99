"""`node status` and `node submissions`: am I earning, and if not, why?"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from node.commands.context import DEFAULT_HOME, HomeOption, open_chain, open_home, settings
from node.journal import Journal
from protocol.chain import Chain
from protocol.chain.types import Role
from protocol.cli import Json, emit
from protocol.errors import UsageError
from protocol.home import Home
from protocol.money import duration, tokens


def register(app: typer.Typer) -> None:
    app.command()(status)
    app.command()(submissions)


def status(home: HomeOption = DEFAULT_HOME, as_json: Json = False) -> None:
    """Show seat, stake, work and rewards, and what to do next."""
    place = open_home(home)
    node = settings(place).value
    data = collect(place, open_chain(node), node.chain.run)
    emit(data, as_json, lambda: _print_status(data))


def collect(place: Home, chain: Chain, run: int) -> dict[str, Any]:
    """Everything `status` shows. Amounts in wei, times in seconds."""
    address = place.address("node")
    seat, policy, head = chain.seat(run, address), chain.policy(run), chain.head(run)
    ready, pending = chain.claimable(run, address)
    account = chain.account(seat.operator)
    told = place.read_status()
    running = told is not None and told.get("state") != "stopped" and _alive(told.get("pid"))
    journal = Journal(place.data / "journal.sqlite")
    counts = journal.counts()
    journal.close()
    return {
        "node": address, "run": run, "role": seat.role.name.lower(), "operator": seat.operator, "hardware": seat.hardware,
        "open_hard": seat.open_hard, "stake": account.active, "locked": account.locked, "leaving": account.leaving,
        "head": head.step if head else None, "running": running, "doing": told if running else None,
        "submissions": dict(counts), "ready_units": ready, "pending_units": pending, "reward": policy.reward,
        "gas": chain.balance(address), "paused": chain.paused(run), "next": _next_command(seat.role, running, ready, seat.open_hard),
    }  # fmt: skip


def _next_command(role: Role, running: bool, ready: int, open_hard: int) -> str:
    if role == Role.BANNED or open_hard:
        return "node submissions"
    if role != Role.ACTIVE:
        return "node stake"
    if not running:
        return "node start"
    return "node claim" if ready else ""


def _print_status(d: dict[str, Any]) -> None:
    head = "no weights published yet" if d["head"] is None else f"weights at step {d['head']}"
    typer.echo(f"Run {d['run']}: {head}" + (" (paused by its owner)" if d["paused"] else ""))
    typer.echo(f"  seat       {d['role']}, node {d['node']}, hardware class {d['hardware']}")
    if d["open_hard"]:
        typer.echo(f"             {d['open_hard']} hard case open: no new work is taken until it is settled")
    typer.echo("\nStake")
    typer.echo(f"  operator   {d['operator']}")
    typer.echo(f"  staked     {tokens(d['stake'])}, {tokens(d['locked'])} of it backs seats")
    if d["leaving"]:
        typer.echo(f"  leaving    {tokens(d['leaving'])}")
    typer.echo("\nWork")
    doing = d["doing"] or {}
    state = doing.get("state", "not running")
    more = [f"{k} {v}" for k, v in doing.items() if k in ("step", "sequence", "reason")]
    typer.echo(f"  now        {state}" + (f" ({', '.join(more)})" if more else ""))
    shown = ", ".join(f"{count} {state}" for state, count in sorted(d["submissions"].items())) or "none"
    typer.echo(f"  submitted  {shown}")
    typer.echo("\nRewards")
    typer.echo(f"  ready      {tokens(d['ready_units'] * d['reward'])} ({d['ready_units']} units)")
    typer.echo(f"  pending    {tokens(d['pending_units'] * d['reward'])} until the verification window has passed")
    typer.echo(f"  gas money  {d['gas'] / 1e18:.6f} ETH on the node key")
    if d["next"]:
        typer.echo(f"\nnext: {d['next']}")


def submissions(
    work: Annotated[str | None, typer.Argument(help="A work id (or its beginning): show its verdict in full.")] = None,
    home: HomeOption = DEFAULT_HOME,
    most: Annotated[int, typer.Option(help="How many of the newest to list.")] = 20,
    as_json: Json = False,
) -> None:
    """List submissions, or explain what a validator found in one."""
    place = open_home(home)
    journal = Journal(place.data / "journal.sqlite")
    found = journal.all(most=most) if work is None else [s for s in journal.all() if s.work.hex().startswith(work)]
    journal.close()
    if work is not None and len(found) != 1:
        raise UsageError(f"{len(found)} submissions begin with {work!r}", hint="node submissions lists them")
    rows = [
        {
            "work": s.work.hex(), "step": s.ref.step, "sequence": s.ref.sequence, "units": s.units, "state": s.state,
            "made_at": s.made_at, "receipt": json.loads(s.receipt) if s.receipt else None,
        }
        for s in found
    ]  # fmt: skip
    emit({"submissions": rows}, as_json, lambda: _print_one(rows[0]) if work else _print_many(rows))


def _print_many(rows: list[dict[str, Any]]) -> None:
    if not rows:
        typer.echo("nothing submitted yet")
    for row in rows:
        details = (row["receipt"] or {}).get("details", {})
        why = f"{details['rule']}: {details['detail']}" if details.get("rule") else ""
        age = duration(int(datetime.now(UTC).timestamp()) - row["made_at"])
        typer.echo(
            f"{row['work'][:12]}  step {row['step']:>5}.{row['sequence']:<3} {row['units']:>8} units  {row['state']:<9} {age:>10} ago  {why}"
        )


def _print_one(row: dict[str, Any]) -> None:
    typer.echo(
        f"work      {row['work']}\nstep      {row['step']}, sequence {row['sequence']}\nunits     {row['units']}\nstate     {row['state']}"
    )
    if row["receipt"] is None:
        typer.echo("verdict   none yet")
        return
    d = row["receipt"]["details"]
    typer.echo(f"validator {row['receipt']['validator']}")
    typer.echo(
        f"checked   {d['sequences_checked']} samples by prefill, {d['proofs_checked']} proofs, {d['tokens_checked']} tokens"
    )
    if d["rule"]:
        typer.echo(
            f"rule      {d['rule']}: measured {d['measured']}, threshold {d['threshold']}\ndetail    {d['detail']}"
        )


def _alive(pid: object) -> bool:
    try:
        os.kill(int(pid), 0)  # type: ignore[call-overload]
    except (OSError, TypeError, ValueError):
        return False
    return True
