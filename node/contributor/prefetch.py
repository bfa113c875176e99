"""Fetches the next version while this one is worked on, so that the device does not stand still between versions.

It begins while the trainer is still writing it, where no delta will be cheaper; and all of it counts once the chain names it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from node.versions import Versions, fetching_ahead
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError
from protocol.gossip.messages import HEAD
from protocol.shell.connection import Connection

log = logging.getLogger("node")

_PAUSE_MIN = 1.0  # seconds between two looks at the head
_END_SECONDS = 5.0  # for the thread to end in; it is a daemon, so a process ends without it


class Prefetch:
    """Looks for a new head within `beside`, and only then: at other times the worker looks itself."""

    def __init__(self, connection: Connection, versions: Versions, clock: Clock = SYSTEM) -> None:
        self._c = connection
        self._versions = versions
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._news = connection.news(HEAD, clock=clock)

    def close(self) -> None:
        """Breaks off what is being fetched."""
        self._versions.stop()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    @contextmanager
    def beside(self, step: int) -> Iterator[None]:
        """While the block works on version `step`, the one that follows is fetched. A fetch that has begun goes on afterwards, and
        whoever needs the version waits for it."""
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(step, ended), name="prefetch", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:  # this system gives no more threads
            log.info("the next version is fetched when it is needed: %s", error)
        try:
            yield
        finally:
            ended.set()

    def _follow(self, step: int, ended: threading.Event) -> None:
        pause = max(_PAUSE_MIN, self._c.settings.poll_seconds)
        with fetching_ahead(self._versions, lambda: step + 1, ended, pause):
            self._follow_head(step, ended, pause)

    def _follow_head(self, step: int, ended: threading.Event, pause: float) -> None:
        while True:
            self._news.wait(ended, pause, seldom=True)
            if ended.is_set():
                return
            try:
                head = self._c.chain.head(self._c.run)
                if head is not None and head.step > step:
                    if not self._versions.holds(head):
                        self._versions.fetch(head)
                        log.info("version %d was fetched beside the work on version %d", head.step, step)
                    return
            except MurmurationError as error:  # the worker meets it again, and knows what it means
                log.debug("fetching ahead: %s", error)
