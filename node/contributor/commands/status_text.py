"""`node status` as text."""

from __future__ import annotations

import shutil
import sys
import textwrap
from datetime import UTC, datetime
from typing import Any

import typer

from node.contributor import earning
from protocol.shell.money import duration, tokens
from protocol.shell.sentences import when

_NAME = 13  # columns of the names
_NARROWEST = 40  # columns; a terminal that says less is not believed
_EARNING = {earning.EARNING: "yes", earning.WAITING: "waiting", earning.NOT_EARNING: "no"}


def show(d: dict[str, Any], *, begins_with_next: bool = False) -> None:
    """`begins_with_next`: what counts most stands first, where a screen cuts off the end; else last, where a terminal has scrolled."""
    now = d["now"]
    if begins_with_next:
        _print_next(d)
        typer.echo()
    head = "no weights published yet" if d["head"] is None else f"weights at step {d['head']}"
    _echo(f"Run {d['run']}: {head}{_run_words(d)}")
    _echo(f"  seat       {_seat_words(d)}, node {d['node']}, hardware class {d['hardware']}")
    if d["open_hard"]:
        shut = f"no new work is taken until {when(d['shut_until'], now)}" if d["shut_until"] else "work goes on"
        _echo(f"             {d['open_hard']} hard case open: nothing that matures is paid until it is settled; {shut}")
    if d["suspended_until"] is not None:
        _echo(
            f"             suspended after {d['strikes']} rejected submissions, until {when(d['suspended_until'], now)}"
        )
    _print_stake(d)
    if d["cases"]:
        _section("Cases")
        for case in d["cases"]:
            _echo(f"  case {case['number']:<5} {case['told']}")
    _print_work(d)
    _print_rewards(d)
    if not begins_with_next:
        typer.echo()
        _print_next(d)


def _print_next(d: dict[str, Any]) -> None:
    _echo(f"earning: {_EARNING[d['earning']['state']]}, {d['earning']['why']}")
    if d["next"]:
        typer.echo(f"next: {d['next']}")  # unbroken: a command to copy


def _section(name: str) -> None:
    typer.echo(f"\n{name}")


def _echo(line: str) -> None:
    """In the width of the terminal, between words; as it is where there is none."""
    if sys.stdout.isatty():
        margin = " " * (_NAME if line.startswith("  ") else 2)
        width = max(_NARROWEST, shutil.get_terminal_size().columns)
        line = "\n".join(
            textwrap.wrap(line, width, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False)
        )
    typer.echo(line)


def _run_words(d: dict[str, Any]) -> str:
    if d["over"]:
        return (
            " (the run is over: the trainer wants no more work)"
            if not d["paused"]
            else " (the run is over: its owner has paused it and taken the budget out)"
        )
    return " (paused by its owner)" if d["paused"] else ""


def _seat_words(d: dict[str, Any]) -> str:
    ended = d["unlocks_at"] is not None or int(d["seat_stake"]) == 0
    if d["role"] == "banned":
        convicted = any(case["kind"] == "hard" and case["stage"] in ("upheld", "split") for case in d["cases"])
        by = "convicted" if convicted else "by the run's owner"
        return f"banned ({by}{'' if ended else '; it works on for a while'})"
    return {"none": "none yet"}.get(d["role"], d["role"])


def _print_stake(d: dict[str, Any]) -> None:
    _section("Stake")
    _echo(f"  operator   {d['operator']}")
    _echo(
        f"  staked     {tokens(int(d['stake']))}, {tokens(int(d['locked']))} of it backs seats, {tokens(int(d['free']))} are free"
    )
    if d["unlocks_at"] is not None:
        until = when(d["unlocks_at"], d["now"])
        and_cases = f" and until {d['open_cases']} open cases are settled" if d["open_cases"] else ""
        _echo(
            f"  seat's     {tokens(int(d['seat_stake']))} are locked until {until}{and_cases}; then node unstake, and node withdraw"
        )
    if d["leaving_at"] is not None:
        _echo(f"  leaving    {tokens(int(d['leaving']))}, to be withdrawn from {when(d['leaving_at'], d['now'])} on")


