"""The thread that makes the run's page of book, receipts and the trainer's files. While the hub has much to do it does nothing, and the page
grows old."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from protocol.chain.view import View
from protocol.clock import SYSTEM, Clock
from protocol.page.document import PageDocument
from protocol.page.inquiries import PageInquiries
from protocol.page.keeper import TURN_SECONDS, Keeper, PageContent
from trainer.page.details import RunDetails
from trainer.page.documents import RunDocuments
from trainer.page.sources import PageSources
from trainer.page.stakes import StakeLooks
from trainer.page.tallies import RunTallies
from trainer.page.training import TrainingFiles

_TROUBLE = "The hub cannot make this page now; its log says why, and it goes on trying."
_BREATH_SECONDS = 0.02  # between two batches, for the hub's other threads
_BATCHES_UNSEEN = 10  # then the page says how far the reading has come


@dataclass(frozen=True)
class RunContent(PageContent):
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rows of the table of nodes, by seat."""
    versions: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """How the work on each version was judged."""


class PageKeeper(Keeper[RunContent]):
    def __init__(self, sources: PageSources, clock: Clock = SYSTEM, *, turn_seconds: float = TURN_SECONDS) -> None:
        super().__init__(RunContent, _TROUBLE, logging.getLogger("hub"), clock, turn_seconds)
        self._sources = sources
        self.inquiries = PageInquiries()
        self.details: RunDetails | None = None
        """Once the hub's book and index are there."""

    def __exit__(self, *_: object) -> None:
        self.inquiries.close()
        super().__exit__(*_)

    def _is_busy(self) -> bool:
        return self._sources.is_busy()

    def _open(self, opened: ExitStack) -> Callable[[], None]:
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
        return lambda: self._turn(made)

    def _forget(self) -> None:
        self.details = None

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
        self._replace(RunContent(self._mark(), parts, nodes=nodes, versions=versions))


class _Work:
    """What the thread has in hand."""

    def __init__(self, sources: PageSources, view: View, index: Any, clock: Clock) -> None:
        self.tallies = RunTallies(view, index)
        self.training = TrainingFiles(sources.layout)
        self._stakes = StakeLooks(sources.chain, sources.run, sources.vouchers, clock)
        self.documents = RunDocuments(sources, view, self.tallies, self.training, self._stakes)

    def look_at_chain(self) -> None:
        self._stakes.look(list(self.tallies.seats), list(self.tallies.validators))
