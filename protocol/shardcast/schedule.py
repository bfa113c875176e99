"""Which chunk is asked of which source, and what becomes of it when the source fails.

Chunks are numbered in the order of the manifest. A worker takes a task: a run of neighbouring chunks of one file and a
source, drawn with probability ∝ success rate × bandwidth. What a failed task has not brought goes back and is taken by
another, most likely from another source.

A task that does not move for much longer than others take lags. It no longer counts as one of the streams, its source is
not asked for more meanwhile, and when nothing else is left to hand out its last chunks are asked a second time of a
different source: neither a hanging source nor a slow one can hold up the rest.

It opens no connection and reads no bytes; all of it is arithmetic under one lock.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Condition

from protocol import metrics
from protocol.errors import DeadlineExceeded, HashMismatch, ProtocolViolation, Unavailable
from protocol.shardcast.source import Source, Standing, weights

_TASK_SECONDS = 2.0  # a task is as long as its source takes for this time: long enough to hide the round trip
_TASK_CHUNKS = 16  # and never longer than this
_LAG_SECONDS = 1.0  # a task lags when it has not moved for this time
_LAG_CHUNKS = 3.0  # and for as long as the best source takes for this many chunks
_NAP_SECONDS = 1.0  # the longest a worker waits before it looks again
_BYTES = metrics.counter(
    "murmur_weights_fetched_bytes_total", "Verified bytes of weights, by source: relay, origin.", "source"
)
_FAILED = metrics.counter(
    "murmur_weights_broken_requests_total", "Requests to sources that broke off: failed, lied.", "reason"
)
_NAMED = 4  # missing chunks that an error names


@dataclass
class Statistics:
    """What a client's fetches have come to so far. `failovers` counts tasks that broke off and went back."""

    bytes_from: Counter[str] = field(default_factory=Counter)
    bad_chunks: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    failovers: int = 0
    resumed_chunks: int = 0


@dataclass(eq=False)
class FetchTask:
    """Chunks to be asked of one source in one request. `moved` is when it last made progress."""

    source: Source
    chunks: Sequence[int]
    moved: float
    done: int = 0


