"""Scoring a submission's answers where the verifiers end or stall: what their author answers for, and what the validator's machine does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from node.judging.rules import reward
from protocol.environments.programs import Range
from protocol.errors import DeadlineExceeded, Interrupted, Unavailable
from protocol.verdict import Finding, Outcome

ROWS = 8
SCORES = [Range(1.0, 1.0)] * ROWS
Fault = Callable[[tuple[int, ...], int], None]
"""Raises what befalls a request of these rows that is made for the so manieth time."""


class Verifiers:
    """A sandbox of which a test says what befalls it."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.warmed = 0

    def warm_up(self) -> None:
        self.warmed += 1

    def bounds(self, answers: Sequence[tuple[int, str]], claims: Sequence[float], tolerance: float) -> list[Range]:
        rows = tuple(problem for problem, _ in answers)
        self.asked[rows] += 1
        self._fault(rows, self.asked[rows])
        return SCORES[: len(rows)]


def scored(fault: Fault) -> tuple[list[Range] | Finding, Verifiers]:
    """What comes of answers of which row i is one to problem i."""
    verifiers = Verifiers(fault)
    samples = [
        SimpleNamespace(problem=row, task_reward=1.0, completion=[], conversation=SimpleNamespace(split=lambda c: [SimpleNamespace(tolist=list)]))
        for row in range(ROWS)
    ]  # fmt: skip
    candidate: Any = SimpleNamespace(
        context=SimpleNamespace(sandbox=verifiers), samples=samples, tokenizer=SimpleNamespace(answer=lambda tokens: "an answer"),
        spec=SimpleNamespace(verification=SimpleNamespace(reward_tolerance="0.000001")),
    )  # fmt: skip
    return reward._Scorer(candidate).score(range(ROWS)), verifiers


def test_honest_answers_that_take_long_are_scored_one_by_one_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a minute each, which an environment may allow: one death of the child must not make them soft."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(rows: tuple[int, ...], time: int) -> None:
        now[0] += 30.0 * len(rows)
        if len(rows) > 1:
            raise DeadlineExceeded("the sandbox failed: no answer within 30 s")

    found, _ = scored(slow)
    assert found == SCORES


def test_what_ends_the_child_from_outside_is_asked_again_together() -> None:
    def killed_once(rows: tuple[int, ...], time: int) -> None:
        if time == 1:
            raise Interrupted("SIGKILL ended the sandbox from outside")

    found, verifiers = scored(killed_once)
    assert found == SCORES
    assert verifiers.asked == {tuple(range(ROWS)): 2}
    assert verifiers.warmed == 1


def test_a_machine_that_ends_every_child_gives_no_verdict() -> None:
    def killed(rows: tuple[int, ...], time: int) -> None:
        raise Interrupted("SIGKILL ended the sandbox from outside")

    with pytest.raises(Interrupted):
        scored(killed)


def test_a_row_that_the_machine_breaks_off_is_blamed_for_nothing_of_it() -> None:
    """Broken once by itself and interrupted twice: that is not broken twice."""

    def fault(rows: tuple[int, ...], time: int) -> None:
        if len(rows) > 1:
            raise DeadlineExceeded("the sandbox failed: it ended")
        if rows == (3,):
            raise DeadlineExceeded("the sandbox failed: it ended") if time == 1 else Interrupted("SIGKILL")

    with pytest.raises(Interrupted):
        scored(fault)


def test_a_row_that_ends_two_children_by_itself_is_soft_and_is_named_alone() -> None:
    def fault(rows: tuple[int, ...], time: int) -> None:
        if 3 in rows:
            raise DeadlineExceeded("the sandbox failed: it ended")

    found, verifiers = scored(fault)
    assert isinstance(found, Finding)
    assert (found.rule, found.outcome, found.samples) == ("reward", Outcome.SOFT, 1 << 3)
    assert verifiers.asked == {tuple(range(ROWS)): 1, (0,): 1, (1,): 1, (2,): 1, (3,): 2}


def test_a_row_that_fails_once_by_itself_is_scored() -> None:
    """What answers before it have left behind in the child may be why."""

    def fault(rows: tuple[int, ...], time: int) -> None:
        if time == 1 and 3 in rows:
            raise Unavailable("sandbox: needs more memory than it may have")

    found, _ = scored(fault)
    assert found == SCORES
