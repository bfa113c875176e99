"""Asks a relay again and again what it holds of a version, for as long as the fetch lasts or until the relay has all of it.

The relay answers when there is news, so a chunk is known of within a round trip of its arrival there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from protocol.errors import ProtocolViolation, Unavailable
from protocol.shardcast.connection import ConnectionPool, NotServed, SourceConnection, StaleConnection, Timeouts
from protocol.shardcast.holding import COMPLETE, Holding, encoded_bytes, holding_target
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.source import Source

_WAIT_SECONDS = 4.0  # longest a relay may wait for news before it answers
_PAUSE_FIRST, _PAUSE_MAX = (
    0.1,
    4.0,
)  # seconds before a relay is asked again that had nothing or failed; doubles each time


@dataclass
class _News:
    """What is new in a source's answers, and how long it rests before it is asked again.

    At once it is asked only where it holds more than ever before: else one that has no news could have it asked for ever. One that
    begins anew is asked at equal pauses on its way back to there. They are twice as long each time, for it may begin anew for ever.
    """

    revision: int = 0  # of its last answer: it is asked for what is new since
    _held: int = -1
    _most: int = -1
    _pause: float = _PAUSE_FIRST
    _pause_anew: float = _PAUSE_FIRST

    def is_in(self, holding: Holding) -> bool:
        held, before = int(holding.held.sum()), self._held
        begins_anew = holding.revision < self.revision or held < before
        self.revision, self._held = holding.revision, held
        if held > self._most:
            self._most, self._pause, self._pause_anew = held, _PAUSE_FIRST, _PAUSE_FIRST
            return True
        if begins_anew:
            self._pause_anew = min(2 * self._pause_anew, _PAUSE_MAX)
        if begins_anew or held > before:
            self._pause = self._pause_anew
        return False

    def pause(self) -> float:
        """Seconds to rest now; the next time twice as long, where nothing is new until then."""
        pause, self._pause = self._pause, min(2 * self._pause, _PAUSE_MAX)
        return pause


@dataclass(frozen=True)
class Inquiry:
    """Tells `schedule` what `source` holds of version `step`, which has so many `chunks`."""

    schedule: Schedule
    source: Source
    step: int
    chunks: int
    timeouts: Timeouts
    deadline: float
    target: Callable[[int, int, int], str] = holding_target
    may_lack: Callable[[int], bool] = lambda status: False
    """Whether a source that answers so need not have it, and is not waited for any longer."""

    def run(self, pool: ConnectionPool) -> None:
        """Returns at the end of the fetch, once the source holds everything, or after it broke the rules."""
        news = _News()
        while not self.schedule.is_over:
            at_least = 0.0
            try:
                holding = self._ask(pool, news.revision)
            except ProtocolViolation as violation:
                self.schedule.distrust(self.source.name, violation)
                return
            except NotServed as error:
                if self.may_lack(error.status):
                    self.schedule.lacks(self.source)
                    return
                at_least = error.retry_after
                if error.status == HTTPStatus.SERVICE_UNAVAILABLE:  # a full line takes back nothing of what was told
                    self.schedule.busy(self.source.name, str(error))
                else:
                    may_come = error.status == HTTPStatus.NOT_FOUND
                    self.schedule.unheard(self.source.name, str(error), may_come=may_come)
                if error.is_for_good:
                    self.schedule.lacks(self.source)
                    return
            except (OSError, Unavailable) as error:
                self.schedule.unheard(self.source.name, str(error) or type(error).__name__, may_come=False)
            else:
                self.schedule.heard(self.source.name, holding)
                if holding.is_complete:
                    return
                if news.is_in(holding):
                    continue
            self.schedule.rest(max(news.pause(), at_least))

    def _ask(self, pool: ConnectionPool, revision: int) -> Holding:
        try:
            return self._ask_on(pool.take(self.source, self.deadline), pool, revision)
        except StaleConnection:
            return self._ask_on(pool.take(self.source, self.deadline, fresh=True), pool, revision)

    def _ask_on(self, connection: SourceConnection, pool: ConnectionPool, revision: int) -> Holding:
        wait_ms = int(1000 * min(_WAIT_SECONDS, self.timeouts.idle / 2))
        cap = max(len(COMPLETE), encoded_bytes(self.chunks))
        try:
            length = connection.ask_whole(self.target(self.step, revision, wait_ms), cap, self.deadline)
            data = bytearray(length)
            connection.read(memoryview(data), self.deadline)
            holding = Holding.parse(bytes(data), self.chunks)
        except BaseException:
            pool.drop(connection)
            raise
        pool.give(connection)
        return holding
