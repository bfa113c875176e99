"""Showing a swarm as it runs: a live screen at a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swarm.watch import Watch

_EVENTS = 8


class Display:
    """`say` tells what happens; `show` draws the swarm's state. Use as a context manager."""

    def __init__(self, title: str) -> None:
        self.console = Console(stderr=False, highlight=False)
        self._title = title
        self._started = time.monotonic()
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._live = (
            Live(console=self.console, refresh_per_second=4, transient=True) if self.console.is_terminal else None
        )
        self._last_step: int | None = None

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, line: str) -> None:
        """One thing that happened."""
        stamped = f"{time.monotonic() - self._started:6.1f} s  {line}"
        if self._live:
            self._events.append(stamped)
            self._live.update(self._frame(None))
        else:
            print(stamped, flush=True)

    def show(self, watch: Watch) -> None:
        """The state of everything."""
        if self._live:
            self._live.update(self._frame(watch))
            return
        step = watch.trainer.get("step")
        if watch.seen.head is not None and step != self._last_step:
            self._last_step = step
            self.say(_plain(watch))

    def print(self, *renderables: Any) -> None:
        """Final output, below the live screen."""
        for renderable in renderables:
            self.console.print(renderable, soft_wrap=isinstance(renderable, str))
        sys.stdout.flush()

    def _frame(self, watch: Watch | None) -> Group:
        events = Panel(Text("\n".join(self._events)), title="what happens", title_align="left", border_style="dim")
        if watch is None:
            return Group(Text(self._title, style="bold"), events)
        return Group(Text(self._title, style="bold"), _training(watch), _nodes(watch), events)


def _training(watch: Watch) -> Panel:
    status = watch.trainer
    metrics, evaluations = status.get("metrics") or {}, status.get("evaluations") or []
    table = Table.grid(padding=(0, 2))
    step, steps = status.get("step", 0), max(1, status.get("steps", 1))
    head = "none yet" if watch.seen.head is None else str(watch.seen.head)
    table.add_row("step", f"{step} of {steps}", ProgressBar(total=steps, completed=step, width=30), f"on chain: {head}")
    waiting = status.get("waiting") or {}
    reason = f" ({waiting['have']} of {waiting['need']} groups)" if waiting else ""
    table.add_row("trainer", status.get("state", "starting") + reason, "", "")
    reward = metrics.get("reward")  # none where a step had nothing to learn from
    table.add_row("reward", "–" if reward is None else f"{reward:.3f}", "", "")
    scores = "  ".join(f"{e['score']:.2f}" for e in evaluations[-10:])
    table.add_row("held out", scores or "–", "", f"{evaluations[-1]['problems']} problems" if evaluations else "")
    for name, kind in watch.kinds.items():
        scores = "  ".join(f"{e['by_environment'][name]:.2f}" for e in evaluations[-10:])
        table.add_row(f"  {name}", scores or "–", f"reward {_shown(watch.rewards.get(name))}", kind)
    newest = [max(status["versions"]) for status in watch.relays.values() if status.get("versions")]
    served = ", ".join(f"{name} {count / 1e6:.1f}" for name, count in watch.served.items())
    table.add_row("broadcast", f"MB served: {served}", "", f"relays have step {max(newest)}" if newest else "")
    return Panel(table, title="training", title_align="left")


def _shown(reward: float | None) -> str:
    return "–" if reward is None else f"{reward:.2f}"


def _nodes(watch: Watch) -> Panel:
    table = Table(box=None, pad_edge=False)
    for column in ("node", "submitted", "accepted", "soft", "hard", "doing"):
        table.add_column(column, justify="left" if column in ("node", "doing") else "right")
    for node in watch.members():
        counts, status = watch.seen.counts(node.address), watch.doing(node)
        style = "red" if node.address in watch.seen.banned or counts["hard"] else ""
        table.add_row(
            node.name,
            str(counts["submitted"]),
            str(counts["accept"]),
            str(counts["soft"]),
            str(counts["hard"]),
            status,
            style=style,
        )
    return Panel(table, title="nodes", title_align="left")


def _plain(watch: Watch) -> str:
    status = watch.trainer
    metrics, evaluations = status.get("metrics") or {}, status.get("evaluations") or []
    known = metrics.get("reward")
    reward = "" if known is None else f", reward {known:.3f}"
    each = ", ".join(f"{name} {_shown(watch.rewards.get(name))}" for name in watch.kinds)
    reward += f" ({each})" if reward and len(watch.kinds) > 1 else ""
    score = f", held-out {evaluations[-1]['score']:.3f}" if evaluations else ""
    totals = sum((watch.seen.counts(node.address) for node in watch.members()), Counter())
    judged = (
        f"submitted {totals['submitted']}, accepted {totals['accept']}, soft {totals['soft']}, hard {totals['hard']}"
    )
    return f"step {status.get('step', 0)} of {status.get('steps', '?')}{reward}{score}; {judged}"
