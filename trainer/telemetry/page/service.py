"""A trainer's page that is served: by the running trainer, or by `murmur trainer page` where none runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from protocol.page.log_tail import LogTail
from protocol.page.server import PORTS, SleepingServer, listen

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from trainer.config import Outputs, RunSettings, SoloSettings

log = logging.getLogger("trainer")


@contextmanager
def page_of_running_trainer(layout: Outputs, settings: RunSettings | SoloSettings) -> Iterator[str | None]:
    """Serves the page of the trainer that this process is, where its settings want one: its address. A port that cannot be had ends nothing."""
    if settings.page.show == "off":
        yield None
        return
    with LogTail().following() as tail, served(layout, settings, tail) as url:
        if url is None:
            log.warning(
                "this trainer has no page: ports %d to %d of this machine are taken; set page.port, or page.show to \"off\"",
                settings.page.port, settings.page.port + PORTS - 1,
            )  # fmt: skip
        else:
            log.info("this trainer's page: %s", url)
        yield url


@contextmanager
def served(layout: Outputs, settings: RunSettings | SoloSettings, tail: LogTail | None = None) -> Iterator[str | None]:
    """Its address; None where no port is free."""
    listener = listen(settings.page.port)
    if listener is None:
        yield None
        return
    from trainer.telemetry.page.keeper import TrainerPageKeeper

    keeper = TrainerPageKeeper(layout, settings, tail)

    def make() -> ASGIApp:
        from trainer.telemetry.page.app import create_page

        return create_page(keeper)

    with SleepingServer(listener, make) as server, keeper:
        yield server.url
