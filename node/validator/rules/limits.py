"""Comparing a measured value with the run spec's two limits."""

from __future__ import annotations

from protocol.runspec import Limit
from protocol.verdict import Finding, Outcome


def judge(rule: str, measured: float, limit: Limit, detail: str) -> Finding | None:
    """None up to `limit.soft`; soft up to `limit.hard`; hard above it, and for NaN of the claim."""
    if measured <= float(limit.soft):
        return None
    hard = not measured <= float(limit.hard)
    threshold = limit.hard if hard else limit.soft
    return Finding(rule, Outcome.HARD if hard else Outcome.SOFT, f"{measured:.6g}", threshold, detail)


def worst(findings: list[Finding | None]) -> Finding | None:
    """The gravest finding, the first among equals."""
    real = [finding for finding in findings if finding is not None]
    return max(real, key=lambda finding: finding.outcome, default=None)