def _print_work(d: dict[str, Any]) -> None:
    _section("Work")
    doing = d["doing"] or {}
    state = doing.get("state", "not running")
    more = [str(v) if k == "reason" else f"{k} {v}" for k, v in doing.items() if k in ("step", "sequence", "reason")]
    _echo(f"  now        {state}" + (f" ({', '.join(more)})" if more else ""))
    if "tokens_per_second" in doing:
        _echo(f"  speed      {doing['tokens_per_second']} tokens a second in the last submission")
    if "page_url" in doing:
        _echo(f"  page       {doing['page_url']}")
    shown = ", ".join(f"{count} {state}" for state, count in sorted(d["submissions"].items())) or "none"
    _echo(f"  submitted  {shown}")
    if d["matrix_challenges"]:
        last, ago = (
            d["matrix_challenges"],
            duration(int(datetime.now(UTC).timestamp()) - d["matrix_challenges"]["time"]),
        )
        rate = last["operations_per_second"] / 1e12
        _echo(f"  challenged {last['answered']} answered, the last {ago} ago: {rate:.3g} int8 TOPS by itself")
    if d["calibration"]:
        of = d["calibration"]
        since = f"since version {of['since']}, notice {of['notice']}" if of["notice"] else "the run spec's"
        far = f"; as far as version {of['as_of_version']}, the newest read here" if "as_of_version" in of else ""
        _echo(f"  judged by  calibration {of['digest'][:12]}, {since}{far}")
    else:
        _echo("  judged by  a calibration that is not known here before the newest version is read")
    if d["sums"]:
        _print_sums(d["sums"])


def _print_rewards(d: dict[str, Any]) -> None:
    reward = int(d["reward"])
    _section("Rewards")
    if d["paid_units"]:
        _echo(f"  paid       {tokens(d['paid_units'] * reward)} so far ({d['paid_units']} units)")
    _echo(f"  ready      {tokens(d['ready_units'] * reward)} ({d['ready_units']} units)")
    dated = "; ".join(f"{tokens(int(one['amount']))} from {when(one['at'], d['now'])} on" for one in d["maturing"])
    _echo(f"  pending    {tokens(d['pending_units'] * reward)}" + (f": {dated}" if dated else ""))
    if d["held_units"]:
        _echo(f"             {tokens(d['held_units'] * reward)} of it wait for open cases")
    if d["forecast"]:
        _echo(f"  a day      {forecast_words(d['forecast'])}")
    if d["role"] == "active":
        _echo(
            f"  at most    {tokens(d['units_most'] * reward)} may be pending; each unit that is paid lets the seat have one more"
        )
        if int(d["penalty_left"]) < int(d["penalty"]):
            left = tokens(int(d["penalty_left"]))
            _echo(f"  appeals    the key may lose {left} more; after that only the operator can appeal")
    _echo(f"  gas money  {int(d['gas']) / 1e18:.6f} ETH on the node key")


def forecast_words(f: dict[str, Any]) -> str:
    rate = f"at the rate of the last {duration(f['seconds'])}, where nothing is rejected"
    cap = "; it could make more than the seat may have waiting" if f["is_capped"] else ""
    return f"about {tokens(_rounded(int(f['amount'])))} {rate}{cap}"


def _rounded(wei: int) -> int:
    """To three digits: a forecast has no more."""
    unit = 10 ** max(0, len(str(wei)) - 3)
    return wei // unit * unit


def _print_sums(s: dict[str, Any]) -> None:
    shares = f"{s['soft_share']:.0%} of what costs pay, {s['hard_share']:.0%} of what costs stake"
    _echo(f"  noise      {shares} ({s['tokens']} tokens of {s['submissions']} submissions were checked)")
    telling = {name: share for name, share in s["soft_share_by_statistic"].items() if share >= 0.01}
    if telling:
        _echo("             by " + ", ".join(f"{name} {share:.0%}" for name, share in telling.items()))
    if s["causes"]:
        _echo(f"             WARNING: noisier than the run's calibration. Possible causes: {s['causes']}.")
        anew = datetime.fromtimestamp(s["begin_anew"], UTC)
        _echo(f"             The sums begin anew on {anew:%Y-%m-%d %H:%M} UTC.")
