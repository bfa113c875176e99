"""The demo's last screen: what was learned, who earned, who cheated, and how long it took."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cheats.play import PLAYS
from rich.table import Table

from protocol.shell.money import tokens
from protocol.verdict import Outcome
from swarm import promises
from swarm.ending import Payout
from swarm.swarm import Swarm
from swarm.watch import Watch


def render(swarm: Swarm, watch: Watch, payouts: list[Payout], seconds: dict[str, float], peak: int | None) -> list[Any]:
    """Rich renderables, top to bottom. `peak`: bytes of memory, None where that cannot be measured."""
    return [
        "",
        _learning(watch),
        _cheating(swarm, watch),
        *_soft(swarm, watch),
        _rewards(payouts),
        _times(watch, seconds, peak),
        *_slow(sum(seconds.values()), promises.seconds_most(swarm.settings)),
    ]


def _grid(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")  # a transaction is shown whole
    return table


def _learning(watch: Watch) -> Table:
    status = watch.trainer
    evaluations, data = status["evaluations"], status["data"]
    table = _grid("Learning")
    for kind in dict.fromkeys(watch.kinds.values()):
        scores = promises.held_out(watch, kind)
        last = scores[-3:]
        table.add_row(kind, f"held out {scores[0]:.3f} → {sum(last) / len(last):.3f} (mean of the last {len(last)})")
        for name in (name for name, of in watch.kinds.items() if of == kind):
            table.add_row(f"  {name}", _of_environment(name, evaluations, data["environments"].get(name)))
    table.add_row("steps", f"{status['step']}")
    generated = sum(s.units for s in watch.seen.submitted.values())
    table.add_row("tokens", f"{generated:,} generated, {status['trained_tokens']:,} trained on")
    accepted = [r.details for receipts in watch.seen.receipts.values() for r in receipts]
    table.add_row(
        "checked",
        f"{sum(d.proofs_checked for d in accepted):,} proofs, {sum(d.sequences_checked for d in accepted):,} samples",
    )
    sent = ", ".join(f"{name} {count / 1e6:.1f} MB" for name, count in watch.served.items())
    table.add_row("weights sent", f"{sent}: the origin {promises.origin_share(watch):.0%}")
    staleness = Counter({int(k): v for k, v in data["staleness"].items()})
    shown = ", ".join(f"{count} with staleness {steps}" for steps, count in sorted(staleness.items()))
    share = data["trained_share"] or 0
    table.add_row(
        "groups",
        f"{staleness.total()} trained on ({shown}), {data['zero_advantage_groups']} without signal, {data['stale_groups']} too old: "
        f"{share:.0%} of what was accepted with signal were trained on",
    )
    return table


def _of_environment(name: str, evaluations: list[dict[str, Any]], tally: dict[str, Any] | None) -> str:
    """`tally`: sums over the accepted samples, None where there was none."""
    first, last = (evaluation["by_environment"][name] for evaluation in (evaluations[0], evaluations[-1]))
    came = "no sample accepted"
    if tally:
        came = f"{tally['samples']:,} samples accepted, reward {tally['task_reward'] / tally['samples']:.3f} on average"
    return f"held out {first:.3f} → {last:.3f} (last); {came}"


def _cheating(swarm: Swarm, watch: Watch) -> Table:
    table = _grid("The cheats")
    for node in swarm.nodes:
        if not node.is_cheat:
            continue
        play = PLAYS[node.cheat]
        verdicts = [
            r
            for rs in watch.seen.receipts.values()
            for r in rs
            if r.details.node == node.address and r.outcome == Outcome.HARD
        ]
        table.add_row(node.name, play.what)
        if verdicts:
            d = verdicts[0].details
            table.add_row(
                "  verdict", f"hard, rule {d.rule}: measured {d.measured}, threshold {d.threshold} ({d.detail})"
            )
            table.add_row("  found by", ", ".join(sorted({watch.name(r.validator) for r in verdicts})))
        before, after = promises.initial_stake(swarm), swarm.chain.account(node.operator).active
        slashed = [event for event, s in watch.seen.slashed if s.seat == node.address]
        transaction = f" in transaction 0x{slashed[-1].transaction.hex()}" if slashed else ""
        table.add_row("  stake", f"{tokens(before)} → {tokens(after)}{transaction}")
        trained = watch.trainer["data"]["trained_nodes"].get(node.address, 0)
        banned = "banned" if node.address in watch.seen.banned else "NOT banned"
        table.add_row("  seat", f"{banned}; {trained} of its groups were trained on")
    return table


def _soft(swarm: Swarm, watch: Watch) -> list[Table]:
    lines = list(promises.soft_verdicts(swarm, watch))
    if not lines:
        return []
    table = _grid("Soft verdicts on honest nodes")
    for line in lines:
        table.add_row("", line)
    return [table]


def _rewards(payouts: list[Payout]) -> Table:
    table = Table(title="Rewards", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("operator of", "one second early", "pending then", "claimed after 1.2 windows"):
        table.add_column(column, justify="left" if column == "operator of" else "right")
    for p in payouts:
        table.add_row(p.member.name, tokens(p.early), tokens(p.pending), tokens(p.claimed))
    return table


def _times(watch: Watch, seconds: dict[str, float], peak: int | None) -> Table:
    table = _grid("Time and memory")
    for name, value in seconds.items():
        table.add_row(name, f"{value:.0f} s")
    phases = sorted(watch.trainer.get("seconds", {}).items(), key=lambda item: -item[1])
    table.add_row("trainer", ", ".join(f"{name} {value:.0f} s" for name, value in phases))
    table.add_row("altogether", f"{sum(seconds.values()):.0f} s")
    status = (
        "not measured: there is no /proc here"
        if peak is None
        else f"{promises.gibibytes(peak)}, all processes together"
    )
    table.add_row("most memory", status)
    return table


def _slow(seconds: float, most: int) -> list[str]:
    """A warning where the swarm took longer than it does on two free cores."""
    if seconds <= most:
        return []
    return [
        f"[yellow]Warning: {seconds:.0f} s are more than the {most} s of two free cores. This breaks no promise, for machines "
        "differ and may be busy.[/]"
    ]
