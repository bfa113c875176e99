"""After how many tokens of one seat the sums find a cheat that single submissions hide, in float32: cheap generation whose proofs and logprobs
the right weights make anew (scripts/cheats/sums.py). A part of `scripts/bench cheats`.

A tiny policy trained for a hundred steps answers eight times a submission, at most 160 tokens each. Seats are other keys, which draw otherwise.
Every row is prefilled, and none again as a named alternative: what finds a cheat is its margins and the draw's side. Each submission is judged
with the seat's earlier ones and the default budget, `SUBMISSIONS` at most.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_high

from cheats.catalogue import Make
from cheats.scene import Scene
from cheats.sums import MADE, NOISE, judged_with_history
from swarm.tiny_run import TinyRun, run_tables

from benches import Cost
from node.judging.candidate import Candidate
from node.judging.judge import judge
from protocol.identity import Key
from protocol.runspec import HistoryBudget
from protocol.verdict import Outcome
from trainer.models.tiny import make_policy

SUBMISSIONS = 12
_STEPS = 100
_BUDGET = HistoryBudget()
_GOALS = {("bfloat16", "hard"): 4_000, ("int8", "soft"): 10_000, ("int8 cache", "soft"): 10_000}
"""Tokens: two submissions of 2,000, and five."""
Found = dict[Outcome, int]
"""Tokens until the first finding that is as grave; what was never found is missing."""


@dataclass(frozen=True)
class Tokens(Cost):
    """`ours` is the median of all seats; one that was not found counts with what was looked at, which is less than it would take."""

    most: int = 0
    """Of a seat that was found."""
    found: int = 0
    seats: int = 0
    looked_at: int = 0
    """Tokens of a seat that was not found, on average."""

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.found == self.seats and self.most <= self.goal

    @property
    def remark(self) -> str:
        never = f", the others not within {self.looked_at}" if self.found < self.seats else ""
        return f"{self.found} of {self.seats} seats, at most {self.most}{never}"


def rows(seats: int, only: str = "") -> Iterator[Tokens]:
    """Of honest work and of each cheat whose name begins so."""
    with tempfile.TemporaryDirectory() as folder:
        scene = _scene(Path(folder))
        try:
            for name, make in {"honest": _honest, **MADE}.items():
                if name.startswith(only):
                    yield from _rows(name, [_seat(scene, number, name, make) for number in range(seats)])
        finally:
            scene.run.context.sandbox.close()


def _scene(folder: Path) -> Scene:
    tables = run_tables()
    tables["spec"]["sampling"]["max_new_tokens"] = 160
    run = TinyRun.create(folder / "run", make_policy, tables, target=0.2)
    return Scene.create(run, folder / "scene", ages=(_STEPS,), paper_ages=(), end=0.0)


def _honest(scene: Scene, sequence: int) -> Candidate:
    return scene.run.candidate(scene.honest(sequence).made)


def _seat(scene: Scene, number: int, name: str, make: Make) -> tuple[Found, int]:
    """(when it was found, tokens looked at)"""
    key = Key.from_secret(bytes([7 + number]) * 32)  # the first is the catalogue's
    seat = Scene(replace(scene.run, node=key), {}).summing(*NOISE, seats=_BUDGET.seats, days=_BUDGET.days)
    found, tokens = Found(), 0
    for sequence in range(SUBMISSIONS):
        candidate = judged_with_history(seat, sequence, make, name)
        finding = judge(candidate)
        tokens += candidate.checked.tokens
        for outcome in (Outcome.SOFT, Outcome.HARD):
            if finding is not None and finding.outcome >= outcome:
                found.setdefault(outcome, tokens)
        if Outcome.HARD in found:
            break
    print(f"{name}, seat {number}: {found or 'not found'} of {tokens} tokens", file=sys.stderr, flush=True)
    return found, tokens


def _rows(name: str, seats: Sequence[tuple[Found, int]]) -> Iterator[Tokens]:
    for outcome in (Outcome.SOFT, Outcome.HARD):
        when = [found[outcome] for found, _ in seats if outcome in found]
        all_of_them = [found.get(outcome, tokens) for found, tokens in seats]
        rest = [tokens for found, tokens in seats if outcome not in found]
        yield Tokens(
            f"{name}: {outcome.name.lower()}", "tokens", float(median_high(all_of_them)), None, None,
            _GOALS.get((name, outcome.name.lower())), max(when, default=0), len(when), len(seats),
            round(sum(rest) / len(rest)) if rest else 0,
        )  # fmt: skip
