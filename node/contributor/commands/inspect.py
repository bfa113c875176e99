"""`node status` and `node submissions`: am I earning, and if not, why?"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.contributor import submission_log
from node.contributor.commands.appeal import find
from node.contributor.commands.context import DEFAULT_HOME, HomeOption, open_chain, open_home, settings
from node.contributor.submission_log import SubmissionLog
from protocol.chain.types import Role, Seat
from protocol.errors import PreflightError, VersionMismatch
from protocol.shell.cli import Json, emit
from protocol.shell.home import Home, read_json
from protocol.shell.money import duration, tokens

if TYPE_CHECKING:
    from protocol.calibration_notice import CalibrationNotice
    from protocol.chain import Chain
    from protocol.chain.types import Publication
    from protocol.runspec import RunSpec

_WHAT_NEXT = {
    submission_log.MADE: "node start, if it does not run: it sends what is still to be sent",
    submission_log.COMMITTED: "node start, if it does not run: the file has to reach the hub in time",
    submission_log.LOST: "nothing; it never reached chain or hub in time and earns nothing",
    submission_log.STORED: "nothing; a validator will judge it",
    submission_log.ACCEPTED: "node claim, once the verification window has passed",
    submission_log.SOFT: "node appeal {submission}, if the verdict is wrong; it earns nothing otherwise",
    submission_log.HARD: "node appeal {submission}, if the verdict is wrong; the seat is slashed otherwise",
}


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
    operator = _operator(place, seat)
    account = chain.account(operator)
    status = place.read_status()
    running = status is not None and status.get("state") != "stopped" and _alive(status.get("pid"))
    log = SubmissionLog(place.data / submission_log.FILE)
    counts = log.counts()
    spec, now = _kept_spec(place, chain, run), chain.block().time
    notice, read = _notice(place, head)
    sums = _sums(log, spec, notice, now)
    log.close()
    gas = chain.balance(address)
    return {
        "node": address, "run": run, "role": seat.role.name.lower(), "operator": operator, "hardware": seat.hardware,
        "open_hard": seat.open_hard, "shut_until": seat.shut_until if seat.is_shut(now) else None,
        "units_most": seat.most(policy.leverage), "penalty_left": max(0, policy.penalty - seat.spent), "stake": account.active, "locked": account.locked, "leaving": account.leaving,
        "head": head.step if head else None, "running": running, "doing": status if running else None,
        "submissions": dict(counts), "ready_units": ready, "pending_units": pending, "reward": policy.reward,
        "now": now, "penalty": policy.penalty, "gas": gas, "paused": chain.paused(run), "matrix_challenges": read_json(place.challenges), "sums": sums,
        "calibration": _calibration(spec, notice, read, head),
        "next": _next_command(address, seat, running, ready, gas, counts),
    }  # fmt: skip


def _kept_spec(place: Home, chain: Chain, run: int) -> RunSpec | None:
    """The run's spec, where an earlier start has kept it; None also of one that this version cannot read: the status is told all the same."""
    from protocol.shell import spec_file

    try:
        return spec_file.find(place, chain.spec_digest(run), None)
    except VersionMismatch:
        return None


def _notice(place: Home, head: Publication | None) -> tuple[CalibrationNotice | None, int]:
    """What holds for the head, as far as the versions say that this node has had, and the newest of these; -1 where it has had none, or its notes of them are damaged."""
    from protocol.notice_book import FILE, NoticeBook

    try:
        book = NoticeBook(place.data / FILE)
    except PreflightError as error:
        typer.echo(f"{error}; {error.hint}", err=True)
        return None, -1
    return (None if head is None else book.of(head.step)), book.last


def _calibration(
    spec: RunSpec | None, notice: CalibrationNotice | None, read: int, head: Publication | None
) -> dict[str, Any] | None:
    """Which calibration work is judged by, and from which version on, as far as version `read` says, the newest that was here; None where that, or the run's spec, is not known here yet."""
    if spec is None and notice is None:
        return None
    up_to = None if head is None or (spec is not None and spec.verification.recalibration is None) else read
    if up_to == -1:
        return None
    behind = {} if up_to is None or head is None or up_to >= head.step else {"as_of_version": up_to}
    if notice is not None:
        return {"digest": notice.calibration, "since": notice.since, "notice": notice.number} | behind
    assert spec is not None
    return {"digest": spec.verification.calibration, "since": 0, "notice": 0} | behind


