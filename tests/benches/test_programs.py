"""The bench of programs: each run did what it should, and what it compares with is a bare interpreter's."""

from __future__ import annotations

import sys

import pytest
from benches import programs

from protocol.errors import MurmurationError
from protocol.sandbox.programs import Runner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")


def test_a_bench_of_programs_has_a_row_for_each_promise_and_counts_what_sandboxes_take() -> None:
    rows = {row.name: row for row in programs.rows(runs=4, rounds=1)}
    assert [row.goal for row in rows.values()] == [programs.RUNS_GOAL, programs.MS_GOAL, None]
    trivial = rows["code, a trivial program"]
    assert 1 < trivial.ours < 1000, "a start of Python takes more than a millisecond: its time is counted"
    assert trivial.peer and 1 < trivial.peer < 1000
    several = rows["code, 8 tests of a program"]
    assert several.ours > trivial.ours, "tests of one program share a sandbox"


def test_a_program_that_did_not_run_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "run", lambda self, trial: [])
    with pytest.raises(MurmurationError, match="did not print"):
        programs.rows(runs=1, rounds=1)
