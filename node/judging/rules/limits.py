"""Comparing a measured value with the run spec's two limits, which speak only for devices that were measured."""

from __future__ import annotations

from dataclasses import replace

from protocol.runspec import Limit
from protocol.verdict import Finding, Outcome


def judge(rule: str, row: int, measured: float, limit: Limit, detail: str) -> Finding | None:
    """None up to `limit.soft`; soft up to `limit.hard`; hard above it, and for NaN of the claim. `row` is the sample's."""
    soft, most = float(limit.soft), float(limit.hard)
    if measured <= soft:
        return None
    hard, near = not measured <= most, not measured <= (soft + most) / 2
    threshold = limit.hard if hard else limit.soft
    return Finding(
        rule,
        Outcome.HARD if hard else Outcome.SOFT,
        f"{measured:.6g}",
        threshold,
        f"row {row}, {detail}",
        1 << row,
        near << row,
    )


def worst(findings: list[Finding | None]) -> Finding | None:
    """The gravest finding, the first among equals, for the samples of all that are as grave."""
    real = [finding for finding in findings if finding is not None]
    first = max(real, key=lambda finding: finding.outcome, default=None)
    if first is None:
        return None
    samples = near = 0
    for finding in real:
        near |= finding.near
        if finding.outcome == first.outcome:
            samples |= finding.samples
    return replace(first, samples=samples, near=near)
