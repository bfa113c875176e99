"""Every cheat we can name, the rule that is to find it, and how gravely. What cannot be told apart says so.

A cheat is a function of a scene and a sequence: it returns a validator's view of a submission made by cheating. One module
per kind: weights, text, turns, drawing, files, proofs, sums. tests/cheats/test_catalogue.py holds each to what it says here;
`scripts/bench cheats` measures how often it is found.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from cheats.scene import Age, Scene
from node.judging.candidate import Candidate
from protocol.verdict import Finding, Outcome

SOFT, HARD = Outcome.SOFT, Outcome.HARD
Make = Callable[[Scene, int], Candidate]


@dataclass(frozen=True)
class Cheat:
    name: str
    kind: str
    rules: tuple[str, ...]
    """Those of which any may be the first to find it; for what is not told apart, those that measure it."""
    outcome: Outcome
    make: Make
    what: str
    """One sentence."""
    within: int = 1
    """Submissions of the test suite's size among which one at least is found; 0 where it cannot be told apart."""
    age: Age | None = None
    """Of the weights it needs."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_told_apart(self) -> bool:
        return self.within > 0

    def finds(self, finding: Finding | None) -> bool:
        """Whether this is what the catalogue expects: where values are measured, a graver outcome will do as well."""
        if finding is None or finding.rule not in self.rules:
            return False
        is_measured = finding.rule in ("computation", "sampling", "history")
        return finding.outcome >= self.outcome if is_measured else finding.outcome == self.outcome


_FOUND: dict[str, Cheat] = {}
_KINDS = ("weights", "text", "turns", "drawing", "files", "proofs", "sums")


def cheat(*rules: str, outcome: Outcome = HARD, within: int = 1) -> Callable[[Make], Make]:
    """Enters a function into the catalogue under its own name; its docstring says what is done."""

    def enter(make: Make) -> Make:
        add(make, make.__name__, (make.__doc__ or "").strip(), *rules, outcome=outcome, within=within)
        return make

    return enter


def add(
    make: Make,
    name: str,
    what: str,
    *rules: str,
    outcome: Outcome = HARD,
    within: int = 1,
    age: Age | None = None,
) -> None:
    """Enters a cheat that is made of parameters, under a name in plain words."""
    kind, shown = make.__module__.rsplit(".", 1)[1], name.replace("_", " ")
    if shown in _FOUND:
        raise ValueError(f"two cheats are called {shown}")
    _FOUND[shown] = Cheat(shown, kind, rules, outcome, make, " ".join(what.split()), within, age)


def catalogue() -> list[Cheat]:
    """All cheats, by kind."""
    for kind in _KINDS:
        importlib.import_module(f"cheats.{kind}")
    return sorted(_FOUND.values(), key=lambda found: _KINDS.index(found.kind))
