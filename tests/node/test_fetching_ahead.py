"""A role looks for the version that the trainer is writing for as long as it runs, whatever comes of a look."""

from __future__ import annotations

import threading
from typing import Any

from node.versions import fetching_ahead
from protocol.errors import LockHeld, PreflightError
from tests.clock import eventually


class Looks:
    """Versions of which every look comes to what is next in `outcomes`; then nothing is found."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.steps: list[int] = []

    def fetch_ahead(self, step: int) -> bool:
        self.steps.append(step)
        outcome = self.outcomes.pop(0) if self.outcomes else False
        if isinstance(outcome, Exception):
            raise outcome
        return bool(outcome)


def test_a_look_that_fails_is_followed_by_others() -> None:
    versions = Looks(PreflightError("the disk is full"), LockHeld("it is being fetched"), True)
    with fetching_ahead(versions, lambda: 7, threading.Event(), 0.001):  # type: ignore[arg-type]
        eventually(lambda: len(versions.steps) > 4, what="it looks on")
    assert set(versions.steps) == {7}


def test_nothing_is_looked_for_while_a_version_on_chain_goes_first() -> None:
    versions, asked = Looks(), threading.Event()

    def following() -> int | None:
        first = not asked.is_set()
        asked.set()
        return None if first else 8

    with fetching_ahead(versions, following, threading.Event(), 0.001):  # type: ignore[arg-type]
        eventually(lambda: versions.steps, what="it looks for the next one")
    assert set(versions.steps) == {8}


def test_a_role_that_stops_looks_no_more() -> None:
    versions, stop = Looks(), threading.Event()
    stop.set()
    with fetching_ahead(versions, lambda: 7, stop, 0.001):  # type: ignore[arg-type]
        eventually(
            lambda: not any(thread.name == "ahead" for thread in threading.enumerate()), what="the thread has ended"
        )
    assert not versions.steps
