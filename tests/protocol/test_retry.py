"""What failed is left alone for as long as was said, and no memory of it grows for ever."""

from __future__ import annotations

import pytest

from protocol.errors import Unavailable
from protocol.retry import Backoff, retry
from tests.clock import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_success(clock: VirtualClock) -> None:
    backoff = Backoff(1.0, 5.0, clock=clock)
    assert [backoff.failed() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.succeeded()
    assert backoff.failed() == 1


def test_pauses_are_all_alike_where_no_longest_is_given(clock: VirtualClock) -> None:
    backoff = Backoff(3.0, clock=clock)
    assert [backoff.failed("a") for _ in range(3)] == [3, 3, 3]


def test_a_thing_is_left_alone_until_its_own_pause_is_over(clock: VirtualClock) -> None:
    backoff = Backoff(2.0, 60.0, clock=clock)
    backoff.failed("a")
    assert ("a" in backoff, "b" in backoff) == (True, False)
    clock.advance(1.5)
    assert backoff.left("a") == 0.5
    clock.advance(0.5)
    assert "a" not in backoff
    assert backoff.failed("a") == 4, "still failing, however late it was tried again"


def test_what_is_held_has_not_failed(clock: VirtualClock) -> None:
    backoff = Backoff(2.0, 60.0, clock=clock)
    backoff.hold("a", 100.0)
    assert backoff.left("a") == 100
    clock.advance(100)
    assert backoff.failed("a") == 2


def test_many_who_failed_together_do_not_return_together(clock: VirtualClock) -> None:
    pauses = [Backoff(10.0, 60.0, jitter=True, clock=clock).failed() for _ in range(200)]
    assert all(5 <= pause <= 15 for pause in pauses)
    assert max(pauses) - min(pauses) > 5


def test_a_million_failures_in_a_row_overflow_nothing(clock: VirtualClock) -> None:
    backoff = Backoff(1.0, 60.0, clock=clock)
    for _ in range(2000):
        pause = backoff.failed()
    assert pause == 60


def test_what_failed_long_ago_is_forgotten(clock: VirtualClock) -> None:
    backoff = Backoff(1.0, 10.0, clock=clock)
    for number in range(20_000):
        backoff.failed(number)
        clock.advance(1.0)
    assert len(backoff._pauses) < 2000
    assert 19_999 in backoff._pauses


def test_an_action_is_repeated_until_it_works(clock: VirtualClock) -> None:
    failures = [Unavailable("first"), Unavailable("second")]
    seen: list[Exception] = []

    def action() -> str:
        if failures:
            raise failures.pop(0)
        return "done"

    assert retry(action, on=Unavailable, within=60, pause=1.5, failed=seen.append, clock=clock) == "done"
    assert clock.waits == [1.5, 1.5]
    assert [str(error) for error in seen] == ["first", "second"]


def test_an_action_that_never_works_raises_its_last_error_when_the_time_is_up(clock: VirtualClock) -> None:
    attempts: list[int] = []

    def action() -> None:
        attempts.append(1)
        raise Unavailable(f"attempt {len(attempts)}")

    with pytest.raises(Unavailable, match="attempt 12"):
        retry(action, on=Unavailable, within=10, pause=1, clock=clock)
    assert sum(clock.waits) == 11


def test_an_error_that_will_not_pass_is_raised_at_once(clock: VirtualClock) -> None:
    def action() -> None:
        raise Unavailable("for good")

    with pytest.raises(Unavailable, match="for good"):
        retry(action, on=Unavailable, unless=lambda error: "for good" in str(error), within=10, pause=1, clock=clock)
    assert clock.waits == []


def test_other_errors_are_not_retried(clock: VirtualClock) -> None:
    def action() -> None:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        retry(action, on=Unavailable, within=10, pause=1, clock=clock)
    assert clock.waits == []
