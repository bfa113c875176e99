"""tests/gpu, in this process: how many passed, and what the others said. On a CPU they are collected, and each says why it is skipped.

Without the contract of the vLLM engine, whose starts alone take longer than all else: `scripts/test gpu` has it, and the section `vllm` checks
that its work is honest. Nothing of the other tests is needed, neither their fixtures nor what those import: a machine that has a GPU may have little else.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from benches import Row

from gpu import NotRun, Place, Record
from gpu.supervision import ROOT


class _Results:
    """A pytest plugin that reports each test as it ends."""

    def __init__(self, report: Record) -> None:
        self._report = report
        self.counts: Counter[str] = Counter()
        self._failures: dict[str, str] = {}
        self._skips: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.removeprefix("tests/gpu/")
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
            self._seconds[name] = round(report.duration, 2)
        if report.outcome == "failed":
            self._failures[name] = f"{report.when}: {_last(report.longreprtext)}"
        if report.outcome == "skipped":
            self._skips[report.longrepr[2].removeprefix("Skipped: ")] += 1
        self._report.fact(outcomes=dict(self.counts), failures=self._failures, skips=dict(self._skips))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.counts["failed"] += 1
            self._failures[report.nodeid] = f"collection: {_last(report.longreprtext)}"
            self._report.fact(outcomes=dict(self.counts), failures=self._failures)

    @property
    def slowest(self) -> dict[str, float]:
        return dict(sorted(self._seconds.items(), key=lambda of: -of[1])[:5])


def run(at: Place, report: Record) -> None:
    try:
        import pytest
    except ImportError as error:
        raise NotRun("pytest is not installed") from error
    results = _Results(report)
    folder = ROOT / "tests/gpu"
    how = [
        "-q",
        "-m",
        "not vllm",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(ROOT),
        "--confcutdir",
        str(folder),
    ]
    code = pytest.main([str(folder), *how], plugins=[results])
    report.fact(slowest=results.slowest)
    for outcome in ("passed", "failed", "skipped"):
        report.row(Row(f"tests {outcome}", "tests", results.counts[outcome], None, None, None))
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not results.counts["failed"]:
        raise RuntimeError(f"pytest ended with {code!r} and named no failed test")
    if results.counts["failed"]:
        raise AssertionError(f"{results.counts['failed']} of tests/gpu failed: they are named under failures")


def _last(text: str) -> str:
    """The line that says what was wrong."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("E ")] or text.strip().splitlines()[-1:]
    return (lines[0] if lines else "")[:300]
