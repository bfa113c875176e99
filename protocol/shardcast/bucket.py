"""The cap on what a server sends: a token bucket for the pieces of chunks and for the answers that are smaller than one.

Both wait in line for the same bytes a second. Small answers (manifests of small versions, what is held, what is signed so far) go before
pieces of chunks, for others wait for them before they can ask for anything; but while chunks wait they get a quarter of the line, so a
crowd that asks for nothing else does not keep the weights from leaving. Among small answers relays come first, three times of four, then the peer
that had the fewest lately, then the longest wait. Pieces go in the order in which they come: whose they are was decided by turns (uplink.py).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock

_BURST_SECONDS = 0.1  # of sending that an idle line may save up
_PIECE_BYTES_MAX = 256 << 10
_CHUNKS_SHARE = 3  # bytes of chunks to one of small answers, where both wait
FIRST_IN_A_ROW = 3  # turns or small answers of relays, after which somebody else has one: anybody can pass for a relay
_REMEMBERED = 64  # small answers of which is known whose they were


class NoTurn(TimeoutError):
    """Too many transfers came before this one."""


@dataclass(eq=False)
class _Claim:
    """`peer` is None for a piece of a chunk."""

    count: int
    peer: str | None
    first: bool
    turn: Event = field(default_factory=Event)


@dataclass
class TokenBucket:
    """`rate` is the most bytes a second, without a limit if None. Safe to share between threads; `sleep` and `clock` are a test's to replace."""

    rate: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _claims: list[_Claim] = field(default_factory=list)
    _is_taken: bool = False  # by who pauses until its bytes may leave
    _owed: int = 0  # bytes that pieces may send before the next small answer
    _served: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _in_a_row: int = 0  # small answers to relays since others had one
    _paid_until: float = float("-inf")
    _mutex: Lock = field(default_factory=Lock)

    @property
    def waiting(self) -> int:
        """Those that wait for others to go before them."""
        with self._mutex:
            return len(self._claims)

    def piece(self, length: int) -> int:
        """How many of `length` bytes to send before the rate is looked at again."""
        return length if self.rate is None else max(1, min(length, _PIECE_BYTES_MAX, int(self.rate * _BURST_SECONDS)))

    def spend(self, count: int) -> None:
        """Accounts for `count` bytes of a chunk about to be sent, after a pause where the line is used up."""
        self._spend(count, None, False, float("inf"))

    def spend_small(self, count: int, *, peer: str, first: bool, deadline: float) -> None:
        """The same for a small answer. Raises NoTurn where by the `deadline` others still come before it."""
        self._spend(count, peer, first, deadline)

    # ---- inside

    def _spend(self, count: int, peer: str | None, first: bool, deadline: float) -> None:
        if self.rate is None:
            return
        claim = _Claim(count, peer, first)
        with self._mutex:
            self._claims.append(claim)
            self._call_next()
        if not self._has_turn(claim, deadline):
            raise NoTurn("too many are answered before this one")
        try:
            with self._mutex:
                now = self.clock()
                begins = max(self._paid_until, now - _BURST_SECONDS)
                self._paid_until = begins + count / self.rate
            if begins > now:
                self.sleep(begins - now)
        finally:
            with self._mutex:
                self._is_taken = False
                self._call_next()

    def _has_turn(self, claim: _Claim, deadline: float) -> bool:
        while not claim.turn.is_set():
            left = deadline - self.clock()
            if left <= 0:
                with self._mutex:
                    if not claim.turn.is_set():
                        self._claims.remove(claim)
                        return False
            claim.turn.wait(None if left == float("inf") else max(0.0, left))
        return True

    def _call_next(self) -> None:
        if self._is_taken or not self._claims:
            return
        claim = self._next()
        self._claims.remove(claim)
        self._is_taken = True
        if claim.peer is None:
            self._owed = max(0, self._owed - claim.count)
        else:
            self._owed = _CHUNKS_SHARE * claim.count
            self._served.append(claim.peer)
            self._in_a_row = self._in_a_row + 1 if claim.first else 0
        claim.turn.set()

    def _next(self) -> _Claim:
        pieces = [claim for claim in self._claims if claim.peer is None]
        small = [claim for claim in self._claims if claim.peer is not None]
        if pieces and (not small or self._owed):
            return pieces[0]
        served, relays_first = Counter(self._served), self._in_a_row < FIRST_IN_A_ROW
        return min(
            small, key=lambda claim: (claim.first != relays_first, served[claim.peer or ""])
        )  # of equals the one that came first
