"""Comparing a measured value with the run spec's two limits, which speak only for devices that were measured."""

from __future__ import annotations

from dataclasses import replace

from node.judging.candidate import Candidate
from protocol.runspec import Limit
from protocol.verdict import Finding, Outcome


def judge(rule: str, row: int, measured: float, limit: Limit, detail: str) -> Finding | None:
    """None up to `limit.soft`; soft up to `limit.hard`; hard above it, and for NaN of the claim. `row` is the sample's."""
    if measured <= float(limit.soft):
        return None
    hard = not measured <= float(limit.hard)
    threshold = limit.hard if hard else limit.soft
    return Finding(
        rule, Outcome.HARD if hard else Outcome.SOFT, f"{measured:.6g}", threshold, f"row {row}, {detail}", 1 << row
    )


def worst(findings: list[Finding | None]) -> Finding | None:
    """The gravest finding, the first among equals, for the samples of all that are as grave."""
    real = [finding for finding in findings if finding is not None]
    first = max(real, key=lambda finding: finding.outcome, default=None)
    if first is None:
        return None
    samples = 0
    for finding in real:
        if finding.outcome == first.outcome:
            samples |= finding.samples
    return replace(first, samples=samples)


def capped(c: Candidate, finding: Finding | None) -> Finding | None:
    """No worse than soft where the calibration does not cover the seat's hardware class: nobody knows how far its honest
    work strays."""
    if finding is None or finding.outcome is not Outcome.HARD or c.calibrated:
        return finding
    uncovered = f"hardware class {c.commitment.hardware} is not calibrated"
    return replace(finding, outcome=Outcome.SOFT, detail=f"{finding.detail}; {uncovered}")
