"""The one thread that makes what a page shows, every few seconds while somebody looks, and keeps it in memory for all of them.

A request reads what lies here and costs nothing else. While nobody looks the thread sleeps, without a deadline.
"""

from __future__ import annotations

import logging
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from protocol.clock import Clock
from protocol.errors import MurmurationError
from protocol.page.document import PageDocument
from protocol.page.news import PageNews

TURN_SECONDS = 3.0
WATCHED_SECONDS = 60.0
"""After the last request, for which a page is kept up to date."""
_FAILED_TURNS = 10  # that pass before it is tried again


@dataclass(frozen=True)
class PageContent:
    """What is shown at one time. Nobody changes it."""

    mark: str
    """Names it; of another process it is never the same."""
    parts: Mapping[str, PageDocument] = field(default_factory=dict)
    trouble: str | None = None
    """Why it does not get newer, for people."""

    @property
    def tags(self) -> dict[str, str]:
        return {name: document.tag for name, document in self.parts.items()}


C = TypeVar("C", bound=PageContent)


class Keeper(ABC, Generic[C]):
    """Works while its context lasts. `content` may be read from any thread."""

    def __init__(self, kind: type[C], trouble: str, log: logging.Logger, clock: Clock, turn_seconds: float) -> None:
        """`trouble` is what people read where a turn fails; an error names files of this machine, which are for `log`."""
        self._trouble = trouble
        self._log = log
        self._clock = clock
        self._turn_seconds = turn_seconds
        self._life, self._generation = secrets.token_hex(4), 0
        self.content = kind(self._mark())
        self.news = PageNews()
        self._looked = float("-inf")
        self._wanted, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="page", daemon=True)

    def __enter__(self) -> Keeper[C]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._wanted.set()
        self.news.close()
        self._thread.join(10)

    def want(self) -> None:
        """Somebody looks."""
        self._looked = self._clock.monotonic()
        self._wanted.set()

    @property
    def is_watched(self) -> bool:
        return bool(len(self.news)) or self._clock.monotonic() - self._looked <= WATCHED_SECONDS

    # ---- of each page --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _open(self, opened: ExitStack) -> Callable[[], None]:
        """What a turn is; called before the first one, and after one that failed. `opened` is closed then."""

    def _is_busy(self) -> bool:
        """Whether there are better things to do than a page."""
        return False

    def _forget(self) -> None:
        """After a turn that failed: what was read half is read anew."""

    # ---- the thread ----------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        with ExitStack() as opened:
            turn: Callable[[], None] | None = None
            while not self._stop.is_set():
                self._wanted.clear()  # before it is asked, or somebody who comes in between would be missed
                if not self.is_watched:
                    self._wanted.wait()
                    continue
                pause = self._turn_seconds
                try:
                    if not self._is_busy():
                        turn = turn or self._open(opened)
                        turn()
                except Exception as error:  # noqa: BLE001  a page that fails takes nothing with it
                    self._fail(error)
                    turn = None
                    self._forget()
                    opened.close()
                    pause *= _FAILED_TURNS
                self._clock.wait(self._stop, pause)

    def _fail(self, error: Exception) -> None:
        if self.content.trouble is None:
            self._log.warning("the page is not made: %s", error, exc_info=not isinstance(error, MurmurationError))
            self._replace(replace(self.content, mark=self._mark(), trouble=self._trouble))

    def _replace(self, content: C) -> None:
        self.content = content
        self.news.ring()

    def _mark(self) -> str:
        self._generation += 1
        return f"{self._life}-{self._generation}"
