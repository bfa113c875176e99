"""Which chunk is asked of which source, and what becomes of it when the source fails.

Chunks are numbered in the order of the manifest. A worker takes a task: a run of neighbouring chunks of one file and a
source, drawn with probability ∝ success rate × bandwidth, less where it has tasks already. What a failed task has not brought goes back and is taken by
another, most likely from another source.

Relays tell which chunks they hold and which are on their way (`heard`). While some of them lack any, a task is one chunk,
of those that the source holds the one that fewest relays have or will have: so the relays together soon have all. Whoever
relays itself takes from the origin first. Everybody else leaves the origin alone for as long as a relay is alive: it makes
progress or has everything, or it was only just asked and may be about to begin; and the relays together bring enough (feed.py).

A task that does not move for much longer than others take lags. It no longer counts as one of the streams, its source is
not asked for more meanwhile, and when nothing else is left to hand out its last chunks are asked once more of a different
source. Of more laggards than `streams` those that have stood still for longest are cut: neither a hanging source nor a slow
one can hold up the rest, however many there are.

It opens no connection and reads no bytes; all of it is arithmetic under one lock.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Event, RLock

import numpy as np

from protocol import metrics
from protocol.errors import DeadlineExceeded, DiskFailed, HashMismatch, ProtocolViolation, Unavailable
from protocol.shardcast.feed import Feed
from protocol.shardcast.holding import Bits, Holding
from protocol.shardcast.promises import Promises
from protocol.shardcast.source import Source, Standing, weights
from protocol.shardcast.stock import Stock
from protocol.shardcast.task import FetchTask, Statistics

_TASK_SECONDS = 2.0  # a task is as long as its source takes for this time: long enough to hide the round trip
_TASK_CHUNKS = 16  # and never longer than this
_STREAMS_MIN = 2  # to one source of a chain, and more while each of its chunks takes no longer than the next
_CHUNK_SECONDS = 1.0
_LAG_SECONDS = 1.0  # a task lags when it has not moved for this time
_ALIVE_SECONDS = 5.0  # a relay that is fetching may bring nothing new for this time, or for that of so many chunks
_ALIVE_SUCCESS = 0.4  # below this success rate it is not waited for
_LAG_CHUNKS = 3.0  # and for as long as the best source takes for this many chunks
_SOONER = 4.0  # a chunk is asked for again at the end where that is so many times sooner, and saves so long:
_SOONER_SECONDS = 0.2
_NAP_SECONDS = 1.0  # the longest a worker waits before it looks again
_BYTES = metrics.counter(
    "murmur_weights_fetched_bytes_total", "Verified bytes of weights, by source: relay, origin.", "source"
)
_FAILED = metrics.counter(
    "murmur_weights_broken_requests_total", "Requests to sources that broke off: failed, lied.", "reason"
)
_FAILED.from_zero("failed", "lied")
_ADDED_MAX = 8  # relays that become known during one fetch
_NAMED = 4  # missing chunks that an error names


class Schedule:
    """The state of one fetch of chunks with the given `sizes`; `files` tells which file each belongs to.

    `standings` outlive the fetch and are changed by it. `banned` names the sources that are not asked for this version,
    and grows by every one that commits a violation. At most `streams` tasks run at once, besides those that lag.
    `describe` names a chunk in errors. Of the sources named in `watched` it is not known what they hold until that was
    `heard`, and they are waited for `patience` seconds at first; all others hold everything. `relays` says that others
    wait for what is fetched here. Of the chunks only the first `known` can be asked for, if that is given, until the others are
    `reveal`ed. Workers are needed for twice as many tasks.
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
        watched: Iterable[str] = (),
        known: int | None = None,
        patience: float = 0.0,
        relays: bool = False,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sizes, self._files, self._streams = sizes, files, streams
        self._sources: dict[str, Source] = {}
        for source in sources:
            self._sources.setdefault(source.name, source)
        self._standings, self._banned, self._statistics = standings, banned, statistics
        self._describe, self._rng, self._clock = describe, rng or random.Random(), clock
        self._lock = RLock()
        self._workers = Condition(self._lock)  # one is woken, and wakes the next where it found a task
        self._awaited = Condition(self._lock)  # the thread that waits for the result
        self._is_done: Callable[[], bool] = lambda: False  # whether what it waits for is here
        self._over = Event()
        self.stock = Stock(sizes, self._lock, present, known)
        self._relays = relays
        now = self._clock()
        self._feed = Feed(sum(sizes) if known is None else 0, now)  # who fetches ahead has what is written already
        self._patience, self._added = patience, 0
        self._promises = Promises(len(sizes))
        for name in watched:
            self._promises.watch(name, now, patience)
        self._running: list[FetchTask] = []
        self._lacking: set[str] = set()
        self._error: BaseException | None = None

    # ---- the thread that waits for the result

    def wait_for(self, chunk: int, deadline: float) -> None:
        """Returns when the chunk is there. Raises DeadlineExceeded; Unavailable once no source is left to ask; and
        whatever a worker gave to `abort`."""
        self._wait_until(lambda: bool(self.stock.have[chunk]), deadline)

    def wait_for_all(self, deadline: float) -> None:
        """As `wait_for`, for every chunk: nobody is woken for one of them."""
        self._wait_until(lambda: self.stock.is_whole, deadline)

    def _wait_until(self, is_done: Callable[[], bool], deadline: float) -> None:
        with self._lock:
            self._is_done = is_done
            while self._error is None and not is_done():
                if not self._usable():
                    raise Unavailable(f"no source is left: {self._account()}")
                now = self._clock()
                if now >= deadline:
                    raise DeadlineExceeded(f"not fetched in time: {self._account()}")
                self._cut_laggards(now)
                self._awaited.wait(min(deadline - now, self._time_to_next(now)))
            if self._error is not None:
                raise self._error

    def attend(self, seconds: float) -> bool:
        """For who has nothing to wait for but the end: looks after what lags for so long, and says whether it is not over. Raises what
        `wait_for` raises, but for the deadline."""
        with self._lock:
            until = self._clock() + seconds
            self._cut_laggards(self._clock())
            while self._error is None and not self.is_over and (left := until - self._clock()) > 0:
                if not self._usable():
                    raise Unavailable(f"no source is left: {self._account()}")
                self._cut_laggards(self._clock())
                self._awaited.wait(min(left, self._time_to_next(self._clock())))
            if self._error is not None:
                raise self._error
            return not self.is_over

    def reveal(self, chunks: Sequence[int], present: Sequence[int]) -> None:
        """These can be asked for from now on; those `present` need not be."""
        with self._lock:
            self.stock.reveal(chunks, present)
            now = self._clock()
            self._feed.could_not(now)
            self._promises.could_not(now, self._quiet_seconds())
            self._ring()

    def stop(self) -> None:
        """No more tasks; workers that ask for one get None."""
        with self._lock:
            self._over.set()
            self.stock.close()
            self._workers.notify_all()
            self._awaited.notify_all()

    # ---- those who ask the relays

    def heard(self, name: str, holding: Holding) -> None:
        """A watched source says what it has."""
        with self._lock:
            self._promises.heard(name, holding, self._clock(), self._quiet_seconds())
            self._ring()

    def add(self, relay: Source) -> bool:
        """One more relay, of which is not known yet what it holds; False for one that is known, or where enough were added."""
        with self._lock:
            if relay.name in self._sources.keys() | self._banned or relay.url in {
                source.url.rstrip("/") for source in self._sources.values()
            }:
                return False
            if self.is_over or self._added >= _ADDED_MAX:
                return False
            self._added += 1
            self._standings.setdefault(relay.name, Standing())
            self._promises.watch(relay.name, self._clock(), self._patience)
            self._sources[relay.name] = relay
            self._ring()
            return True

    def unheard(self, name: str, reason: str, *, may_come: bool) -> None:
        """A watched source has nothing of the version, or does not answer; whether it may have some soon."""
        with self._lock:
            self._promises.unheard(name, self._clock(), may_come=may_come)
            self._standings[name].last_failure = reason
            self._ring()

    def busy(self, name: str, reason: str) -> None:
        """A watched source has no time to say what it holds."""
        with self._lock:
            self._promises.busy(name, self._clock())
            self._standings[name].last_failure = reason
            self._ring()

    def distrust(self, name: str, violation: ProtocolViolation) -> None:
        """A watched source broke the rules in what it says."""
        with self._lock:
            if self.is_over:
                return
            self._ban(name, violation)
            self._ring()

    @property
    def disk_failure(self) -> DiskFailed | None:
        """What the disk said, also after the end: whoever has ended the workers looks here, however the wait has ended."""
        return self._error if isinstance(self._error, DiskFailed) else None

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def rest(self, seconds: float) -> None:
        """Waits for so long, or until the fetch is over."""
        self._over.wait(seconds)

    # ---- the workers

    def take(self) -> FetchTask | None:
        """The next task, as soon as there is one; None when the fetch is over."""
        with self._lock:
            while not self.is_over:
                task = self.offer()
                if task is not None:
                    if self._has_room(self._clock()):
                        self._workers.notify()  # there may be another
                    return task
                self._workers.wait(self._time_to_next(self._clock()))
            return None

    def offer(self) -> FetchTask | None:
        """The next task if there is one at this moment."""
        with self._lock:
            task = self._next_task(self._clock())
            if task is not None:
                self._running.append(task)
            return task

    def is_wanted(self, task: FetchTask) -> bool:
        """Whether it is worth reading on: something of the task is missing and its source has not been caught lying."""
        with self._lock:
            missing = any(not self.stock.have[chunk] for chunk in task.chunks[task.done :])
            return missing and not self.is_over and task.source.name not in self._banned

    def arrived(self, task: FetchTask, seconds: float) -> None:
        """The task's next chunk is verified and written, `seconds` after the one before."""
        with self._lock:
            chunk, was_lagging = task.chunks[task.done], self._lags_from(task) <= self._clock()
            task.done += 1
            task.moved = self._clock()
            size, name = self._sizes[chunk], task.source.name
            if task.source.is_relay:
                self._feed.brought(size, task.moved)
            if size:  # a manifest's is 0: too small to measure a bandwidth by
                self._standings[name].delivered(size, seconds)
            if self.stock.arrived(chunk) and size:
                self._statistics.bytes_from[name] += size
                _BYTES.add(size, source="relay" if task.source.is_relay else "origin")
            if was_lagging:
                self._workers.notify()  # more may be asked of its source
            if self._is_done():
                self._awaited.notify_all()

    def finished(self, task: FetchTask) -> None:
        """The task is at its end, or no longer wanted."""
        with self._lock:
            if not self.is_over:
                self._standings[task.source.name].succeeded(self._clock())
            self._give_back(task)  # and the worker takes another, where there is one: nobody else need look

    def put_off(self, task: FetchTask, error: Exception, seconds: float) -> None:
        """The source does not serve this now, which says nothing against it; it rests for so long, or a moment."""
        with self._lock:
            if not self.is_over:
                self._standings[task.source.name].rest(str(error), self._clock(), seconds)
            self._give_back(task)
            self._ring()

    def refused(self, task: FetchTask, error: Exception) -> None:
        """The source serves others only, which says nothing against it: it is not asked again in this fetch."""
        with self._lock:
            self._standings[task.source.name].last_failure = str(error)
            self._lacking.add(task.source.name)
            self._give_back(task)
            self._ring()

    def failed(self, task: FetchTask, error: Exception) -> None:
        """The source failed without being at fault; it rests for a while. After the end nothing counts any more."""
        with self._lock:
            if not self.is_over and task.source.name not in self._lacking:
                self._standings[task.source.name].failed(str(error) or type(error).__name__, self._clock())
                self._statistics.failovers += 1
                _FAILED.add(reason="failed")
            self._give_back(task)
            self._ring()

    def lacks(self, source: Source) -> None:
        """The source does not have any of this, and need not: it is not asked again, and its standing stays as it is."""
        with self._lock:
            self._lacking.add(source.name)
            self._ring()

    def violated(self, task: FetchTask, violation: ProtocolViolation) -> None:
        """The source lied or broke the rules: it is not asked again for this version."""
        with self._lock:
            if self.is_over:
                return
            if isinstance(violation, HashMismatch) and self._sizes[task.chunks[task.done]]:
                self._statistics.bad_chunks[task.source.name] += 1
            self._ban(task.source.name, violation)
            self._statistics.failovers += 1
            self._give_back(task)
            self._ring()

    def abort(self, error: BaseException) -> None:
        """Something that no other source can mend, such as a full disk: it is raised where the result is awaited. The first counts, but
        for a disk that failed, which says so only once: that outweighs all others."""
        with self._lock:
            if self._error is None or (isinstance(error, DiskFailed) and self.disk_failure is None):
                self._error = error
            self._ring()

    # ---- under the lock

    def _ring(self) -> None:
        """There may be a task now, or what is waited for."""
        self._workers.notify()
        self._awaited.notify_all()

    def _ban(self, name: str, violation: ProtocolViolation) -> None:
        self._banned.add(name)
        self._statistics.violations[name] += 1
        _FAILED.add(reason="lied")
        self._standings[name].failed(f"{type(violation).__name__}, {violation}", self._clock())

    def _usable(self) -> list[Source]:
        return [source for name, source in self._sources.items() if name not in self._banned | self._lacking]

    def _ready(self, now: float) -> list[Source]:
        lagging = {task.source.name for task in self._running if self._lags_from(task) <= now}
        return [
            source
            for source in self._usable()
            if source.name not in lagging and self._standings[source.name].rests_until <= now
        ]

    def _has_room(self, now: float) -> bool:
        """Whether one more task may run, those that lag not counted."""
        return sum(self._lags_from(task) > now for task in self._running) < self._streams

    def _next_task(self, now: float) -> FetchTask | None:
        if not self._has_room(now):
            return None
        ready = self._spare_relays(self._spare_origin(self._ready(now), now))
        if not self.stock.free.any():
            return self._second_task([source for source in ready if self._promises.is_complete(source.name)], now)
        offers = [
            source
            for source in ready
            if (self.stock.free & self._held_by(source)).any() and self._has_stream(source, now)
        ]
        if not offers:
            return None
        source = self._draw(offers, now)
        return FetchTask(source, self._take_run(source), now)

    def _held_by(self, source: Source) -> Bits:
        held = self._promises.held(source.name)
        return self.stock.free if held is None else held

    def _has_stream(self, source: Source, now: float) -> bool:
        """Whether one more task may go to this source. Where chunks are passed on, few at a time arrive sooner than many."""
        if not self._relays and self._promises.is_complete(source.name):
            return True
        running = sum(task.source.name == source.name and self._lags_from(task) > now for task in self._running)
        rate = self._bandwidth(source) * running
        return running < max(_STREAMS_MIN, int(rate * _CHUNK_SECONDS / max(1, *self._sizes[:1])))

    def _spare_origin(self, ready: list[Source], now: float) -> list[Source]:
        """`ready` without the origin, where it can be left alone."""
        is_fed = self._feed.is_enough(now, self._quiet_seconds())
        alive = any(self._is_alive(source, now) for source in self._usable() if source.is_relay)
        if self._relays or not is_fed or not alive:
            return ready
        return [source for source in ready if source.is_relay]

    def _spare_relays(self, ready: list[Source]) -> list[Source]:
        """`ready` without relays that are slower than the origin, where a relay asks: what they send to it they cannot send to nodes."""
        if not self._relays:
            return ready
        origin = max((self._bandwidth(source) for source in ready if not source.is_relay), default=0.0)
        return [source for source in ready if not source.is_relay or not 0 < self._bandwidth(source) < origin]

    def _is_alive(self, relay: Source, now: float) -> bool:
        """Whether a relay that tells what it holds can be expected to bring what is missing."""
        standing = self._standings[relay.name]
        if standing.success(now) < _ALIVE_SUCCESS or standing.has_only_failed:
            return False
        if any(task.source.name == relay.name and self._lags_from(task) <= now for task in self._running):
            return False
        return self._promises.is_expected(relay.name, now)

    def _quiet_seconds(self) -> float:
        """For how long a relay may bring nothing and still count as alive."""
        best = max(map(self._bandwidth, self._usable()), default=0.0)
        return max(_ALIVE_SECONDS, _LAG_CHUNKS * self.stock.largest / best) if best else _ALIVE_SECONDS

    def _draw(self, sources: list[Source], now: float) -> Source:
        parts = weights(sources, self._standings, now, for_relay=self._relays)
        return self._rng.choices(sources, self._spread(sources, parts))[0]

    def _spread(self, sources: list[Source], parts: list[float]) -> list[float]:
        """`parts` with those of relays that have delivered shifted, among these alone, from who has tasks to who has none: a slow one is used, too."""
        running = Counter(task.source.name for task in self._running)
        proven = [number for number, source in enumerate(sources) if source.is_relay and self._bandwidth(source)]
        shifted = {number: parts[number] / (1 + running[sources[number].name]) for number in proven}
        scale = sum(parts[number] for number in proven) / (sum(shifted.values()) or 1.0)
        return [scale * shifted[number] if number in shifted else part for number, part in enumerate(parts)]

    def _take_run(self, source: Source) -> list[int]:
        """Neighbouring chunks of one file, as many as suit the source and leave work for everybody; one alone where others wait."""
        others_wait = self._relays or not self._promises.are_complete
        chunks = [self._rarest(source)] if others_wait else self._first_run(source)
        self.stock.free[chunks] = False
        return chunks

    def _rarest(self, source: Source) -> int:
        offered = np.flatnonzero(self.stock.free & self._held_by(source))
        return int(self._rng.choice(self._promises.rarest(offered)))

    def _first_run(self, source: Source) -> list[int]:
        chunks = [int(np.argmax(self.stock.free))]
        bandwidth = self._bandwidth(source)
        fair = -(-(int(self.stock.free.sum()) - 1) // (2 * self._streams))
        most = min(_TASK_CHUNKS, fair, int(bandwidth * _TASK_SECONDS / max(1, self._sizes[chunks[0]])))
        while len(chunks) < most and self._follows(chunks[-1]):
            chunks.append(chunks[-1] + 1)
        return chunks

    def _follows(self, chunk: int) -> bool:
        """Whether the next chunk is of the same file and to be fetched."""
        other = chunk + 1
        return (
            other < len(self.stock.free) and bool(self.stock.free[other]) and self._files[other] == self._files[chunk]
        )

    def _second_task(self, ready: list[Source], now: float) -> FetchTask | None:
        """The last chunk that lagging tasks still owe, to be asked of a source that is not lagging; or else that a relay would bring much sooner."""
        for laggard in sorted(self._running, key=lambda task: task.moved):
            owed = [chunk for chunk in laggard.chunks[laggard.done :] if self._is_late(chunk, now)]
            if owed and ready:
                return FetchTask(self._draw(ready, now), [owed[-1]], now)
        best = max((source for source in ready if source.is_relay), key=self._bandwidth, default=None)
        if best is None or not self._bandwidth(best):
            return None
        for task in self._running:
            for chunk in reversed(task.chunks[task.done :]):
                again = self._sizes[chunk] / self._bandwidth(best)
                is_worth_it = self._seconds_to(task, chunk, now) > max(_SOONER_SECONDS, _SOONER * again)
                if is_worth_it and not self.stock.have[chunk] and self._owing(chunk) == [task]:
                    return FetchTask(best, [chunk], now)
        return None

    def _seconds_to(self, task: FetchTask, chunk: int, now: float) -> float:
        """Until the task will have brought this chunk; 0 where nobody knows."""
        before = task.chunks[task.done : task.chunks.index(chunk) + 1]
        bandwidth = self._bandwidth(task.source)
        return sum(self._sizes[each] for each in before) / bandwidth - (now - task.moved) if bandwidth else 0.0

    def _bandwidth(self, source: Source) -> float:
        return self._standings[source.name].bandwidth or 0.0

    def _owing(self, chunk: int) -> list[FetchTask]:
        return [task for task in self._running if chunk in task.chunks[task.done :]]

    def _is_late(self, chunk: int, now: float) -> bool:
        """Whether it is missing and every task that owes it lags."""
        return not self.stock.have[chunk] and all(self._lags_from(task) <= now for task in self._owing(chunk))

    def _cut_laggards(self, now: float) -> None:
        """Leaves as many laggards as there are workers to spare."""
        lagging = [task for task in self._running if self._lags_from(task) <= now]
        for task in sorted(lagging, key=lambda task: task.moved)[: max(0, len(lagging) - self._streams)]:
            task.is_cut = True
            task.cut()

    def _lags_from(self, task: FetchTask) -> float:
        """The moment from which a task that has not moved lags behind the best; never, if there is nobody else to ask."""
        usable = self._usable()
        if all(source.name == task.source.name for source in usable):
            return float("inf")
        best = max(map(self._bandwidth, usable))
        usual = max(self._sizes[chunk] for chunk in task.chunks) / best if best else 0.0
        return task.moved + max(_LAG_SECONDS, _LAG_CHUNKS * usual)

    def _time_to_next(self, now: float) -> float:
        """Seconds until time alone may make a task possible."""
        moments = [self._standings[source.name].rests_until for source in self._usable()]
        moments += [self._lags_from(task) for task in self._running]
        moments += self._promises.ends()
        moments += [self._feed.next_look(self._quiet_seconds())]
        return min([moment - now for moment in moments if moment > now] + [_NAP_SECONDS])

    def _give_back(self, task: FetchTask) -> None:
        self._running.remove(task)
        for chunk in task.chunks[task.done :]:
            if not self.stock.have[chunk] and not any(chunk in other.chunks[other.done :] for other in self._running):
                self.stock.free[chunk] = True

    def _account(self) -> str:
        """What is missing, and why each source did not bring it."""
        missing = [chunk for chunk, have in enumerate(self.stock.have) if not have]
        named = ", ".join(self._describe(chunk) for chunk in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        reasons = "; ".join(f"{name}: {self._standings[name].last_failure}" for name in self._sources)
        return f"{len(missing)} of {len(self.stock.have)} missing ({named}{more}). {reasons or 'No source was given'}"
