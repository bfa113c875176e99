"""Showing a swarm as it runs: a live screen at a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from protocol.logs import escaped
from protocol.verdict import Outcome
from swarm.screen import Cut, Screen, Section
from swarm.watch import Watch

_EVENTS = 200  # kept
_TOLD = 8  # left on the terminal where the demo fails
_NAME = 20  # cells of a node's name: with the numbers they are 39
_SCORES = 9  # of evaluations, and one more
_BAR = 20  # cells of the progress bar
_REFRESH = 4  # a second


class Display:
    """`say` tells what happens; `show` draws the swarm's state. Use as a context manager.

    The screen is the terminal's other one and is drawn anew several times a second by a thread: it fits after a resize, and what was
    on the terminal is back at the end.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.console = console or Console(stderr=False, highlight=False)
        self._title = title
        self._started = time.monotonic()
        self._events: tuple[str, ...] = ()
        self._state: tuple[Section, ...] = ()
        self._live: Live | None = None
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(
                console=self.console, refresh_per_second=_REFRESH, screen=True, get_renderable=lambda: self.screen
            )
        self._last_step: int | None = None

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live is None:
            return
        self._live.stop()
        if kind is not None:  # what was on the screen is gone with it
            for line in self._events[-_TOLD:]:
                self.console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Gives the terminal back, also where leaving the block was broken off."""
        if self._live:
            self._live.stop()
            self.console.set_alt_screen(False)
            self.console.show_cursor(True)

    def say(self, line: str) -> None:
        """One thing that happened."""
        stamped = f"{time.monotonic() - self._started:6.1f} s  {escaped(line)}"
        self._events = (*self._events, stamped)[-_EVENTS:]
        if not self._live:
            print(stamped, flush=True)

    def show(self, watch: Watch) -> None:
        """The state of everything, as of now."""
        if self._live:
            self._state = tuple(sections(watch))
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

    @property
    def screen(self) -> Screen:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        events = Section("what happens", [Text(line) for line in self._events], least=3, cut=Cut.OLDEST)
        return Screen(Text(f"{minutes}:{seconds:02}  {self._title}", style="bold"), (*self._state, events))


def sections(watch: Watch) -> Iterator[Section]:
    yield Section("training", list(_training(watch)), least=1, cut=Cut.LAST)
    heading = f"{'nodes':<{_NAME}}{'sent':>4}{'good':>5}{'soft':>5}{'hard':>5}  doing"
    yield Section(heading, [_node(watch, member) for member in watch.members()])
    yield Section("services", list(_services(watch)), least=4, cut=Cut.LAST)


def _training(watch: Watch) -> Iterator[Text]:
    status = watch.trainer
    metrics, evaluations = status.get("metrics") or {}, status.get("evaluations") or []
    step, steps = status.get("step", 0), max(1, status.get("steps", 1))
    done = min(_BAR, _BAR * step // steps)
    head = "none yet" if watch.seen.head is None else str(watch.seen.head)
    waiting = status.get("waiting") or {}
    reason = f" ({waiting['have']} of {waiting['need']} groups)" if waiting else ""
    of_all = f"{step} of {steps}" if status else "starting"
    yield _row("step", f"{of_all}  {'━' * done}{'·' * (_BAR - done)}  on chain: {head}")
    yield _row("trainer", status.get("state", "starting") + reason)
    reward = metrics.get("reward")  # none where a step had nothing to learn from
    scores = " ← ".join(f"{e['score']:.2f}" for e in evaluations[:-_SCORES:-1])
    of = f" of {evaluations[-1]['problems']} problems" if evaluations else ""
    yield _row("reward", f"{'–' if reward is None else f'{reward:.3f}'}  held out {scores or '–'}{of}")
    for name, kind in watch.kinds.items():
        scores = " ← ".join(f"{e['by_environment'][name]:.2f}" for e in evaluations[:-_SCORES:-1])
        yield _row(f"  {name}", f"{kind}, reward {_shown(watch.rewards.get(name))}  held out {scores or '–'}")


def _row(name: str, words: str) -> Text:
    return Text(f"{name:<14} {words}")


def _shown(reward: float | None) -> str:
    return "–" if reward is None else f"{reward:.2f}"


def _node(watch: Watch, member: Any) -> Text:
    counts = watch.seen.counts(member.address)
    numbers = "".join(f"{counts[kind]:>5}" for kind in ("submitted", "accept", "soft", "hard"))
    style = "red" if member.address in watch.seen.banned or counts["hard"] else ""
    name = Text(member.name, style=style)
    name.truncate(_NAME - 1, overflow="ellipsis", pad=True)
    return name.append(f"{numbers}  {escaped(watch.doing(member))}")


def _services(watch: Watch) -> Iterator[Text]:
    """Each kind in a row, and then each validator in one."""
    published = watch.hub.get("published")
    newest = "no weights yet" if published is None else f"step {published}"
    yield _row("hub", f"{newest}, {watch.served['origin'] / 1e6:.1f} MB served" if watch.hub else "starting")
    yield _row("bootnode", watch.bootnode)
    yield _row("relays", "; ".join(_relay(watch, name, status) for name, status in watch.relays.items()))
    receipts = [receipt for of_one in watch.seen.receipts.values() for receipt in of_one]
    said = Counter(receipt.validator for receipt in receipts)
    hard = Counter(receipt.validator for receipt in receipts if receipt.outcome == Outcome.HARD)
    cases = Counter(case.challenger for _, case in watch.seen.challenged)
    yield _row("validators", f"{said.total()} verdicts, {hard.total()} hard; {cases.total()} challenges")
    for member in watch.validators():
        at = member.address
        did = f"{said[at]} verdicts, {hard[at]} hard; {cases[at]} challenges"
        yield _row(f"  {member.name}", f"{did}; {escaped(watch.doing(member))}")


def _relay(watch: Watch, name: str, status: dict[str, Any]) -> str:
    if not watch.runs(name):
        return f"{name} was killed"
    versions, served = status.get("versions") or [], status.get("bytes_served", 0) / 1e6
    return f"{name} {f'step {max(versions)}' if versions else 'no weights yet'}, {served:.1f} MB"


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
