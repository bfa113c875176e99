"""Submissions that a validator may still have to judge, in the order in which that is due, each with the time of its next attempt.

Looking for the next one costs the same however many there are: those that may be tried lie on one heap, by urgency; those
that wait for a file, for weights or for somebody silent on another, by the time at which they may be tried. What stands on a
heap and no longer holds is passed over when it comes up.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.chain.view import Submission
from protocol.clock import SYSTEM, Clock

_SPARE = 64  # entries of a heap that may be outdated before it is worth clearing up


@dataclass
class JudgementTask:
    """A submission that is not judged yet. Times are of the monotonic clock unless said otherwise."""

    submission: Submission
    committed_at: int
    """Block time."""
    seen_at: float
    not_before: float = 0.0
    failures: int = 0
    asked: bool = False
    """Somebody waits for an opinion."""
    is_doubtful: bool = False
    """Found false, going by what one endpoint alone told of its commitment."""
    unexamined: tuple[tuple[int, ...], ...] = ()
    """Rows whose programs took long and whose prefill could not be had: the next attempt begins with them, before it runs programs again."""
    ticket: int = 0
    """Of its present place on the heaps."""

    @property
    def id(self) -> bytes:
        return self.submission.id

    @property
    def step(self) -> int:
        return self.submission.step

    @property
    def urgency(self) -> tuple[bool, int, int]:
        """What somebody has asked about goes first, for a hard finding becomes soft where no opinion comes in time. The others
        follow in the order in which their windows end, or after an outage they would vest while later ones are judged."""
        return not self.asked, self.committed_at, self.step


class Queue:
    """Not safe to share between threads."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._tasks: dict[bytes, JudgementTask] = {}
        self._steps: Counter[int] = Counter()
        self._tickets = 0
        self._ready: list[tuple[tuple[bool, int, int], int, bytes]] = []
        self._asleep: list[tuple[float, int, bytes]] = []
        self._ages: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, submission_id: object) -> bool:
        return submission_id in self._tasks

    def __iter__(self) -> Iterator[JudgementTask]:
        return iter(list(self._tasks.values()))

    def get(self, submission_id: bytes) -> JudgementTask | None:
        return self._tasks.get(submission_id)

    @property
    def steps(self) -> set[int]:
        """Steps of all that is here."""
        return set(self._steps)

    def put(self, task: JudgementTask, at: float | None) -> None:
        """Takes a submission in, or gives one that is here another time: it may be tried from `at` on; None: not before it is
        put again."""
        if task.id not in self._tasks:
            self._tasks[task.id] = task
            self._steps[task.step] += 1
            heapq.heappush(self._ages, (task.committed_at, task.id))
        self._tickets += 1
        task.ticket = self._tickets
        if at is not None:
            heapq.heappush(self._asleep, (at, task.ticket, task.id))
        self._clear_up()

    def remove(self, submission_id: bytes) -> JudgementTask | None:
        task = self._tasks.pop(submission_id, None)
        if task is not None:
            self._steps[task.step] -= 1
            if not self._steps[task.step]:
                del self._steps[task.step]
        return task

    def expire(self, until: int) -> Iterator[JudgementTask]:
        """Removes what was committed to at this block time or before."""
        while self._ages and self._ages[0][0] <= until:
            _, submission_id = heapq.heappop(self._ages)
            task = self.remove(submission_id)
            if task is not None:
                yield task

    def next(self) -> JudgementTask | None:
        """Takes the most urgent of those that may be tried now off the heaps: put it again, or remove it. None: there is none."""
        now = self._clock.monotonic()
        while self._asleep and self._asleep[0][0] <= now:
            _, ticket, submission_id = heapq.heappop(self._asleep)
            if self._holds(submission_id, ticket):
                heapq.heappush(self._ready, (self._tasks[submission_id].urgency, ticket, submission_id))
        while self._ready:
            _, ticket, submission_id = heapq.heappop(self._ready)
            if self._holds(submission_id, ticket):
                return self._tasks[submission_id]
        return None

    def _holds(self, submission_id: bytes, ticket: int) -> bool:
        task = self._tasks.get(submission_id)
        return task is not None and task.ticket == ticket

    def _clear_up(self) -> None:
        """Drops outdated entries where they are the greater part."""
        most = 2 * len(self._tasks) + _SPARE
        if len(self._ready) > most:
            self._ready = [entry for entry in self._ready if self._holds(entry[2], entry[1])]
            heapq.heapify(self._ready)
        if len(self._asleep) > most:
            self._asleep = [entry for entry in self._asleep if self._holds(entry[2], entry[1])]
            heapq.heapify(self._asleep)
        if len(self._ages) > most:
            self._ages = [(task.committed_at, submission_id) for submission_id, task in self._tasks.items()]
            heapq.heapify(self._ages)
