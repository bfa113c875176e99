"""Asks several sources at once what its trainer has signed so far of a version, so that a slow one keeps nobody from the news.

One that has not answered for longer than an honest one takes is left to its own deadline, and another is asked beside it. One that has
no news and says so at once, or fails, rests for a moment. What is answered is not believed here (ahead.py does that).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread

from protocol.errors import ProtocolViolation, Unavailable, VersionMismatch
from protocol.shardcast.opening import OpeningAnswer
from protocol.shardcast.source import Source

WAIT_SECONDS = 4.0
"""Longest a source may wait for news before it answers."""

AT_ONCE = 3
"""Sources that are asked side by side."""

_LATE_SECONDS = WAIT_SECONDS + 2.0  # after which another is asked beside one that has not answered
_PAUSE_SECONDS = 1.0  # before one is asked again after a failure, or after no news that came at once

Answer = OpeningAnswer | OSError | Unavailable | ProtocolViolation | VersionMismatch


@dataclass
class Tellers:
    """`known` gives those that may be asked at this moment, `ask(source, of, after)` asks one and blocks. For one thread."""

    known: Callable[[], list[Source]]
    ask: Callable[[Source, str, int], OpeningAnswer]
    rng: random.Random
    clock: Callable[[], float] = time.monotonic
    _asked: dict[str, float] = field(default_factory=dict)  # since when
    _rests: dict[str, float] = field(default_factory=dict)  # until when
    _answers: SimpleQueue[tuple[Source, Answer] | None] = field(default_factory=SimpleQueue)

    def next(self, of: str, after: int, seconds: float) -> tuple[Source, Answer] | None:
        """The next answer, or what it failed by, within so many seconds or until `wake`; asks whom there is to ask first."""
        self._ask_more(of, after)
        try:
            got = self._answers.get(timeout=seconds)
        except Empty:
            return None
        if got is None:
            return None
        source, answer = got
        now = self.clock()
        if not isinstance(answer, OpeningAnswer) or now < self._asked[source.name] + _PAUSE_SECONDS:
            self._rests[source.name] = now + _PAUSE_SECONDS
        del self._asked[source.name]
        return source, answer

    def wake(self) -> None:
        """Ends the wait in `next`, from any thread."""
        self._answers.put(None)

    def had_news(self, source: Source) -> None:
        """It may be asked again at once."""
        self._rests.pop(source.name, None)

    @property
    def has_late(self) -> bool:
        """Whether one that was asked does not answer, so that nobody knows what it has."""
        return len(self._in_time()) < len(self._asked)

    @property
    def waits(self) -> bool:
        """Whether an answer may come in the time that honest ones take."""
        return bool(self._in_time() or self._ready())

    # ---- inside

    def _in_time(self) -> list[str]:
        now = self.clock()
        return [name for name, since in self._asked.items() if now < since + _LATE_SECONDS]

    def _ready(self) -> list[Source]:
        now = self.clock()
        idle = [source for source in self.known() if source.name not in self._asked]
        return [source for source in idle if self._rests.get(source.name, now) <= now]

    def _ask_more(self, of: str, after: int) -> None:
        free = AT_ONCE - len(self._in_time())
        if free <= 0:
            return
        ready = self._ready()
        for source in self.rng.sample(ready, min(free, len(ready))):
            self._asked[source.name] = self.clock()
            thread = Thread(target=self._ask, args=(source, of, after), name=f"teller-{source.name}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # this system gives no more threads
                self._answers.put((source, Unavailable("this system gives no more threads")))

    def _ask(self, source: Source, of: str, after: int) -> None:
        try:
            self._answers.put((source, self.ask(source, of, after)))
        except (OSError, Unavailable, ProtocolViolation, VersionMismatch) as error:
            self._answers.put((source, error))