def _sums(
    log: SubmissionLog, spec: RunSpec | None, notice: CalibrationNotice | None, now: int
) -> dict[str, Any] | None:
    """How this node stands in the sums over its work; None where the run does not judge by them, or its spec is not here yet. E-values as powers of ten."""
    from node.contributor.standing import standing
    from protocol import history
    from protocol.calibration_notice import in_force

    budget = in_force(spec.verification, notice).history if spec is not None else None
    if budget is None:
        return None
    found = standing(log, budget, now, 0 if notice is None else notice.since)
    return {
        "submissions": found.submissions, "tokens": found.tokens, "soft_share": round(found.soft_share, 3),
        "hard_share": round(found.hard_share, 3), "log10_evidence": f"{found.evidence.soft / math.log(10):.1f}",
        "log10_bound": f"{found.bound.soft / math.log(10):.1f}", "begin_anew": history.begins(now, budget) + budget.days * 86_400,
        "soft_share_by_statistic": {name: round(share, 3) for name, share in found.shares.items()}, "causes": found.causes,
    }  # fmt: skip


def _operator(place: Home, seat: Seat) -> str:
    """Who holds the seat; before there is one, the operator whose keystore lies here."""
    if seat.role == Role.NONE and place.keystore("operator").exists():
        return place.address("operator")
    return seat.operator


def _next_command(address: str, seat: Seat, running: bool, ready: int, gas: int, counts: Mapping[str, int]) -> str:
    if seat.role == Role.BANNED or seat.open_hard:
        return "node submissions"
    if seat.role != Role.ACTIVE:
        return "node stake"
    if not gas:
        return f"send some ETH to {address}; it pays for every submission"
    if not running:
        return "node start"
    if ready:
        return "node claim"
    return "node submissions" if counts.get(submission_log.SOFT) else ""


def _print_status(d: dict[str, Any]) -> None:
    head = "no weights published yet" if d["head"] is None else f"weights at step {d['head']}"
    typer.echo(f"Run {d['run']}: {head}" + (" (paused by its owner)" if d["paused"] else ""))
    typer.echo(f"  seat       {d['role']}, node {d['node']}, hardware class {d['hardware']}")
    if d["open_hard"]:
        shut = f"no new work is taken for {duration(d['shut_until'] - d['now'])}" if d["shut_until"] else "work goes on"
        typer.echo(
            f"             {d['open_hard']} hard case open: nothing that matures is paid until it is settled; {shut}"
        )
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
    if d["matrix_challenges"]:
        last, ago = (
            d["matrix_challenges"],
            duration(int(datetime.now(UTC).timestamp()) - d["matrix_challenges"]["time"]),
        )
        rate = last["operations_per_second"] / 1e12
        typer.echo(f"  challenged {last['answered']} answered, the last {ago} ago: {rate:.3g} int8 TOPS by itself")
    if d["calibration"]:
        of = d["calibration"]
        since = f"since version {of['since']}, notice {of['notice']}" if of["notice"] else "the run spec's"
        far = f"; as far as version {of['as_of_version']}, the newest read here" if "as_of_version" in of else ""
        typer.echo(f"  judged by  calibration {of['digest'][:12]}, {since}{far}")
    else:
        typer.echo("  judged by  a calibration that is not known here before the newest version is read")
    if d["sums"]:
        _print_sums(d["sums"])
    typer.echo("\nRewards")
    typer.echo(f"  ready      {tokens(d['ready_units'] * d['reward'])} ({d['ready_units']} units)")
    typer.echo(f"  pending    {tokens(d['pending_units'] * d['reward'])} until the verification window has passed")
    typer.echo(
        f"  at most    {tokens(d['units_most'] * d['reward'])} may be pending; each unit that is paid lets the seat have one more"
    )
    if d["penalty_left"] < d["penalty"]:
        typer.echo(
            f"  appeals    the key may lose {tokens(d['penalty_left'])} more; after that only the operator can appeal"
        )
    typer.echo(f"  gas money  {d['gas'] / 1e18:.6f} ETH on the node key")
    if d["next"]:
        typer.echo(f"\nnext: {d['next']}")


