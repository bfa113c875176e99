"""The rules of verification, one module each, in the order they are checked (protocol/verdict.py names them).

A rule is a function `check(candidate) -> Finding | None`: None passes. A rule that cannot run (a missing version of the
weights, a dead sandbox, NaN in the validator's own prefill) raises, and then there is no verdict at all; only that an
earlier rule finds something is a verdict whether or not the later ones could run.
"""

from __future__ import annotations

from collections.abc import Callable

from node.judging.candidate import Candidate
from node.judging.rules import (
    assignment,
    available,
    computation,
    duplicate,
    identity,
    reward,
    sampling,
    schema,
    termination,
    tokens,
)
from protocol.verdict import Finding

Rule = Callable[[Candidate], Finding | None]

RULES: dict[str, Rule] = {
    "available": available.check,
    "schema": schema.check,
    "identity": identity.check,
    "duplicate": duplicate.check,
    "assignment": assignment.check,
    "tokens": tokens.check,
    "termination": termination.check,
    "reward": reward.check,
    "computation": computation.check,
    "sampling": sampling.check,
}

CHEAP = tuple(name for name in RULES if name not in ("computation", "sampling"))
"""Rules that need no model."""
