"""The rules of verification, one module each; protocol/verdict.py names them, in the order they are checked.

A rule is a function `check(candidate) -> Finding | None`: None passes. A rule that cannot run (a missing version of the
weights, a dead sandbox, NaN in the validator's own prefill) raises, and then there is no verdict at all; only that an
earlier rule finds something is a verdict whether or not the later ones could run.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from node.judging.candidate import Candidate, Examine
from protocol import verdict
from protocol.verdict import Finding

Rule = Callable[[Candidate], Finding | None]
InexactRule = Callable[[Candidate, Examine], Finding | None]

RULES: dict[str, Rule] = {name: import_module(f"{__name__}.{name}").check for name in verdict.RULES}

INEXACT: dict[str, InexactRule] = {
    name: import_module(f"{__name__}.{name}").check_inexact for name in ("conversation", "reward")
}
"""The same two rules for rows of environments that are not exact, asked after all others: they find nothing worse than soft, which decides
nothing before `computation` and `sampling` were asked, and they run strangers' programs."""

CHEAP = tuple(name for name in RULES if name not in verdict.NEEDS_MODEL)
"""Rules that need no model."""

HIDES = frozenset({"conversation", "reward", "computation", "sampling"})
"""Rules whose soft findings a cheat can bring about: they decide only where no later rule finds something hard."""

EARLY = tuple(name for name in CHEAP if name not in HIDES)
"""Rules that decide whatever the later ones would find."""
