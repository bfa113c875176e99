"""A node's page that is served: by the running node, or by `node page` where none runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from node.contributor import submission_log
from node.contributor.settings import NodeSettings
from node.contributor.submission_log import SubmissionLog
from protocol.chain import Chain
from protocol.page.log_tail import LogTail
from protocol.page.server import PORTS, SleepingServer, listen
from protocol.shell.home import Home

log = logging.getLogger("node")


@contextmanager
def page_of_running_node(place: Home, settings: NodeSettings, chain: Chain) -> Iterator[None]:
    """Serves the page of the node that this process is, where its settings want one. A port that cannot be had ends nothing."""
    if settings.page.show == "off":
        yield
        return
    with LogTail().following() as tail, served(place, settings, lambda: chain, tail) as url:
        if url is None:
            log.warning(
                "this node has no page: ports %d to %d of this machine are taken; set page.port, or page.show to \"off\"",
                settings.page.port, settings.page.port + PORTS - 1,
            )  # fmt: skip
        else:
            log.info("this node's page: %s", url)
        place.page_url = url
        try:
            yield
        finally:
            place.page_url = None


@contextmanager
def served(
    place: Home, settings: NodeSettings, open_chain: Callable[[], Chain], tail: LogTail | None = None
) -> Iterator[str | None]:
    """Its address; None where no port is free."""
    listener = listen(settings.page.port)
    if listener is None:
        yield None
        return
    from node.contributor.page.chain_side import ChainSide
    from node.contributor.page.keeper import NodePageKeeper

    SubmissionLog(
        place.data / submission_log.FILE
    ).close()  # the page itself reads only, also before the node's first start
    keeper = NodePageKeeper(place, settings, ChainSide(place, settings.chain.run, open_chain), tail)

    def make() -> object:
        from node.contributor.page.app import create_page

        return create_page(keeper)

    with SleepingServer(listener, make) as server, keeper:  # type: ignore[arg-type]
        yield server.url
