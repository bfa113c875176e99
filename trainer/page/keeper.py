"""The one thread that makes what a page shows, every few seconds while somebody looks, and keeps it in memory for all of them.

A request reads what lies here and costs no look at book or chain. While the hub has much to do the thread does nothing, and the page
grows old.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from protocol.chain.view import View
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError
from trainer.page.details import RunDetails
from trainer.page.documents import PageDocument, RunDocuments
from trainer.page.news import PageNews
from trainer.page.sources import PageSources
from trainer.page.stakes import StakeLooks
from trainer.page.tallies import RunTallies
from trainer.page.training import TrainingFiles

log = logging.getLogger("hub")

TURN_SECONDS = 3.0
WATCHED_SECONDS = 60.0
"""After the last request, for which the page is kept up to date."""
_TROUBLE = "The hub cannot make this page now; its log says why, and it goes on trying."
_BREATH_SECONDS = 0.02  # between two batches, for the hub's other threads
_FAILED_TURNS = 10  # that pass before it is tried again
_BATCHES_UNSEEN = 10  # then the page says how far the reading has come


@dataclass(frozen=True)
class PageContent:
    """What is shown at one time. Nobody changes it."""

    mark: str
    """Names it; of another process it is never the same."""
    parts: Mapping[str, PageDocument] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rows of the table of nodes, by seat."""
    versions: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """How the work on each version was judged."""
    trouble: str | None = None
    """Why it does not get newer, for people."""

    @property
    def tags(self) -> dict[str, str]:
        return {name: document.tag for name, document in self.parts.items()}


class PageKeeper:
    """Works while its context lasts. `content` may be read from any thread."""

    def __init__(self, sources: PageSources, clock: Clock = SYSTEM, *, turn_seconds: float = TURN_SECONDS) -> None:
        self._sources = sources
        self._clock = clock
        self._turn_seconds = turn_seconds
        self._life, self._generation = secrets.token_hex(4), 0
        self.content = PageContent(self._mark())
        self.news = PageNews()
        self.details: RunDetails | None = None
        """Once the hub's book and index are there."""
        self._looked = float("-inf")
        self._wanted, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="page", daemon=True)

    def __enter__(self) -> PageKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._wanted.set()
        self._thread.join(10)

    def want(self) -> None:
        """Somebody looks."""
        self._looked = self._clock.monotonic()
        self._wanted.set()

    # ---- the thread ----------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        with ExitStack() as opened:
            made: _Work | None = None
            while not self._stop.is_set():
                self._wanted.clear()  # before it is asked, or somebody who comes in between would be missed
                if not len(self.news) and self._clock.monotonic() - self._looked > WATCHED_SECONDS:
                    self._wanted.wait()
                    continue
                pause = self._turn_seconds
                try:
                    if not self._sources.is_busy():
                        made = made or self._open(opened)
                        self._turn(made)
                except Exception as error:  # noqa: BLE001  a page that fails takes nothing with it
                    self._fail(error)
                    made, self.details = None, None  # what was counted half is counted anew
                    opened.close()
                    pause *= _FAILED_TURNS
                self._clock.wait(self._stop, pause)

    def _open(self, opened: ExitStack) -> _Work:
        """Connections of the page's own: for this thread, and for questions. Raises IntegrityError while there is nothing to connect to."""
        (view, index), asked = (
            (
                opened.enter_context(closing(View.read(self._sources.book))),
                opened.enter_context(closing(self._sources.open_index())),
            )
            for _ in range(2)
        )
        made = _Work(self._sources, view, index, self._clock)
        self.details = RunDetails(*asked, made.training)
        return made

    def _turn(self, made: _Work) -> None:
        for batch in range(1, 1 << 62):
            if not made.tallies.follow() or self._stop.is_set():
                break
            if batch % _BATCHES_UNSEEN == 0:
                self._show(made)
            self._clock.wait(self._stop, _BREATH_SECONDS)
        made.look_at_chain()
        self._show(made)

    def _show(self, made: _Work) -> None:
        made.training.follow()
        values = made.documents.parts(self._clock.wall())
        parts = {name: PageDocument.of(value) for name, value in values.items()}
        if self.content.trouble is None and {n: d.tag for n, d in parts.items()} == self.content.tags:
            return
        nodes = {row["address"]: row for row in values["nodes"]}
        versions = {step: vars(work).copy() for step, work in made.tallies.versions.items()}
        self._replace(PageContent(self._mark(), parts, nodes, versions))

    def _fail(self, error: Exception) -> None:
        """Told once: an error names files of this machine, which are for its log."""
        old = self.content
        if old.trouble is None:
            log.warning("the run's page is not made: %s", error, exc_info=not isinstance(error, MurmurationError))
            self._replace(PageContent(self._mark(), old.parts, old.nodes, old.versions, _TROUBLE))

    def _replace(self, content: PageContent) -> None:
        self.content = content
        self.news.ring()

    def _mark(self) -> str:
        self._generation += 1
        return f"{self._life}-{self._generation}"


class _Work:
    """What the thread has in hand."""

    def __init__(self, sources: PageSources, view: View, index: Any, clock: Clock) -> None:
        self.tallies = RunTallies(view, index)
        self.training = TrainingFiles(sources.layout)
        self._stakes = StakeLooks(sources.chain, sources.run, sources.vouchers, clock)
        self.documents = RunDocuments(sources, view, self.tallies, self.training, self._stakes)

    def look_at_chain(self) -> None:
        self._stakes.look(list(self.tallies.seats), list(self.tallies.validators))