def _print_sums(s: dict[str, Any]) -> None:
    shares = f"{s['soft_share']:.0%} of what costs pay, {s['hard_share']:.0%} of what costs stake"
    typer.echo(f"  noise      {shares} ({s['tokens']} tokens of {s['submissions']} submissions were checked)")
    telling = {name: share for name, share in s["soft_share_by_statistic"].items() if share >= 0.01}
    if telling:
        typer.echo("             by " + ", ".join(f"{name} {share:.0%}" for name, share in telling.items()))
    if s["causes"]:
        typer.echo(f"             WARNING: noisier than the run's calibration. Possible causes: {s['causes']}.")
        anew = datetime.fromtimestamp(s["begin_anew"], UTC)
        typer.echo(f"             The sums begin anew on {anew:%Y-%m-%d %H:%M} UTC.")


def submissions(
    submission: Annotated[
        str | None, typer.Argument(help="A submission id (or its beginning): show its verdict in full.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    most: Annotated[int, typer.Option(help="How many of the newest to list.")] = 20,
    as_json: Json = False,
) -> None:
    """List submissions, or explain what a validator found in one."""
    place = open_home(home)
    place.require_config()
    if submission is not None:
        found = [find(place, submission)]
    else:
        log = SubmissionLog(place.data / submission_log.FILE)
        found = log.all(most=most)
        log.close()
    rows = [
        {
            "submission": s.id.hex(), "step": s.ref.step, "sequence": s.ref.sequence, "units": s.units, "state": s.state,
            "made_at": s.made_at, "receipt": json.loads(s.receipt) if s.receipt else None,
            "storage": json.loads(s.storage) if s.storage else None, "next": _WHAT_NEXT[s.state].format(submission=s.id.hex()[:12]),
        }
        for s in found
    ]  # fmt: skip
    emit({"submissions": rows}, as_json, lambda: _print_one(rows[0]) if submission else _print_many(rows))


def _print_many(rows: list[dict[str, Any]]) -> None:
    if not rows:
        typer.echo("nothing submitted yet")
    for row in rows:
        details = (row["receipt"] or {}).get("details", {})
        why = f"{details['rule']}: {details['detail']}" if details.get("rule") else ""
        age = duration(int(datetime.now(UTC).timestamp()) - row["made_at"])
        typer.echo(
            f"{row['submission'][:12]}  step {row['step']:>5}.{row['sequence']:<3} {row['units']:>8} units  {row['state']:<9} {age:>10} ago  {why}"
        )


def _print_one(row: dict[str, Any]) -> None:
    from protocol.verdict import Outcome

    typer.echo(
        f"id        {row['submission']}\nstep      {row['step']}, sequence {row['sequence']}\nunits     {row['units']}\nstate     {row['state']}"
    )
    if row["receipt"] is None:
        typer.echo("verdict   none yet")
    else:
        d = row["receipt"]["details"]
        judged = datetime.fromtimestamp(d["time"], UTC)
        outcome = Outcome(d["outcome"]).name.lower()
        typer.echo(f"verdict   {outcome}, {judged:%Y-%m-%d %H:%M} UTC\nvalidator {row['receipt']['validator']}")
        typer.echo(
            f"checked   {d['sequences_checked']} samples by prefill, {d['proofs_checked']} proofs, {d['tokens_checked']} tokens"
        )
        if d["rule"]:
            typer.echo(
                f"rule      {d['rule']}: measured {d['measured']}, threshold {d['threshold']}\ndetail    {d['detail']}"
            )
            if d["rule"] == "history":
                typer.echo("samples   none by itself: the seat's work up to this submission, taken together")
            else:
                typer.echo(f"samples   {_samples(int(d['samples'], 16))} of the file, counted from 0")
    typer.echo(f"\nnext: {row['next']}")


def _samples(mask: int) -> str:
    """The samples a verdict is about, in words."""
    from protocol.verdict import ALL_SAMPLES

    return (
        "all" if mask == ALL_SAMPLES else ", ".join(str(i) for i in range(mask.bit_length()) if mask >> i & 1) or "none"
    )


def _alive(pid: object) -> bool:
    try:
        os.kill(int(pid), 0)  # type: ignore[call-overload]
    except (OSError, TypeError, ValueError):
        return False
    return True
