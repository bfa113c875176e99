"""Whether the hub has anything new to tell a validator: asked over one poll that the hub holds back, beside the turn.

A validator with nothing to judge would otherwise ask in every turn to be told nothing. With something to
judge it asks all the same (service.py): what others have said must be heard before it speaks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError
from protocol.hub.listing import Mark
from protocol.hub.wire import TryAgain
from protocol.retry import Backoff
from protocol.shell import machine
from protocol.shell.connection import Connection

log = logging.getLogger("validator")

WAIT_SECONDS = 50
"""That the hub may hold an answer back: below what proxies and routers keep an idle connection for, a minute."""
_MOMENT = 1.0  # between polls that the hub does not hold back
_REST_MOST = 12  # times the first pause after a failure


class Doorbell:
    """`follow` is called by one thread, everything else by another."""

    def __init__(
        self,
        connection: Connection,
        marks: Callable[[], tuple[Mark, Mark]],
        retry_seconds: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """`marks`: up to where receipts and requests for opinions have been heard."""
        self._c = connection
        self._marks = marks
        self._clock = clock
        self._backoff = Backoff(retry_seconds, _REST_MOST * retry_seconds, clock=clock)
        self._quiet: tuple[Mark, Mark] | None = None  # after these the hub has nothing, and will say when it has
        self._heard = threading.Event()

    @property
    def is_quiet(self) -> bool:
        """Whether the hub has told nothing beyond what was heard, and would: it answered the last poll."""
        return self._quiet == self._marks()

    def overhear(self, *_: object) -> None:
        """Another validator's verdict came by gossip: the hub will have its receipt."""
        self._quiet = None

    def heard(self) -> None:
        """What there was to hear has been heard: `follow` goes on."""
        self._heard.set()

    def follow(self, stop: threading.Event) -> None:
        """Waits at the hub until `stop` is set. Nothing that fails ends it."""
        while not stop.is_set():
            try:
                self._poll(stop)
                self._backoff.succeeded()
            except Exception as error:
                self._quiet = None
                if not isinstance(error, MurmurationError) and machine.trouble(error) is None:
                    log.exception("asking the hub for news failed; trying again")
                else:
                    log.debug("asking the hub for news: %s; trying again", error)
                pause = self._backoff.failed()
                if isinstance(error, TryAgain):
                    pause = max(pause, error.pause)
                self._clock.wait(stop, pause)

    def _poll(self, stop: threading.Event) -> None:
        marks, asked = self._marks(), self._clock.monotonic()
        wait = WAIT_SECONDS if self._quiet == marks else 0
        self._heard.clear()
        told = self._c.hub.heard(*marks, wait=wait)
        if not (told.receipts or told.opinions):
            self._quiet = marks
            if wait and self._clock.monotonic() < asked + wait / 2:
                self._clock.wait(stop, _MOMENT)
            return
        self._quiet = None
        while not stop.is_set() and self._marks() == marks and not self._heard.is_set():
            self._clock.wait(self._heard, WAIT_SECONDS)  # the turn is at it, or judges
