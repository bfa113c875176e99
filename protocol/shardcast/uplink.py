"""How a server's sending side is shared out: a cap on its rate (bucket.py), and turns, so that chunks arrive one after the other.

Twenty chunks sent side by side all arrive at the end; sent in turns, the first can be passed on after a twentieth of the
time. A turn is one chunk long at most. Relays take theirs before everybody else, but one in four is left to others who wait:
anybody can pass for a relay. Then comes the peer that has the fewest, and among equals the longest wait counts. A peer that
reads slowly keeps its turn to itself for a moment only, then others go on beside it. It still has that turn, and beside others it
has few: a hundred slow connections of one peer delay nobody else by more than a few do (`_most_of_one`).
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Lock

from protocol.constants import SHARDCAST_CHUNK_BYTES
from protocol.shardcast.bucket import FIRST_IN_A_ROW, NoTurn, TokenBucket

_TURNS_MIN, _TURNS_MAX = (
    2,
    8,
)  # side by side: the fewer the sooner the first is through, the more the better a line is filled
_CHUNK_SECONDS = 0.5  # that each of so many may take; from the rate of the last turns follows how many
_REMEMBERED, _REMEMBERED_SECONDS = 8, 5.0  # turns that tell the rate
_STREAMS = 4  # of one fetch, as a client has them: turns that a peer may have beside others
_TOGETHER = 16  # turns under way, from which on nobody has more than that beside others
_TURN_SECONDS = 2.0  # after which a turn no longer keeps others waiting
SMALL_BYTES_MAX = 64 << 10
"""An answer up to this size takes no turn. What is held of any version fits: a manifest of 16 MiB (MANIFEST_BYTES_MAX) names
250,000 chunks at most, two bits each are 62.6 KB. A relay whose line is full could not tell otherwise what it has to give."""


@dataclass(eq=False)
class _Turn:
    """A transfer that waits for its turn, or has had it since `since`. `called` wakes it alone."""

    first: bool
    peer: str
    asked: float
    called: Condition
    since: float | None = None


@dataclass
class Uplink:
    """`rate` is the most bytes a second that all transfers together may send, without a limit if None.

    Safe to share between threads; `sleep` and `clock` are a test's to replace. Of those that wait only the next is woken when
    something changes: a crowd in which each looks at all others at every turn would fill the processor before it fills the line.
    No call is lost: who is next follows from the turns alone, so it changes when one is asked for, begins or ends, and each of
    these calls the next. With time alone only room appears, and the next looks for that by itself.
    """

    rate: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _ended: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))  # when begun, bytes
    _turns: list[_Turn] = field(default_factory=list)
    _in_a_row: int = 0  # turns that relays had since others had one
    _mutex: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.bucket = TokenBucket(self.rate, self.clock, self.sleep)

    @contextmanager
    def turn(self, count: int, *, first: bool, deadline: float, peer: str = "") -> Iterator[None]:
        """Waits for a turn to send `count` bytes to a peer, which lasts as long as the block. Raises NoTurn where none came by the deadline."""
        turn = _Turn(first, peer, self.clock(), Condition(self._mutex))
        with self._mutex:
            self._turns.append(turn)
            self._call_next()
        try:
            self._wait(turn, deadline)
            yield
        finally:
            with self._mutex:
                self._turns.remove(turn)
                if turn.since is not None:
                    self._ended.append((turn.since, count))
                self._call_next()

    @property
    def waiting(self) -> int:
        """Transfers that wait for their turn."""
        with self._mutex:
            return sum(turn.since is None for turn in self._turns)

    # ---- inside

    def _wait(self, turn: _Turn, deadline: float) -> None:
        with self._mutex:
            while True:
                now, is_next = self.clock(), self._next() is turn
                under_way = [other.since for other in self._turns if other.since is not None]
                young = [since for since in under_way if since + _TURN_SECONDS > now]
                if is_next and len(young) < self._side_by_side(now):
                    turn.since = now
                    self._in_a_row = self._in_a_row + 1 if turn.first else 0
                    self._call_next()  # there may be room for another
                    return
                if now >= deadline:
                    raise NoTurn("too many are served before this one")
                # When a slow turn stops counting nobody calls, so the next looks by itself.
                wake = min([deadline, *(since + _TURN_SECONDS for since in young if is_next)])
                turn.called.wait(max(0.001, wake - now))

    def _call_next(self) -> None:
        """Wakes the one whose turn comes next, after any change: there may be room for it, or nobody else who looks when there is."""
        turn = self._next()
        if turn is not None:
            turn.called.notify()

    def _side_by_side(self, now: float) -> int:
        """How many turns are to be had at once."""
        recent = [(since, count) for since, count in self._ended if since + _REMEMBERED_SECONDS > now]
        if not recent:
            return _TURNS_MIN
        rate = sum(count for _, count in recent) / max(1e-3, now - min(since for since, _ in recent))
        return min(_TURNS_MAX, max(_TURNS_MIN, int(rate * _CHUNK_SECONDS / SHARDCAST_CHUNK_BYTES)))

    def _next(self) -> _Turn | None:
        """Whose turn comes next, or None where all that wait have as many as they may. One pass over the turns, under the lock that
        all need."""
        having = dict.fromkeys((turn.peer for turn in self._turns), 0)
        wanting = dict[str, None]()
        for turn in self._turns:
            if turn.since is None:
                wanting[turn.peer] = None
            else:
                having[turn.peer] += 1
        # The two with the fewest, for each is measured by the others.
        first, second = heapq.nsmallest(2, [*(having[peer] for peer in wanting), math.inf, math.inf])
        most = self._most_of_one(having, first), self._most_of_one(having, second)
        relays_first = self._in_a_row < FIRST_IN_A_ROW
        waiting = (t for t in self._turns if t.since is None and having[t.peer] < most[having[t.peer] == first])
        return min(waiting, key=lambda turn: (turn.first != relays_first, having[turn.peer], turn.asked), default=None)

    @staticmethod
    def _most_of_one(having: dict[str, int], least: float) -> float:
        """How many turns a peer may have under way, given how many each has that has or wants one, and the least that another has who waits.

        Where the line itself is slow turns stop counting before their end, and those of a crowd would add up until nothing arrives
        in time. So beside others a peer has four, as many as a fetch has streams; while fewer than sixteen are under way it may have one more
        than the least that another has who waits, and as many as there is room for where nobody else does. Measured by the most that another
        has, two would climb over each other without end; counting those that want no more, one slow reader would keep a whole network behind
        one address at four. Beside one that has its first, so many addresses have sixteen turns, or four times as many as they are.
        """
        if len(having) == 1:
            return math.inf
        return max(_STREAMS, 1 + least) if sum(having.values()) < _TOGETHER else _STREAMS
