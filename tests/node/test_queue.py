"""The order in which submissions are judged, and that a queue keeps nothing of what has left it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from node.validator.queue import JudgementTask, Queue
from tests.clock import VirtualClock


def task(number: int, *, committed_at: int = 0, step: int = 0, asked: bool = False) -> JudgementTask:
    submission: Any = SimpleNamespace(id=number.to_bytes(32, "big"), step=step)
    return JudgementTask(submission, committed_at, seen_at=0.0, asked=asked)


def drained(queue: Queue) -> list[int]:
    found = []
    while (one := queue.next()) is not None:
        found.append(int.from_bytes(one.id, "big"))
        queue.remove(one.id)
    return found


def test_requests_go_first_and_the_others_by_the_end_of_their_windows() -> None:
    queue = Queue()
    for one in (
        task(1, committed_at=9), task(2, committed_at=5, step=8), task(3, committed_at=5, step=7), task(4, committed_at=11, asked=True),
    ):  # fmt: skip
        queue.put(one, 0.0)
    assert drained(queue) == [4, 3, 2, 1]


def test_what_is_put_off_comes_when_its_time_has_come_and_once() -> None:
    clock = VirtualClock()
    queue, began = Queue(clock), clock.monotonic()
    early, late = task(1, committed_at=1), task(2, committed_at=2)
    queue.put(early, 0.0)
    queue.put(late, began + 5)
    assert queue.next() is early
    queue.put(early, began + 10)
    assert queue.next() is None
    clock.advance(20)
    assert [queue.next(), queue.next(), queue.next()] == [early, late, None]


def test_put_again_it_has_the_new_time_only() -> None:
    queue = Queue()
    one = task(1)
    queue.put(one, 0.0)
    queue.put(one, None)
    assert queue.next() is None
    queue.put(one, 0.0)
    assert [queue.next(), queue.next()] == [one, None]


def test_what_expires_is_given_out_once_and_its_step_is_no_more_there() -> None:
    queue = Queue()
    for number in range(4):
        queue.put(task(number, committed_at=number, step=number // 2), 0.0)
    queue.remove(task(1).id)
    assert queue.steps == {0, 1}
    assert [one.committed_at for one in queue.expire(2)] == [0, 2]
    assert queue.steps == {1}
    assert list(queue.expire(2)) == []
    assert len(queue) == 1


def test_its_memory_follows_what_is_in_it() -> None:
    queue = Queue()
    kept = task(0, committed_at=1)
    queue.put(kept, 0.0)
    for number in range(1, 5_000):
        one = task(number, committed_at=2)
        queue.put(one, 1e12)
        queue.put(kept, 0.0)
        queue.next()
        queue.remove(one.id)
    assert len(queue._ages) + len(queue._asleep) + len(queue._ready) < 300
