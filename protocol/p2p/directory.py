"""Announce and find: the synchronous face of discovery, for threads.

`find` proves who answers (`Provider.address` is the chain address of the PeerID at the other end) and nothing else. Which
addresses may serve a run, the caller knows from the chain.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from protocol.p2p.host import Host
from protocol.p2p.service import Endpoint, Provider, Service

if TYPE_CHECKING:
    from protocol.p2p.discovery import Discovery


class Directory:
    def __init__(self, host: Host) -> None:
        self._host = host

    def announce(self, service: Service, endpoint: Endpoint, *, deadline: float = 0.0) -> None:
        """Provides `service` at `endpoint` from now on, over restarts, until `withdraw`; replaces an earlier endpoint.

        With a `deadline`, waits that many seconds until somebody else holds the record, and raises DeadlineExceeded when
        nobody does; it is still announced as soon as anybody can be reached. Raises ValueError when the endpoint is not
        one of the service, UsageError when the host does not listen.
        """
        if (endpoint.role, endpoint.run) != (service.role, service.run):
            raise ValueError(f"an endpoint of {endpoint.role}, run {endpoint.run}, is none of {service}")
        self._host.provide(service, endpoint)
        if deadline > 0:
            self._host.run_inside(
                lambda discovery: discovery.announced(service), deadline=deadline, what=f"announcing {service}"
            )

    def withdraw(self, service: Service) -> None:
        """Answers for `service` no longer. Its record fades from the network within half an hour."""
        self._host.provide(service, None)

    def find(
        self, service: Service, deadline: float, at_least: int = 1, *, among: Collection[str] | None = None
    ) -> list[Provider]:
        """Those who prove to be providers of `service`, quickest first, without this host itself.

        Waits up to `deadline` seconds until there are `at_least`; all others that answer at once come with them. After
        the deadline returns fewer, or raises Unavailable with the reason when there is none at all; `at_least` = 0 asks
        around once and may return none. Who does not answer, or not with an endpoint of the service, is left out.

        `among` are the chain addresses that may provide it at all, where the caller knows them: nobody else is even
        asked, so that strangers who claim the key in numbers cost nothing.
        """
        end = time.monotonic() + deadline

        async def search(discovery: Discovery) -> list[Provider]:
            return await discovery.find(service, at_least, max(0.0, end - time.monotonic()), among)

        return self._host.run_inside(search, deadline=deadline, what=f"looking for a {service}")
