"""HTTP/1.1 of uvicorn whose peers are held to deadlines, and of whom so many are connected (places.py).

uvicorn has no deadline for headers and for a peer that never reads or sends on, and counts requests where connections should be counted. Here
every connection has a deadline for what comes next and must move bytes while it is its turn.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from protocol.places import Places, household

SLOW_RATE = 16 << 10
"""What a peer must move whose turn it is, in bytes a second: a quarter of what a client grants itself (hub/wire.py)."""
_LEAVING_SECONDS = 2.0


class House:
    """What the connections of one server share."""

    def __init__(self, most: int, per_address: int, eviction_seconds: float, *, refusal: bytes, leaving: int) -> None:
        """`refusal`: the answer to whom there is no place for; `leaving`: how many of these are given a moment to read it."""
        self.refusal = refusal
        self.leaving_most = leaving
        self.leaving = 0
        self._limits = most, per_address, eviction_seconds
        self._places: Places | None = None

    def places(self, loop: asyncio.AbstractEventLoop) -> Places:
        if self._places is None:
            self._places = Places(*self._limits, loop.time)
        return self._places


class BoundedConnection(H11Protocol):
    """Has a place among the others, and deadlines."""

    head: ClassVar[float]
    """Seconds from the beginning of the connection, or the end of an answer, to the next request's headers."""
    request: ClassVar[float]
    """From a request's headers to the end of its answer."""
    slow: ClassVar[float]
    """A peer whose turn it is must move `SLOW_RATE` bytes a second in every so many."""

    def __init__(self, house: House, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.address = ""
        self._house = house
        self._cut: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._until = 0.0  # the deadline of the request
        self._moved = 0  # bytes that the peer sent or was given, in this request
        self._moved_before = 0

    # ---- the connection ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # asyncio sets this on sockets of its own making only; without it an answer's body waits 40 ms for its head's receipt.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = household(self.client[0]) if self.client else ""
        self._places = self._house.places(self.loop)
        if self._places.enter(self):
            self._expect()
        else:
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.leave(self)
        if self._is_refused:
            self._house.leaving -= 1
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._moved += len(data)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect()

    def give_way(self) -> None:
        self.transport.abort()

    def _turn_away(self) -> None:
        """Says so before it hangs up, and lets the peer read it: bytes of its that nobody read would take the answer back."""
        self.transport.write(self._house.refusal)
        if self._house.leaving >= self._house.leaving_most:
            self.transport.close()
            return
        self._is_refused = True
        self._house.leaving += 1
        with suppress(OSError):  # it has hung up already
            self.transport.write_eof()
        self._cut = self.loop.call_later(_LEAVING_SECONDS, self.transport.abort)

    # ---- deadlines -----------------------------------------------------------------------------------------------------

    def _expect(self) -> None:
        """Sets the deadline of what comes next: the end of the request under way, or else the headers of another. A connection that ends
        with its answer is open until that has been read: its deadlines stay, and like others it may give way from now on."""
        self._stop_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            self._begin()
            self._moved, self._moved_before = 0, -self.transport.get_write_buffer_size()  # of earlier answers
            self._until = self.loop.time() + self.request
            self._look_on()
            return
        self._places.rests(self)
        if self.transport.is_closing():
            self._look_on()
        else:
            self._cut = self.loop.call_later(self.head, self.transport.abort)

    def _begin(self) -> None:
        """A request is under way: it is not sent away, unless it only waits."""
        self._places.works(self)

    def _look_on(self) -> None:
        """Cuts the connection when the request is overdue, or when its peer does not get on with it."""
        left = self._until - self.loop.time()
        if left <= 0:
            self.transport.abort()
            return
        self._cut = self.loop.call_later(min(left, self.slow), self._look_again)

    def _look_again(self) -> None:
        unread = self.transport.get_write_buffer_size()
        moved, self._moved_before = self._moved - unread - self._moved_before, self._moved - unread
        unsent = self.cycle.more_body and not self.flow.read_paused
        if (unread or unsent) and not self._is_waiting and moved < SLOW_RATE * self.slow:
            self.transport.abort()
        else:
            self._look_on()

    @property
    def _is_waiting(self) -> bool:
        """Whether the request waits for news, and owes no bytes."""
        return False

    def _stop_timer(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None