class Schedule:
    """The state of one fetch of chunks with the given `sizes`; `files` tells which file each belongs to.

    `standings` outlive the fetch and are changed by it. `banned` names the sources that are not asked for this version,
    and grows by every one that commits a violation. At most `streams` tasks run at once, besides those that lag.
    `describe` names a chunk in errors.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        files: Sequence[int],
        sources: Iterable[Source],
        standings: dict[str, Standing],
        banned: set[str],
        statistics: Statistics,
        *,
        streams: int,
        describe: Callable[[int], str],
        present: Iterable[int] = (),
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sizes, self._files, self._streams = sizes, files, streams
        self._sources: dict[str, Source] = {}
        for source in sources:
            self._sources.setdefault(source.name, source)
        self._standings, self._banned, self._statistics = standings, banned, statistics
        self._describe, self._rng, self._clock = describe, rng or random.Random(), clock
        self._have = bytearray(len(sizes))
        for chunk in present:
            self._have[chunk] = 1
        self.bytes_present = sum(size for size, have in zip(sizes, self._have, strict=True) if have)
        self._waiting = [chunk for chunk, have in enumerate(self._have) if not have]  # ascending, hence a heap
        self._running: list[FetchTask] = []
        self._error: BaseException | None = None
        self._is_over = False
        self._changed = Condition()

    # ---- the thread that waits for the result

    def wait_for(self, chunk: int, deadline: float) -> None:
        """Returns when the chunk is there. Raises DeadlineExceeded; Unavailable once no source is left to ask; and
        whatever a worker gave to `abort`."""
        with self._changed:
            while self._error is None and not self._have[chunk]:
                if not self._usable():
                    raise Unavailable(f"no source is left: {self._account()}")
                left = deadline - self._clock()
                if left <= 0:
                    raise DeadlineExceeded(f"not fetched in time: {self._account()}")
                self._changed.wait(left)
            if self._error is not None:
                raise self._error

    def stop(self) -> None:
        """No more tasks; workers that ask for one get None."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    # ---- the workers

    def take(self) -> FetchTask | None:
        """The next task, as soon as there is one; None when the fetch is over."""
        with self._changed:
            while not self._is_over:
                task = self.offer()
                if task is not None:
                    return task
                self._changed.wait(self._time_to_next(self._clock()))
            return None

    def offer(self) -> FetchTask | None:
        """The next task if there is one at this moment."""
        with self._changed:
            task = self._next_task(self._clock())
            if task is not None:
                self._running.append(task)
            return task

    def is_wanted(self, task: FetchTask) -> bool:
        """Whether it is worth reading on: something of the task is missing and its source has not been caught lying."""
        with self._changed:
            missing = any(not self._have[chunk] for chunk in task.chunks[task.done :])
            return missing and not self._is_over and task.source.name not in self._banned

    def arrived(self, task: FetchTask, seconds: float) -> None:
        """The task's next chunk is verified and written, `seconds` after the one before."""
        with self._changed:
            chunk = task.chunks[task.done]
            task.done += 1
            task.moved = self._clock()
            size, name = self._sizes[chunk], task.source.name
            if size:  # a manifest's is 0: too small to measure a bandwidth by
                self._standings[name].delivered(size, seconds)
            if size and not self._have[chunk]:
                self.bytes_present += size
                self._statistics.bytes_from[name] += size
                _BYTES.add(size, source="relay" if task.source.is_relay else "origin")
            self._have[chunk] = 1
            self._changed.notify_all()

    def finished(self, task: FetchTask) -> None:
        """The task is at its end, or no longer wanted."""
        with self._changed:
            if not self._is_over:
                self._standings[task.source.name].succeeded(self._clock())
            self._give_back(task)

    def failed(self, task: FetchTask, error: Exception) -> None:
        """The source failed without being at fault; it rests for a while. After the end nothing counts any more."""
        with self._changed:
            if not self._is_over:
                self._standings[task.source.name].failed(str(error) or type(error).__name__, self._clock())
                self._statistics.failovers += 1
                _FAILED.add(reason="failed")
            self._give_back(task)

    def violated(self, task: FetchTask, violation: ProtocolViolation) -> None:
        """The source lied or broke the rules: it is not asked again for this version."""
        with self._changed:
            if self._is_over:
                return
            name = task.source.name
            self._banned.add(name)
            self._statistics.violations[name] += 1
            _FAILED.add(reason="lied")
            if isinstance(violation, HashMismatch) and self._sizes[task.chunks[task.done]]:
                self._statistics.bad_chunks[name] += 1
            self._statistics.failovers += 1
            self._standings[name].failed(f"{type(violation).__name__}, {violation}", self._clock())
            self._give_back(task)

    def abort(self, error: BaseException) -> None:
        """Something that no other source can mend, such as a full disk: it is raised where the result is awaited."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # ---- under the lock

    def _usable(self) -> list[Source]:
        return [source for name, source in self._sources.items() if name not in self._banned]

    def _ready(self, now: float) -> list[Source]:
        lagging = {task.source.name for task in self._running if self._lags_from(task) <= now}
        return [
            source
            for source in self._usable()
            if source.name not in lagging and self._standings[source.name].rests_until <= now
        ]

    def _next_task(self, now: float) -> FetchTask | None:
        if sum(self._lags_from(task) > now for task in self._running) >= self._streams:
            return None
        while self._waiting and self._have[self._waiting[0]]:
            heapq.heappop(self._waiting)  # a second source brought it in the meantime
        ready = self._ready(now)
        if not ready:
            return None
        if not self._waiting:
            return self._second_task(ready, now)
        source = self._draw(ready, now)
        return FetchTask(source, self._take_run(source), now)

    def _draw(self, sources: list[Source], now: float) -> Source:
        return self._rng.choices(sources, weights(sources, self._standings, now))[0]

    def _take_run(self, source: Source) -> list[int]:
        """Neighbouring chunks of one file, as many as suit the source and leave work for everybody."""
        chunks = [heapq.heappop(self._waiting)]
        bandwidth = self._standings[source.name].bandwidth or 0.0
        fair = -(-len(self._waiting) // (2 * self._streams))
        most = min(_TASK_CHUNKS, fair, int(bandwidth * _TASK_SECONDS / max(1, self._sizes[chunks[0]])))
        while len(chunks) < most and self._waiting and self._follows(chunks[-1], self._waiting[0]):
            chunks.append(heapq.heappop(self._waiting))
        return chunks

    def _follows(self, chunk: int, other: int) -> bool:
        return other == chunk + 1 and self._files[other] == self._files[chunk] and not self._have[other]

    def _second_task(self, ready: list[Source], now: float) -> FetchTask | None:
        """The last chunk that a lagging task still owes, to be asked of a source that is not lagging."""
        for laggard in sorted(self._running, key=lambda task: task.moved):
            owed = [chunk for chunk in laggard.chunks[laggard.done :] if self._is_asked_once(chunk)]
            if owed and self._lags_from(laggard) <= now:
                return FetchTask(self._draw(ready, now), [owed[-1]], now)
        return None

    def _is_asked_once(self, chunk: int) -> bool:
        return not self._have[chunk] and sum(chunk in task.chunks[task.done :] for task in self._running) == 1

    def _lags_from(self, task: FetchTask) -> float:
        """The moment from which a task that has not moved lags behind the best; never, if there is nobody else to ask."""
        usable = self._usable()
        if all(source.name == task.source.name for source in usable):
            return float("inf")
        best = max(self._standings[source.name].bandwidth or 0.0 for source in usable)
        usual = max(self._sizes[chunk] for chunk in task.chunks) / best if best else 0.0
        return task.moved + max(_LAG_SECONDS, _LAG_CHUNKS * usual)

    def _time_to_next(self, now: float) -> float:
        """Seconds until time alone may make a task possible."""
        moments = [self._standings[source.name].rests_until for source in self._usable()]
        moments += [self._lags_from(task) for task in self._running]
        return min([moment - now for moment in moments if moment > now] + [_NAP_SECONDS])

    def _give_back(self, task: FetchTask) -> None:
        self._running.remove(task)
        for chunk in task.chunks[task.done :]:
            if not self._have[chunk] and not any(chunk in other.chunks[other.done :] for other in self._running):
                heapq.heappush(self._waiting, chunk)
        self._changed.notify_all()

    def _account(self) -> str:
        """What is missing, and why each source did not bring it."""
        missing = [chunk for chunk, have in enumerate(self._have) if not have]
        named = ", ".join(self._describe(chunk) for chunk in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        reasons = "; ".join(f"{name}: {self._standings[name].last_failure}" for name in self._sources)
        return f"{len(missing)} of {len(self._have)} missing ({named}{more}). {reasons or 'No source was given'}"
