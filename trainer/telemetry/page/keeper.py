"""The thread that makes the trainer's page of what the trainer has written. Its process is asked for nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from protocol.chain.view import View
from protocol.clock import SYSTEM, Clock
from protocol.errors import IntegrityError
from protocol.page.keeper import TURN_SECONDS, Keeper, PageContent
from protocol.page.log_tail import LogTail, last_of
from protocol.page.redaction import PageSecrets
from protocol.shell.home import Home, holder, is_alive
from trainer.config import Layout, Outputs, RunSettings, SoloSettings
from trainer.page.training import TrainingFiles
from trainer.telemetry.page import disk, documents, timeline

PARTS = ("trainer", "alarms", "timeline", "charts", "checkpoints", "versions", "log")
_TROUBLE = "This page cannot be made now; the trainer’s log says why, and it goes on trying."


class TrainerPageKeeper(Keeper[PageContent]):
    def __init__(
        self, layout: Outputs, settings: RunSettings | SoloSettings, tail: LogTail | None = None, clock: Clock = SYSTEM,
        *, turn_seconds: float = TURN_SECONDS,
    ) -> None:  # fmt: skip
        """`tail` has what this very process logs as the running trainer; None where the trainer is another process, or none."""
        super().__init__(PageContent, _TROUBLE, logging.getLogger("trainer"), clock, turn_seconds)
        self._layout = layout
        self._settings = settings
        self._tail = tail
        self.secrets = secrets_of(layout, settings)

    def _open(self, opened: ExitStack) -> Callable[[], None]:
        files = TrainingFiles(self._layout)
        book: View | None = None
        charts: dict[str, Any] | None = None

        def turn() -> None:
            nonlocal book, charts
            if book is None and (book := self._book()) is not None:
                opened.enter_context(closing(book))
            if files.follow() or charts is None:
                charts = files.charts(documents.SERIES)
            self._show(self._parts(files, book) | {"charts": charts})

        return turn

    def _book(self) -> View | None:
        """The hub's book of the chain, which is newer than the trainer's own; None before the hub has begun it."""
        if not isinstance(self._layout, Layout):
            return None
        try:
            return View.read(self._layout.book)
        except IntegrityError:
            return None

    def _show(self, values: dict[str, Any]) -> None:
        parts = {name: self.secrets.document(value) for name, value in values.items()}
        if self.content.trouble is None and {name: part.tag for name, part in parts.items()} == self.content.tags:
            return
        self._replace(PageContent(self._mark(), parts))

    def _parts(self, files: TrainingFiles, book: View | None) -> dict[str, Any]:
        settings, layout = self._settings.trainer, self._layout
        status = files.status()
        running = is_running(status, layout)
        solo = isinstance(self._settings, SoloSettings)
        checkpoints, published = (
            disk.checkpoints(layout, keep_every=settings.checkpoint_keep_every),
            disk.published(book),
        )
        local = {
            "running": running, "solo": solo, "file": str(layout.file),
            "run": None if isinstance(self._settings, SoloSettings) else self._settings.chain.run,
            "page": files.hub_status().get("page"), "checkpoint": _newest(layout, checkpoints["rows"]),
            "published": next((one["step"] for one in published["rows"]), None),
        }  # fmt: skip
        return {
            "trainer": documents.front(status, local), "alarms": documents.alarms(status, files, settings.alarms),
            "timeline": timeline.rows(timeline.read(layout.phases), timeline.running(status) if running else ()),
            "checkpoints": checkpoints | {"every": settings.checkpoint_every, "kept": settings.checkpoints_kept},
            "versions": published | disk.outgoing(layout) | {"solo": solo, "now_at": _looked_at(layout)},
            "log": self._log_lines(),
        }  # fmt: skip

    def _log_lines(self) -> dict[str, Any]:
        if self._tail is not None:
            return {"lines": self._tail.lines(self.secrets.text), "from": "this process"}
        file = self._settings.logging.file
        return {
            "lines": last_of(Path(file), self.secrets.text) if file else [],
            "from": "a file" if file else "nowhere",
        }


def _newest(layout: Outputs, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Of those that are whole: the one that a trainer goes on from."""
    found = next((row for row in rows if row["whole"]), None)
    return None if found is None else {**found, "folder": str(layout.checkpoints / f"step_{found['step']}")}


def _looked_at(layout: Outputs) -> float | None:
    """When the hub looked at the chain last, by this machine."""
    try:
        return None if layout.hub_status is None else layout.hub_status.stat().st_mtime
    except OSError:
        return None


def is_running(status: dict[str, Any], layout: Outputs) -> bool:
    """Whether the trainer lives that wrote this status. The lock is looked at last: a trainer that starts at this moment wants it."""
    return is_alive(status.get("pid")) and holder(Home(layout.output, "trainer").lock_file) is not None


def secrets_of(layout: Outputs, settings: RunSettings | SoloSettings) -> PageSecrets:
    if not isinstance(layout, Layout) or isinstance(settings, SoloSettings):
        return PageSecrets(())
    rpc = settings.chain.rpc
    return PageSecrets((rpc,) if isinstance(rpc, str) else rpc, (layout.keystore,))
